"""Measures the cost of a group: ms to open it and for its first call, and KiB of resident memory."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from torch_axon.bench.peers import peer_kib


@dataclass(frozen=True)
class GroupCost:
    """Figures of the slowest and the largest rank; `further_*` are means over `num_further` groups."""

    backend: str
    init_ms: float
    first_call_ms: float
    rss_kib: float
    num_further: int
    further_ms: float
    further_kib: float
    gpu_kib: float  # GPU memory without the context; 0 on CPUs
    further_gpu_kib: float
    peer_kib: float = 0.0  # see `peers`; 0: not measured


def default_groups(backends: Sequence[str], timeout: timedelta) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each backend in turn, with what opens the default group on it; the group is closed again before the next."""
    store, rank, num_ranks = next(iter(rendezvous("env://", timeout=timeout)))
    for number, backend in enumerate(backends):

        def open_default(backend: str = backend, number: int = number) -> None:
            dist.init_process_group(
                backend,
                store=PrefixStore(f"cost/{number}", store),
                rank=rank,
                world_size=num_ranks,
                timeout=timeout,
            )

        yield backend, open_default
        dist.destroy_process_group()


def measure_costs(backends: Sequence[str], num_further: int, timeout: timedelta) -> list[GroupCost]:
    """Opens the default group on each backend in turn, with `num_further` groups beside it, and closes them again."""
    on_cpu = torch.get_default_device().type == "cpu"  # on GPUs, host memory says little
    of_peers = [peer_kib(backend, timeout) if on_cpu else 0.0 for backend in backends]
    return [
        _measure_cost(backend, open_default, num_further, kib)
        for kib, (backend, open_default) in zip(of_peers, default_groups(backends, timeout), strict=True)
    ]


def _measure_cost(backend: str, open_default: Callable[[], None], num_further: int, kib_a_peer: float) -> GroupCost:
    tensor = torch.zeros(2)  # before memory is read: on a GPU, the first one makes the context
    before = _memory()
    init_ms = _milliseconds(open_default)
    first_call_ms = _milliseconds(lambda: _all_reduce(tensor, None))
    first = _memory()
    groups: list[dist.ProcessGroup] = []

    def open_further() -> None:
        for _ in range(num_further):
            groups.append(dist.new_group(backend=backend))
            _all_reduce(tensor, groups[-1])

    further_ms = _milliseconds(open_further)
    further = (_memory() - first) / max(1, num_further)
    own = torch.tensor([init_ms, first_call_ms, further_ms / max(1, num_further), kib_a_peer], dtype=torch.float64)
    most = torch.cat([own, first - before, further])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    init_ms, first_call_ms, further_ms, kib_a_peer, rss_kib, gpu_kib, further_kib, further_gpu_kib = most.tolist()
    return GroupCost(
        backend,
        init_ms,
        first_call_ms,
        rss_kib,
        num_further,
        further_ms,
        further_kib,
        gpu_kib,
        further_gpu_kib,
        kib_a_peer,
    )


def _all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    dist.all_reduce(tensor, group=group)
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _milliseconds(action: Callable[[], object]) -> float:
    start = perf_counter()
    action()
    return (perf_counter() - start) * 1e3


def _memory() -> torch.Tensor:
    """Returns the KiB resident in this process, and the KiB used on its GPU by all processes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    free, total = torch.cuda.mem_get_info() if torch.get_default_device().type == "cuda" else (0, 0)
    return torch.tensor([pages * os.sysconf("SC_PAGE_SIZE"), total - free], dtype=torch.float64) / 1024
