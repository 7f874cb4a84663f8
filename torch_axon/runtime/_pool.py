"""Memory that tensors are received into again and again."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import torch

from torch_axon.runtime._memory import Incoming

# Whole cache lines, so that tensors of about the same size share memory one after the other.
_GRANULE = 4096


class Pool:
    """Host memory for `memory=`, used again: `max_bytes` of it at most, whatever comes. For any thread.

        pool = Pool(1 << 30)
        for batch in peer.iterate("batches", memory=pool): ...

    A tensor's memory is the pool's again once nobody has the tensor any more, nor a view of it. While all of it is out,
    there is none for what comes: see `Memory` for what happens then. `pinned` memory is quick to copy to CUDA.
    """

    def __init__(self, max_bytes: int, *, pinned: bool = False) -> None:
        if max_bytes < 1:
            raise ValueError(f"Pool: max_bytes is {max_bytes}; allowed: 1 or more")
        self.max_bytes = max_bytes
        self._pinned = pinned
        self._lock = threading.RLock()  # guards what follows but what has come back; nothing of Python's is made within
        self._free: list[torch.Tensor] = []  # the least recently used first
        self._num_bytes = 0  # of all, free or out
        self._come_back: deque[torch.Tensor] = deque()  # by whichever thread lets go of a tensor, maybe within ours

    def __call__(self, coming: Sequence[Incoming]) -> list[torch.Tensor | None]:
        return [self._take(incoming) for incoming in coming]

    @property
    def num_bytes(self) -> int:
        """What it holds of the host's memory, in use or not."""
        return self._num_bytes

    def _take(self, incoming: Incoming) -> torch.Tensor | None:
        num_bytes = math.prod(incoming.shape) * incoming.dtype.itemsize
        if num_bytes == 0:
            return torch.empty(incoming.shape, dtype=incoming.dtype, device="cpu")
        block = self._block(-(-num_bytes // _GRANULE) * _GRANULE)
        if block is None:
            return None
        lent = memoryview(cast(Any, block.numpy()))[:num_bytes]  # which the tensor and all views of it keep alive
        weakref.finalize(lent, self._come_back.append, block).atexit = False
        return torch.frombuffer(lent, dtype=torch.uint8).view(incoming.dtype).view(incoming.shape)

    def _block(self, num_bytes: int) -> torch.Tensor | None:
        with self._lock:
            block = self._take_free(num_bytes)
            if block is not None:
                return block
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
        """The smallest that fits and is not more than twice as large."""
        while self._come_back:
            self._free.append(self._come_back.popleft())
        best = None
        for index in range(len(self._free)):
            size = self._free[index].nbytes
            if num_bytes <= size <= 2 * num_bytes and (best is None or size < self._free[best].nbytes):
                best = index
        return None if best is None else self._free.pop(best)
