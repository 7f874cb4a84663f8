"""What the tests of CUDA tensors share: operations with their data, a busy stream, a place to meet."""

from __future__ import annotations

import torch
import torch.distributed as dist

from torch_axon.bench.exercise import Exercise, Setting
from torch_axon.bench.operations import OPERATIONS


def exercise(name: str, num_bytes: int, dtype: torch.dtype = torch.int64) -> Exercise:
    """A row of the benchmark's table: a call with its buffers on this rank's GPU, and what they must hold."""
    num_ranks = dist.get_world_size()
    count = OPERATIONS[name].count(num_bytes, dtype, num_ranks)
    return OPERATIONS[name].prepare(Setting(count, dtype, "sum", 0, dist.get_rank(), num_ranks))


def busy(seconds: float) -> None:
    """Keeps the current stream busy for at least so long, on GPUs of up to 2 GHz."""
    torch.cuda._sleep(int(seconds * 2e9))


def meet() -> None:
    """All ranks have done all that they have enqueued: nobody is still loading kernels or finding its peers."""
    torch.cuda.synchronize()
    dist.barrier()
