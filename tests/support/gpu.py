"""Helpers that the tests of CUDA tensors share: operations with their data, a busy stream, a barrier."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from support.pool import BACKEND
from support.reference import case, finish, same_bits
from torch_axon.bench.exercise import Exercise, Setting
from torch_axon.bench.operations import OPERATIONS

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "ring", "sendrecv")
# The maximum number of calls until all ranks have mapped each other's tensors.
_MOST_TRIES = 1000


@dataclass(frozen=True)
class _Shifted(Setting):
    """Allocates every buffer as a view that starts `shift` elements into its memory."""

    shift: int = 0

    def empty(self, count: int) -> torch.Tensor:
        return torch.zeros(self.shift + count, dtype=self.dtype)[self.shift :]


def exercise(name: str, num_bytes: int, dtype: torch.dtype = torch.int64, shift: int = 0) -> Exercise:
    """Returns one row of the benchmark's table: a call with buffers on this rank's GPU, and the expected contents."""
    num_ranks = dist.get_world_size()
    count = OPERATIONS[name].count(num_bytes, dtype, num_ranks)
    return OPERATIONS[name].prepare(_Shifted(count, dtype, "sum", 0, dist.get_rank(), num_ranks, shift))


def exercise_all(*sizes: int) -> None:
    """Runs every operation of NAMES in the default group with each size in bytes: synchronously, asynchronously, and
    asynchronously on some ranks only."""
    group = dist.distributed_c10d._get_default_group()
    for name in NAMES:
        for num_bytes in sizes:
            for asynchronous in (False, True, dist.get_rank() % 2 == 0):
                with case(name=name, bytes=num_bytes, asynchronous=asynchronous):
                    work = exercise(name, num_bytes)
                    work.fill()
                    finish(work.launch(group, asynchronous))
                    assert work.count_wrong() == 0


def backend_of(group: dist.ProcessGroup | None = None) -> Any:
    """Returns our backend of this group, or of the default group if none is given."""
    return (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cuda"))


def num_zero_copy(group: dist.ProcessGroup | None = None) -> int:
    """Returns how many operations of a group the kernels have run zero-copy so far, directly on the peers' tensors."""
    torch.cuda.synchronize()
    return int(backend_of(group).num_zero_copy)


def until_direct(collective: Callable[..., object], *arguments: object) -> None:
    """Repeats a call until it runs zero-copy: the ranks map each other's new tensors in the background.

    All ranks see the same counts, so they make the same number of calls.
    """
    before = num_zero_copy()
    for _ in range(_MOST_TRIES):
        collective(*arguments)
        if num_zero_copy() > before:
            return
        time.sleep(0.005)
    raise AssertionError(f"no call of {_MOST_TRIES} ran zero-copy")


def check_direct(work: Exercise, num_turns: int) -> None:
    """Checks that each call is correct, and zero-copy once the tensors are mapped. Ranks mix sync and async calls."""
    until_direct(work.launch, dist.group.WORLD, False)
    for turn in range(2 * num_turns):
        before = num_zero_copy()
        work.fill()
        finish(work.launch(dist.group.WORLD, bool((turn >> dist.get_rank() % 2) & 1)))
        assert work.count_wrong() == 0
        assert num_zero_copy() == before + 1


def enqueue_beside_a_late_host(tensors: Sequence[torch.Tensor], late_s: float) -> float:
    """Returns the seconds that a host takes to enqueue an all_reduce per tensor while the last rank's host sleeps.

    Checks all results.
    """
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for step, data in enumerate(tensors):
        data.fill_(rank + step)
    meet()
    if rank == num_ranks - 1:
        time.sleep(late_s)
    started = time.perf_counter()
    for data in tensors:
        dist.all_reduce(data)
    seconds = time.perf_counter() - started
    for step, data in enumerate(tensors):
        same_bits(data, torch.full_like(data, num_ranks * step + sum(range(num_ranks))))
    return seconds


def busy(seconds: float) -> None:
    """Keeps the current stream busy for at least this many seconds, on GPUs of up to 2 GHz."""
    torch.cuda._sleep(int(seconds * 2e9))


def meet() -> None:
    """Waits until all ranks have finished their work, so that no rank still loads kernels or maps its peers."""
    torch.cuda.synchronize()
    dist.barrier()


def works() -> None:
    """Checks that this process's GPU still works."""
    product = torch.eye(100) @ torch.arange(100.0)
    assert torch.equal(product, torch.arange(100.0))


def regroup(store: str, rank: int, size: int) -> None:
    """Forms a new default group of the surviving ranks and checks that it works."""
    dist.destroy_process_group()
    dist.init_process_group(
        BACKEND, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=20)
    )
    data = torch.ones(1000)
    dist.all_reduce(data)
    same_bits(data, torch.full((1000,), float(size)))
