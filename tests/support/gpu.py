"""What the tests of CUDA tensors share: operations with their data, a busy stream, a place to meet."""

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
# Calls until all ranks have found each other's tensors, at the most.
_MOST_TRIES = 1000


@dataclass(frozen=True)
class _Shifted(Setting):
    """Every buffer is a view, so many elements into its memory."""

    shift: int = 0

    def empty(self, count: int) -> torch.Tensor:
        return torch.zeros(self.shift + count, dtype=self.dtype)[self.shift :]


def exercise(name: str, num_bytes: int, dtype: torch.dtype = torch.int64, shift: int = 0) -> Exercise:
    """A row of the benchmark's table: a call with its buffers on this rank's GPU, and what they must hold."""
    num_ranks = dist.get_world_size()
    count = OPERATIONS[name].count(num_bytes, dtype, num_ranks)
    return OPERATIONS[name].prepare(_Shifted(count, dtype, "sum", 0, dist.get_rank(), num_ranks, shift))


def exercise_all(*sizes: int) -> None:
    """Every operation of NAMES on so many bytes, waited for and not; of the default group."""
    group = dist.distributed_c10d._get_default_group()
    for name in NAMES:
        for num_bytes in sizes:
            for asynchronous in (False, True):
                with case(name=name, bytes=num_bytes, asynchronous=asynchronous):
                    work = exercise(name, num_bytes)
                    work.fill()
                    finish(work.launch(group, asynchronous))
                    assert work.count_wrong() == 0


def backend_of(group: dist.ProcessGroup | None = None) -> Any:
    """Ours, of the default group if none is given."""
    return (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cuda"))


def num_zero_copy(group: dist.ProcessGroup | None = None) -> int:
    """How many operations of a group kernels have done so far on the peers' tensors themselves."""
    torch.cuda.synchronize()
    return int(backend_of(group).num_zero_copy)


def until_direct(collective: Callable[..., object], *arguments: object) -> None:
    """Repeats a call until it is done directly: the ranks map each other's new tensors in the background.

    All ranks see the same counts, so they make the same number of calls.
    """
    before = num_zero_copy()
    for _ in range(_MOST_TRIES):
        collective(*arguments)
        if num_zero_copy() > before:
            return
        time.sleep(0.005)
    raise AssertionError(f"not once done directly in {_MOST_TRIES} calls")


def check_direct(work: Exercise, num_turns: int) -> None:
    """Each call of many is right and done directly, once the tensors are known; sync and async as each rank likes."""
    until_direct(work.launch, dist.group.WORLD, False)
    for turn in range(2 * num_turns):
        before = num_zero_copy()
        work.fill()
        finish(work.launch(dist.group.WORLD, bool((turn >> dist.get_rank() % 2) & 1)))
        assert work.count_wrong() == 0
        assert num_zero_copy() == before + 1


def enqueue_beside_a_late_host(tensors: Sequence[torch.Tensor], late_s: float) -> float:
    """Seconds that a host takes to enqueue an all_reduce of each while the last rank's sleeps. Checks all results."""
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
    """Keeps the current stream busy for at least so long, on GPUs of up to 2 GHz."""
    torch.cuda._sleep(int(seconds * 2e9))


def meet() -> None:
    """All ranks have done all that they have enqueued: nobody is still loading kernels or finding its peers."""
    torch.cuda.synchronize()
    dist.barrier()


def works() -> None:
    """This process's GPU is in order."""
    product = torch.eye(100) @ torch.arange(100.0)
    assert torch.equal(product, torch.arange(100.0))


def regroup(store: str, rank: int, size: int) -> None:
    """The ranks that are left go on in a new default group."""
    dist.destroy_process_group()
    dist.init_process_group(
        BACKEND, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=20)
    )
    data = torch.ones(1000)
    dist.all_reduce(data)
    same_bits(data, torch.full((1000,), float(size)))
