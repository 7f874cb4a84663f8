"""What the regions of the soak hold, so that both ends of a transfer know what it must move.

A region begins with fixed bytes, which all peers read. A lane follows for each thread that writes to the region: blocks
that the thread writes again and again, and mails, each of which it writes once, with a notification.

    memory = fresh(seed, num_lanes)             # at the owner
    blocks(lane)                                # at the thread that has this lane
    content((*seed, lane, index, version), n)   # what the thread writes, and what must then be there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

FIXED_NUM_BYTES = 200_003
# On both sides of what travels as a list, as one message and as a rendezvous, at odd offsets.
_BLOCK_LENGTHS = (1, 7, 64, 4096, 32_769, 70_001, 300_007)
_MAIL_LENGTHS = (9, 1000, 33_333, 9, 100_001, 2048)
_LANE_NUM_BYTES = sum(_BLOCK_LENGTHS) + sum(_MAIL_LENGTHS)
# An owner fills the memory of closed regions with this value. If it changes, a peer still writes there.
POISON = 0xA5
# The seed of a mail's bytes has this in place of a block's version.
MAIL = 1 << 30


@dataclass(frozen=True)
class Extent:
    offset: int
    num_bytes: int

    @property
    def slice(self) -> slice:
        return slice(self.offset, self.offset + self.num_bytes)


def content(seed: Sequence[int], num_bytes: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


def fresh(seed: Sequence[int], num_lanes: int) -> Bytes:
    """Returns the memory of a new region: the fixed bytes, and lanes of zeros, which are version 0 of their blocks."""
    memory = np.zeros(FIXED_NUM_BYTES + num_lanes * _LANE_NUM_BYTES, dtype=np.uint8)
    memory[:FIXED_NUM_BYTES] = content(seed, FIXED_NUM_BYTES)
    return memory


def blocks(lane: int) -> list[Extent]:
    return _extents(lane, (*_BLOCK_LENGTHS, *_MAIL_LENGTHS))[: len(_BLOCK_LENGTHS)]


def mails(lane: int) -> list[Extent]:
    return _extents(lane, (*_BLOCK_LENGTHS, *_MAIL_LENGTHS))[len(_BLOCK_LENGTHS) :]


def _extents(lane: int, lengths: Sequence[int]) -> list[Extent]:
    begin = FIXED_NUM_BYTES + lane * _LANE_NUM_BYTES
    offsets = accumulate(lengths[:-1], initial=begin)
    return [Extent(offset, length) for offset, length in zip(offsets, lengths, strict=True)]
