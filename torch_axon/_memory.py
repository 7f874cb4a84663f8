"""Registered memory: pools of torch's CUDA allocator over memory that every peer can map."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from torch_axon import _native

if TYPE_CHECKING:
    from torch._C import _cuda_CUDAAllocator


@cache
def allocator() -> _cuda_CUDAAllocator:
    """Returns the allocator for `torch.cuda.MemPool`.

    The extension checks beforehand whether this GPU supports such memory.
    """
    library = _native.load().__file__
    assert library is not None
    allocator: _cuda_CUDAAllocator = torch.cuda.memory.CUDAPluggableAllocator(
        library, "axon_allocate", "axon_free"
    ).allocator()  # type: ignore[no-untyped-call]
    return allocator


@cache
def _pool_of(gpu: int) -> torch.cuda.MemPool:
    """Returns the pool of a GPU, which lives until the process ends."""
    with torch.cuda.device(gpu):
        return torch.cuda.MemPool(allocator())


def allocate(num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns an uninitialised tensor `[num_elements]` in registered memory.

    Args:
        num_elements: the number of elements
        dtype: their type
        device: a CUDA device; without an index, the current one

    Raises:
        RuntimeError: the memory cannot be allocated
    """
    gpu = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.use_mem_pool(_pool_of(gpu), gpu):
        return torch.empty(num_elements, dtype=dtype, device=device)
