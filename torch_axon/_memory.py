"""Registered memory: pools of torch's allocator over memory that every peer can map."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from torch_axon import _native

if TYPE_CHECKING:
    from torch._C import _cuda_CUDAAllocator


@cache
def allocator() -> _cuda_CUDAAllocator:
    """What `torch.cuda.MemPool` takes; the extension says before whether there is such memory."""
    library = _native.load().__file__
    assert library is not None
    allocator: _cuda_CUDAAllocator = torch.cuda.memory.CUDAPluggableAllocator(
        library, "axon_allocate", "axon_free"
    ).allocator()  # type: ignore[no-untyped-call]
    return allocator


@cache
def _pool_of(gpu: int) -> torch.cuda.MemPool:
    """Lives as long as the process."""
    with torch.cuda.device(gpu):
        return torch.cuda.MemPool(allocator())


def allocate(num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Uninitialised."""
    gpu = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.use_mem_pool(_pool_of(gpu), gpu):
        return torch.empty(num_elements, dtype=dtype, device=device)
