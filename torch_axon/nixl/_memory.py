"""Finds the registered memory in which descriptors lie."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from torch_axon import _native
from torch_axon.nixl._errors import nixlNotFoundError
from torch_axon.nixl._lists import Rows

M = TypeVar("M")
Key = tuple[int, int, int]  # address, bytes and device
Table = npt.NDArray[np.int64]  # [n, 3]: number of the memory, offset in it, bytes; as for BlockTable

_MOST_BLOCKS = (1 << 31) - 1  # indices have 32 bits


def key_of(row: npt.NDArray[np.uint64]) -> Key:
    return int(row[0]), int(row[1]), int(row[2])


@dataclass
class Located(Generic[M]):
    """Descriptors by memory.

    Attributes:
        memories: those in which descriptors lie
        table: [n, 3], a row for each descriptor
    """

    memories: list[M]
    table: Table


class MemoryMap(Generic[M]):
    """Memory of one kind by address. Any thread.

    Args:
        whose: names the agent that has registered the memory, for errors
    """

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._lock = threading.Lock()
        self._by_key: dict[Key, M] = {}
        self._known: Rows | None = None  # the keys as an array; None: to be made

    def items(self) -> list[tuple[Key, M]]:
        with self._lock:
            return list(self._by_key.items())

    def get(self, key: Key) -> M | None:
        with self._lock:
            return self._by_key.get(key)

    def set(self, key: Key, memory: M) -> None:
        with self._lock:
            self._by_key[key] = memory
            self._known = None

    def remove(self, key: Key) -> None:
        with self._lock:
            del self._by_key[key]
            self._known = None

    def replace(self, memories: dict[Key, M]) -> None:
        with self._lock:
            self._by_key = memories
            self._known = None

    def locate(self, rows: Rows) -> Located[M]:
        """Finds the memory of each row. Takes some 20 ns for each.

        Raises:
            nixlNotFoundError: a row lies in no memory, or there are no rows
        """
        if len(rows) == 0:
            raise nixlNotFoundError("there are no descriptors; allowed: one or more")
        with self._lock:
            if self._known is None:
                self._known = np.array(list(self._by_key), dtype=np.uint64).reshape(-1, 3)
            known, memories = self._known, list(self._by_key.values())
        table = np.empty((len(rows), 3), dtype=np.int64)
        num_found = _native.load().locate_blocks(np.ascontiguousarray(rows), known, table)
        if num_found < len(rows):
            address, nbytes, device = key_of(rows[num_found])
            raise nixlNotFoundError(
                f"descriptor {num_found}, of {nbytes} bytes at address {address:#x} of device {device}, "
                f"lies in no single memory that {self._whose} has registered"
            )
        return _used(memories, table)

    def locate_strided(self, descs: npt.NDArray[np.integer]) -> Located[M]:
        """Finds the memory of the blocks of strided descriptors.

        Args:
            descs: [n, 5]: address, bytes, device, stride and count of each

        Returns:
            The blocks of the first descriptor, then those of the next one.

        Raises:
            ValueError: the array is of another type, or not contiguous
            nixlNotFoundError: a block lies in no memory, a count is 0, or blocks of a descriptor overlap
        """
        if descs.dtype not in (np.uint64, np.int64) or not descs.flags.c_contiguous:
            raise ValueError("descs must be a Nx5 numpy array of uint64 or int64")
        rows = [tuple(int(value) for value in row) for row in descs]
        if any(count < 1 or stride < max(nbytes, 1) or address < 0 for address, nbytes, _, stride, count in rows):
            raise nixlNotFoundError("a strided descriptor has count 0, or a stride below its bytes")
        # Their ends come first, so that the table of a wrong count is never made.
        ends = [(address + (count - 1) * stride, nbytes, device) for address, nbytes, device, stride, count in rows]
        if any(end >= 1 << 63 for end, _, _ in ends) or sum(row[4] for row in rows) > _MOST_BLOCKS:
            raise nixlNotFoundError("strided descriptors exceed the address space, or have more than 2**31 blocks")
        self.locate(np.array(ends, dtype=np.uint64).reshape(-1, 3))
        return self.locate(_expanded(descs.astype(np.uint64, copy=False)))


def _used(memories: list[M], table: Table) -> Located[M]:
    """Leaves out the memories in which no row lies."""
    is_used = np.zeros(len(memories), dtype=bool)
    is_used[table[:, 0]] = True
    if is_used.all():
        return Located(memories, table)
    table[:, 0] = (np.cumsum(is_used) - 1)[table[:, 0]]
    return Located([memories[i] for i in np.flatnonzero(is_used)], table)


def _expanded(descs: Rows) -> Rows:
    """Returns the blocks of strided descriptors: [sum of the counts, 3]."""
    address, nbytes, device, stride, count = descs.T
    repeats = count.astype(np.int64)
    numbers = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    rows = np.empty((len(numbers), 3), dtype=np.uint64)
    rows[:, 0] = np.repeat(address, repeats) + numbers.astype(np.uint64) * np.repeat(stride, repeats)
    rows[:, 1] = np.repeat(nbytes, repeats)
    rows[:, 2] = np.repeat(device, repeats)
    return rows
