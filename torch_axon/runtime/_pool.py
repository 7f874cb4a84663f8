"""A pool of host memory for received tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_axon import _native
from torch_axon.runtime._memory import Incoming


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
        self._core = _native.load().RuntimePool(max_bytes, pinned)

    def __call__(self, coming: Sequence[Incoming]) -> list[torch.Tensor | None]:
        """Returns one uninitialised tensor per description, or None where the pool has no memory.

        Args:
            coming: the descriptions of the tensors

        Raises:
            RuntimeError: the host has no more memory, or no more that can be pinned
        """
        return [self._core.take(incoming.dtype, incoming.shape) for incoming in coming]

    @property
    def num_bytes(self) -> int:
        """The bytes of host memory that the pool holds, in use or not."""
        num_bytes: int = self._core.num_bytes
        return num_bytes
