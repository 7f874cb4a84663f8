"""A pool of host memory for received tensors."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import torch

from torch_axon.runtime._memory import Incoming

# Sizes are rounded up to pages, so that tensors of similar sizes can reuse an allocation.
_GRANULE = 4096


class Pool:
    """A bounded pool of host memory for the `memory=` option. It may be used on any thread.

        pool = Pool(1 << 30)
        for batch in peer.iterate("batches", memory=pool): ...

    A tensor's memory returns to the pool when the tensor and all its views have been destroyed. While all of the memory
    is in use, the pool has none for further tensors: see `Memory` for what happens then.

    Args:
        max_bytes: the most memory in bytes that the pool holds; at least 1
        pinned: whether the memory is pinned, which makes copies to CUDA fast

    Attributes:
        max_bytes: the most memory in bytes that the pool holds

    Raises:
        ValueError: `max_bytes` is less than 1
    """

    def __init__(self, max_bytes: int, *, pinned: bool = False) -> None:
        if max_bytes < 1:
            raise ValueError(f"Pool: max_bytes is {max_bytes}; allowed: 1 or more")
        self.max_bytes = max_bytes
        self._pinned = pinned
        self._lock = threading.RLock()  # guards _free and _num_bytes; no Python object is created under it
        self._free: list[torch.Tensor] = []  # the least recently used first
        self._num_bytes = 0  # of all allocations, free or in use
        # Finalizers append here, on any thread and perhaps while the lock is held, so they must not take it.
        self._returned: deque[torch.Tensor] = deque()

    def __call__(self, coming: Sequence[Incoming]) -> list[torch.Tensor | None]:
        """Returns one uninitialised tensor per description, or None where the pool has no memory.

        Args:
            coming: the descriptions of the tensors

        Raises:
            RuntimeError: the host has no more memory, or no more that can be pinned
        """
        return [self._take(incoming) for incoming in coming]

    @property
    def num_bytes(self) -> int:
        """The bytes of host memory that the pool holds, in use or not."""
        return self._num_bytes

    def _take(self, incoming: Incoming) -> torch.Tensor | None:
        num_bytes = math.prod(incoming.shape) * incoming.dtype.itemsize
        if num_bytes == 0:
            return torch.empty(incoming.shape, dtype=incoming.dtype, device="cpu")
        allocation = self._allocate(-(-num_bytes // _GRANULE) * _GRANULE)
        if allocation is None:
            return None
        view = memoryview(cast(Any, allocation.numpy()))[:num_bytes]  # kept alive by the tensor and all its views
        weakref.finalize(view, self._returned.append, allocation).atexit = False
        return torch.frombuffer(view, dtype=torch.uint8).view(incoming.dtype).view(incoming.shape)

    def _allocate(self, num_bytes: int) -> torch.Tensor | None:
        with self._lock:
            allocation = self._take_free(num_bytes)
            if allocation is not None:
                return allocation
            while self._free and self._num_bytes + num_bytes > self.max_bytes:
                self._num_bytes -= self._free.pop(0).nbytes
            if self._num_bytes + num_bytes > self.max_bytes:
                return None
            self._num_bytes += num_bytes
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
        except BaseException:
            with self._lock:
                self._num_bytes -= num_bytes
            raise

    def _take_free(self, num_bytes: int) -> torch.Tensor | None:
        """Takes the smallest free allocation that fits and is at most twice as large."""
        while self._returned:
            self._free.append(self._returned.popleft())
        best = None
        for index in range(len(self._free)):
            size = self._free[index].nbytes
            if num_bytes <= size <= 2 * num_bytes and (best is None or size < self._free[best].nbytes):
                best = index
        return None if best is None else self._free.pop(best)
