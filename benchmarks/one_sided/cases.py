"""What is measured: operations on memory of another process, and the numbers, lengths and kinds of their blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

WRITE, READ = "write", "read"
NOTIFICATION = "notification"  # there and back
NOTIFIED_WRITE = "write + notification"  # until the owner has answered by a notification
LISTS = ("write list", "read list")  # blocks that a list names each time
PLANS = ("write plan", "read plan")  # blocks that were described once, and are named by numbers
PREPARE, MAKE = "prepare", "make"  # describing all blocks once, and naming them in one transfer
IDLE = "idle"  # what an owner takes that does nothing
OPS = (IDLE, NOTIFICATION, WRITE, READ, NOTIFIED_WRITE, *LISTS, *PLANS, PREPARE, MAKE)

REUSED, FRESH = "reused", "fresh"
UNITS = {IDLE: "% of a core", PREPARE: "ns per block", MAKE: "ns per block"}  # others: µs
MOST_BYTES = 256 << 20  # of one end's memory


class CaseError(Exception):
    """A side has no such operation, or it has failed and the others go on; the text says why."""


@dataclass(frozen=True)
class Case:
    """An operation on `num_bytes`, in blocks of equal length.

    A fresh buffer is memory of the initiator that no transfer has used before. Where a side's memory must be
    registered, that is part of its time.
    """

    op: str
    num_bytes: int = 0
    num_blocks: int = 1
    in_flight: int = 1
    buffers: str = REUSED

    @property
    def is_read(self) -> bool:
        return self.op.startswith(READ)

    @property
    def moves_data(self) -> bool:
        return self.op.startswith((WRITE, READ))

    @property
    def awaits_notification(self) -> bool:
        return self.op in (NOTIFICATION, NOTIFIED_WRITE)

    @property
    def block_bytes(self) -> int:
        return self.num_bytes // self.num_blocks

    @property
    def unit(self) -> str:
        return UNITS.get(self.op, "µs")

    def scaled(self, seconds: float) -> float:
        """Returns the time of a window of operations in the unit, for one operation or block."""
        return seconds * 1e9 / self.num_blocks if self.unit == "ns per block" else seconds * 1e6 / self.in_flight


def cases_of(
    sizes: Sequence[int], lists: Sequence[tuple[int, int]], in_flight: Sequence[int], ops: Sequence[str]
) -> list[Case]:
    """Returns the cases of these operations. `lists` has pairs of a number of blocks and their bytes."""
    cases = [Case(IDLE), Case(NOTIFICATION), *_blocks(sizes, in_flight)]
    cases += [Case(op, count * size, count) for count, size in lists for op in (PREPARE, MAKE, *LISTS, *PLANS)]
    return [case for case in cases if case.op in ops]


def _blocks(sizes: Sequence[int], in_flight: Sequence[int]) -> Iterator[Case]:
    for size, op in product(sizes, (WRITE, READ)):
        yield from (Case(op, size, in_flight=number) for number in in_flight if size * number <= MOST_BYTES)
        yield Case(op, size, buffers=FRESH)
    yield from (Case(NOTIFIED_WRITE, size) for size in sizes)
