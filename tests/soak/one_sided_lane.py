"""What a thread knows of a region of a peer: its fixed bytes, and what the thread's own lane must hold.

    lane = Lane((plan.seed, rank, number, lane_number), "rw", peer, peer.open(handle))
    lane.check_block(block, found)       # after it was read

The thread that writes a block sets its version once that is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from one_sided_layout import FIXED_NUM_BYTES, Bytes, Extent, blocks, content, mails

from torch_axon.runtime import Peer, Remote


class WrongDataError(AssertionError):
    """Bytes are not what was written."""


@dataclass(eq=False)
class Block:
    index: int
    extent: Extent
    version: int | None = 0  # None: a write of it has failed, so it may hold anything


@dataclass(eq=False)
class Lane:
    seed: tuple[int, int, int, int]  # of the plan, the rank of the owner, and the numbers of region and lane
    access: str
    peer: Peer
    remote: Remote
    blocks: list[Block] = field(init=False)
    mails: list[tuple[int, Extent]] = field(init=False)  # that the thread has yet to write

    def __post_init__(self) -> None:
        self.blocks = [Block(index, extent) for index, extent in enumerate(blocks(self.seed[3]))]
        self.mails = list(enumerate(mails(self.seed[3])))

    @property
    def rank(self) -> int:
        return self.seed[1]

    @property
    def number(self) -> int:
        return self.seed[2]

    def bytes_of(self, block: Block, version: int) -> Bytes:
        return content((*self.seed, block.index, version), block.extent.num_bytes)

    def check_block(self, block: Block, found: Bytes) -> None:
        size = block.extent.num_bytes
        expected = self.bytes_of(block, block.version) if block.version else np.zeros(size, dtype=np.uint8)
        self._check(found, expected, block.extent)

    def check_fixed(self, places: Sequence[Extent], found: Sequence[Bytes]) -> None:
        whole = content(self.seed[:3], FIXED_NUM_BYTES)
        for place, each in zip(places, found, strict=True):
            self._check(each, whole[place.slice], place)

    def _check(self, found: Bytes, expected: Bytes, place: Extent) -> None:
        wrong = np.flatnonzero(found != expected)
        if len(wrong):
            where = f"region {self.number} of rank {self.rank}, {self.remote.path}, {place}"
            raise WrongDataError(f"{len(wrong)} bytes of {where} are wrong, from byte {wrong[0]} on")
