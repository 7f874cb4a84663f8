"""Prepared transfers from rank 0 to rank 1, and what they send."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import torch_axon


def prepare_pair(tensor: Tensor, partitions: int | None = None, **arguments: Any) -> Any:
    """Prepares this rank's end of a transfer from rank 0 to rank 1."""
    rank = dist.get_rank()
    operation = "send" if rank == 0 else "recv"
    return torch_axon.prepare(tensor, operation, peer=1 - rank, partitions=partitions, **arguments)


def content(tensor: Tensor, step: int | Tensor) -> Tensor:
    """Returns what the tensor holds in this step."""
    numbers = torch.arange(tensor.numel(), dtype=torch.int64)
    return ((numbers * 7 + step) % 251).to(tensor.dtype).view(tensor.shape)
