"""Finds the registered memory in which descriptors lie."""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
    """Memory of one kind by address. The same memory may be registered several times. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[Key, list[M]] = {}
        self._known: Rows | None = None  # the keys as an array; None: to be made

    def __iter__(self) -> Iterator[tuple[Key, M]]:
        """Iterates over a snapshot: the keys, each with its latest memory."""
        with self._lock:
            return iter([(key, memories[-1]) for key, memories in self._by_key.items()])

    def get(self, key: Key) -> M | None:
        with self._lock:
            return self._by_key[key][-1] if key in self._by_key else None

    def add(self, key: Key, memory: M) -> None:
        with self._lock:
            self._by_key.setdefault(key, []).append(memory)
            self._known = None

    def remove(self, key: Key) -> M:
        """Removes what was added last under this key.

        Raises:
            KeyError: there is nothing
        """
        with self._lock:
            memories = self._by_key[key]
            memory = memories.pop()
            if not memories:
                del self._by_key[key]
                self._known = None
            return memory

    def locate(self, rows: Rows, whose: str) -> Located[M]:
        """Finds the memory of each row. Takes some 20 ns for each.

        Raises:
            nixlNotFoundError: a row lies in no memory, or there are no rows
        """
        if len(rows) == 0:
            raise nixlNotFoundError("there are no descriptors; allowed: one or more")
        with self._lock:
            if self._known is None:
                self._known = np.array(list(self._by_key), dtype=np.uint64).reshape(-1, 3)
            known = self._known
            memories = [each[-1] for each in self._by_key.values()]
        table = np.empty((len(rows), 3), dtype=np.int64)
        rows = np.ascontiguousarray(rows)
        num_found = _native.load().locate_blocks(rows, known, table)
        if num_found < len(rows):
            address, nbytes, device = (int(value) for value in rows[num_found])
            raise nixlNotFoundError(
                f"descriptor {num_found}, of {nbytes} bytes at address {address:#x} of device {device}, "
                f"lies in no single memory that {whose} has registered"
            )
        return _used(memories, table)


def _used(memories: list[M], table: Table) -> Located[M]:
    """Leaves out the memories in which no row lies."""
    is_used = np.zeros(len(memories), dtype=bool)
    is_used[table[:, 0]] = True
    if is_used.all():
        return Located(memories, table)
    table[:, 0] = (np.cumsum(is_used) - 1)[table[:, 0]]
    return Located([memories[i] for i in np.flatnonzero(is_used)], table)


def expanded(descs: npt.NDArray[np.integer]) -> Rows:
    """Returns the blocks of strided descriptors.

    Args:
        descs: [n, 5]: address, bytes, device, stride and count of each

    Returns:
        [sum of the counts, 3]: the blocks of the first descriptor, then those of the next one.

    Raises:
        ValueError: the array is of another type, or not contiguous
        nixlNotFoundError: a count is 0, or blocks of a descriptor overlap
    """
    if descs.dtype not in (np.uint64, np.int64) or not descs.flags.c_contiguous:
        raise ValueError("descs must be a Nx5 numpy array of uint64 or int64")
    address, nbytes, device, stride, count = descs.astype(np.uint64, copy=False).T
    if (count == 0).any() or (stride < nbytes).any():
        raise nixlNotFoundError("a strided descriptor has count 0, or a stride below its bytes")
    repeats = count.astype(np.int64)
    numbers = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    rows = np.empty((len(numbers), 3), dtype=np.uint64)
    rows[:, 0] = np.repeat(address, repeats) + numbers.astype(np.uint64) * np.repeat(stride, repeats)
    rows[:, 1] = np.repeat(nbytes, repeats)
    rows[:, 2] = np.repeat(device, repeats)
    return rows
