"""What a round of one-sided transfers is told, and what it reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# The limit until processes have learned of a death or a close, or hold nothing any more. More is an error anywhere.
NOTICE_S = 20.0
SECRET = b"what both hosts of the soak know"
NUM_THREADS = 2  # of each process, that transfer

# After these faults a peer connects again; after the others it is gone.
RECONNECTING = ("disconnect", "reset", "cut")


@dataclass(frozen=True)
class OneSidedPlan:
    """`fault` is what rank `victim` does to itself before step `strike_step` of its first thread.

    Instead, "cut" and "reset" strike the link between the hosts, and "none" nothing.
    """

    number: int
    seed: int
    folder: str
    slots: tuple[int, ...]  # by rank
    hosts: tuple[int, ...]  # by rank
    num_steps: int  # of each thread
    closing_share: float  # how often an owner closes a region, when it looks
    fault: str
    victim: int
    strike_step: int
    stopped_s: float
    variables: tuple[tuple[str, str], ...]  # of the environment

    @property
    def size(self) -> int:
        return len(self.slots)

    @property
    def num_lanes(self) -> int:
        return self.size * NUM_THREADS

    @property
    def strike_file(self) -> Path:
        return Path(self.folder, "struck")

    def name_of(self, rank: int) -> str:
        """Returns the name of a rank's runtime, which may live on to other rounds."""
        return f"slot {self.slots[rank]}"

    def lane_of(self, rank: int, thread: int) -> int:
        return rank * NUM_THREADS + thread

    def closes_runtime_of(self, rank: int) -> bool:
        return self.fault == "close" and rank == self.victim

    def may_lose(self, rank: int, other: int) -> bool:
        """Returns whether the fault has struck, and may end the connection of these two ranks."""
        if self.fault in ("none", "stop") or not self.strike_file.exists():
            return False
        if self.fault in ("cut", "reset"):
            return self.hosts[rank] != self.hosts[other]
        return self.victim in (rank, other)


class Tag(NamedTuple):
    """The tag of a notification. `mail` is the number of the mail that it follows, or -1."""

    round: int
    rank: int  # its sender, as the next two
    thread: int
    serial: int
    region: int
    mail: int

    def encode(self) -> bytes:
        return " ".join(map(str, self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> Tag:
        return cls(*map(int, text.split()))


@dataclass
class InitiatorOutcome:
    """What a thread has done. All failures are errors that the round's fault does not explain, or wrong data."""

    failures: list[str] = field(default_factory=list)
    transfers: Counter[str] = field(default_factory=Counter)  # that succeeded, by kind
    errors: Counter[str] = field(default_factory=Counter)  # expected ones, by class
    num_bytes: int = 0
    ended_s: float = 0.0
    lost_s: dict[int, float] = field(default_factory=dict)  # when a peer was first lost, by rank
    delivered: dict[int, set[Tag]] = field(
        default_factory=dict
    )  # notifications that were done, by the rank of the peer
    uncertain: dict[int, set[Tag]] = field(default_factory=dict)  # and those that failed, but may have arrived
