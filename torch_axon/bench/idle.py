"""What a process with a group costs while nothing happens, and how soon it is awake again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter_ns, process_time

import torch
import torch.distributed as dist

from torch_axon.bench.cost import default_groups

_QUIET_S = 5.0  # before anything is measured
_NUM_WAKES = 15
_NAP_S = 0.1  # before each: whoever waits has long gone to sleep


@dataclass(frozen=True)
class IdleCost:
    """Of the rank that takes most of a core, and of rank 0's messages to rank 1.

    `wake_us` is by how much one comes later that finds its receiver asleep.
    """

    backend: str
    core_percent: float
    message_us: float
    wake_us: float


def measure_idle(backends: Sequence[str], seconds: float, timeout: timedelta) -> list[IdleCost]:
    """With the default group on each backend in turn, each rank quiet for `seconds`."""
    return [_measure(backend, open_default, seconds) for backend, open_default in default_groups(backends, timeout)]


def _measure(backend: str, open_default: Callable[[], None], seconds: float) -> IdleCost:
    open_default()
    tensor = torch.zeros(2)
    dist.all_reduce(tensor)
    time.sleep(_QUIET_S)
    before = process_time()
    time.sleep(seconds)
    core_percent = (process_time() - before) / seconds * 100
    asleep, awake = [], []
    for _ in range(_NUM_WAKES):
        asleep.append(_round_trip_us(tensor, _NAP_S))
        awake.append(_round_trip_us(tensor, 0))
    most = torch.tensor([core_percent], dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    times = torch.tensor([_median(awake) / 2, _median(asleep) - _median(awake)], dtype=torch.float64)
    dist.broadcast(times, 0)
    return IdleCost(backend, *most.tolist(), *times.tolist())


def _round_trip_us(tensor: torch.Tensor, nap_s: float) -> float:
    """From rank 0, after a nap, to rank 1, which waits all the time; 0 elsewhere."""
    rank = dist.get_rank()
    if rank == 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)
    if rank != 0:
        return 0
    time.sleep(nap_s)
    start = perf_counter_ns()
    dist.send(tensor, 1)
    dist.recv(tensor, 1)
    return (perf_counter_ns() - start) / 1e3


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
