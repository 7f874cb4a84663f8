"""Measures what an idle process with a group costs, and how fast it wakes up."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import median
from time import perf_counter_ns, process_time

import torch
import torch.distributed as dist

from torch_axon.bench.cost import default_groups
from torch_axon.bench.wakes import measure_wakes

_QUIET_S = 5.0  # pause before the measurement
_NUM_PAIRS = 100


@dataclass(frozen=True)
class Quiet:
    """How long to measure the use of a core, and how long and how often to let a receiver sleep."""

    seconds: float
    nap_s: float
    rounds: int


@dataclass(frozen=True)
class IdleCost:
    """Figures of the rank that uses most of a core, and of rank 0's messages to rank 1.

    `message_us` is one way between two ranks that do not sleep; `asleep_us`, `call_us` and `pipe_us` are as in `wakes`.
    """

    backend: str
    core_percent: float
    message_us: float
    asleep_us: float
    call_us: float
    pipe_us: float
    nap_s: float
    rounds: int


def measure_idle(backends: Sequence[str], quiet: Quiet, timeout: timedelta) -> list[IdleCost]:
    """Measures each backend in turn as the default group."""
    return [_measure(backend, open_default, quiet) for backend, open_default in default_groups(backends, timeout)]


def _measure(backend: str, open_default: Callable[[], None], quiet: Quiet) -> IdleCost:
    open_default()
    tensor = torch.zeros(2)
    dist.all_reduce(tensor)
    time.sleep(_QUIET_S)
    before = process_time()
    time.sleep(quiet.seconds)
    core_percent = (process_time() - before) / quiet.seconds * 100
    awake = [_round_trip_us(tensor) for _ in range(_NUM_PAIRS)]
    most = torch.tensor([core_percent], dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    message = torch.tensor([median(awake) / 2], dtype=torch.float64)
    dist.broadcast(message, 0)
    wakes = measure_wakes(backend, quiet.nap_s, quiet.rounds)
    return IdleCost(backend, most.item(), message.item(), **asdict(wakes), nap_s=quiet.nap_s, rounds=quiet.rounds)


def _round_trip_us(tensor: torch.Tensor) -> float:
    """Measures a message from rank 0 to rank 1 and back; returns 0 on other ranks."""
    rank = dist.get_rank()
    if rank == 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)
    if rank != 0:
        return 0
    start = perf_counter_ns()
    dist.send(tensor, 1)
    dist.recv(tensor, 1)
    return (perf_counter_ns() - start) / 1e3
