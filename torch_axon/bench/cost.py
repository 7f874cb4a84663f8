"""What a group costs: milliseconds to open it and to make its first call, kibibytes of resident memory."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous


@dataclass(frozen=True)
class GroupCost:
    """Figures of the slowest and of the largest rank; `further_*` are the mean of `num_further` groups."""

    backend: str
    init_ms: float
    first_call_ms: float
    rss_kib: float
    num_further: int
    further_ms: float
    further_kib: float


def measure_costs(backends: Sequence[str], num_further: int, timeout: timedelta) -> list[GroupCost]:
    """Opens the default group on each backend in turn, with `num_further` groups beside it, and closes them again."""
    store, rank, num_ranks = next(iter(rendezvous("env://", timeout=timeout)))
    costs = []
    for number, backend in enumerate(backends):

        def open_default(backend: str = backend, number: int = number) -> None:
            dist.init_process_group(
                backend,
                store=PrefixStore(f"cost/{number}", store),
                rank=rank,
                world_size=num_ranks,
                timeout=timeout,
            )

        costs.append(_measure_cost(backend, open_default, num_further))
        dist.destroy_process_group()
    return costs


def _measure_cost(backend: str, open_default: Callable[[], None], num_further: int) -> GroupCost:
    before = _resident_kib()
    init_ms = _milliseconds(open_default)
    tensor = torch.zeros(2)
    first_call_ms = _milliseconds(lambda: dist.all_reduce(tensor))
    first = _resident_kib()
    groups: list[dist.ProcessGroup] = []

    def open_further() -> None:
        for _ in range(num_further):
            groups.append(dist.new_group(backend=backend))
            dist.all_reduce(tensor, group=groups[-1])

    further_ms = _milliseconds(open_further)
    further_kib = _resident_kib() - first
    share = max(1, num_further)
    own = [init_ms, first_call_ms, first - before, further_ms / share, further_kib / share]
    most = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    init_ms, first_call_ms, rss_kib, further_ms, further_kib = most.tolist()
    return GroupCost(backend, init_ms, first_call_ms, rss_kib, num_further, further_ms, further_kib)


def _milliseconds(action: Callable[[], object]) -> float:
    start = perf_counter()
    action()
    return (perf_counter() - start) * 1e3


def _resident_kib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024
