"""Forms a group of all ranks and measures the path of each pair."""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from torch_axon import _build
from torch_axon.doctor.exposure import Exposure

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from torch_axon._C import AxonBackend

_MOST_SECONDS = 30.0  # for measuring; the minimum per pair may add up to more
_MOST_SECONDS_IN_ALL = 60.0
_MOST_ONE_BY_ONE = 8  # up to this number of ranks, pairs are measured one after the other
_SMALL = 8
_CHOICE_SIZES = (8, 64 << 10, 1 << 20, 64 << 20)
_LARGE = {"cpu": 16 << 20, "cuda": 64 << 20}
_WARM_UP_ROUNDS = 10  # the first ones connect, map and load kernels
_NUM_SAMPLES = 8
# A thread of the peer maps large tensors on GPUs within milliseconds of their first use.
_MAPPING_S = 0.02
_WITNESS = b"axon"  # in the memory of every rank; the others try to read it


@dataclass(frozen=True)
class Speed:
    """Medians of one direction: latency in µs, bandwidth in GB/s."""

    latency_us: float
    bandwidth_gbs: float


@dataclass
class View:
    """The path of a pair as one of its ranks sees it. The lower rank measures the speeds."""

    rank: int
    peer: int
    same_host: bool = False
    lanes: list[tuple[str, str]] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)  # why messages to another host take no more lanes
    memory: str = ""  # why this process may not read the peer's memory; empty if it may, or on another host
    one_sided: dict[str, str] = field(default_factory=dict)  # `Remote.path`, by where the peer's memory is: CPU, GPU
    unopened: dict[str, str] = field(default_factory=dict)  # why there is no such path, for the others of these
    host: Speed | None = None
    kernels: bool | None = None  # whether kernels connect the GPUs; None: no GPU
    obstacle: str = ""
    direct: bool = False  # whether large tensors on GPUs take the zero-copy path
    gpu: Speed | None = None
    wrong: bool = False  # whether the data that came back differs from the data sent


@dataclass(frozen=True)
class Choice:
    """What the group runs for an operation on tensors of one size; the same on all ranks."""

    operation: str
    num_bytes: int
    algorithm: str  # for tensors on the CPU; empty: sends and receives have none
    kernel: str | None  # for tensors on GPUs; empty: through host memory; None: no GPU


@dataclass
class Probe:
    """All results of a rank, and why it has no more."""

    rank: int
    views: list[View] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    failure: str | None = None
    num_untried: int = 0  # number of peers for which there was no time


def probe(store: Store, rank: int, size: int, gpu: int | None, timeout: timedelta) -> Probe:
    """Measures all pairs of ranks. This is a collective: all ranks call it.

    It takes one second per pair if time allows, and little more than a minute in total.

    Args:
        store: where the ranks form their group
        rank: this process's rank
        size: the number of ranks
        gpu: index of this rank's GPU, or None
        timeout: the timeout of the group

    Returns:
        The results; exceptions are reported there as `failure`.
    """
    found = Probe(rank)
    try:
        with _group(store, rank, size, timeout), ExitStack() as stack:
            _probe_pairs(found, size, gpu if _build.CUDA else None, stack)
    except Exception as error:  # any exception here is one that the user's job would meet
        found.failure = f"{type(error).__name__}: {error}"
    return found


@contextmanager
def _group(store: Store, rank: int, size: int, timeout: timedelta) -> Iterator[None]:
    dist.init_process_group("axon", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield
    except Exception:
        dist.distributed_c10d._get_default_group().abort()  # otherwise the others would wait for this rank
        raise
    finally:
        dist.destroy_process_group()


def _probe_pairs(found: Probe, size: int, gpu: int | None, stack: ExitStack) -> None:
    rounds = rounds_of(size)
    seconds = min(1.0, _MOST_SECONDS / max(1, len(rounds)))
    witness = ctypes.create_string_buffer(_WITNESS)
    about: list[tuple[int, int, int | None]] = [(0, 0, None)] * size
    dist.all_gather_object(about, (os.getpid(), ctypes.addressof(witness), gpu))
    with_gpus = all(other_gpu is not None for _, _, other_gpu in about)
    if with_gpus:
        torch.cuda.set_device(gpu)
    exposure = Exposure(gpu if with_gpus else None, stack)
    started = time.monotonic()
    for number, peers in enumerate(rounds):
        late = torch.tensor([time.monotonic() - started > _MOST_SECONDS_IN_ALL])
        dist.all_reduce(late, dist.ReduceOp.MAX)  # all ranks agree and begin together
        if late:
            found.num_untried = sum(found.rank in left_out for left_out in rounds[number:])
            break
        if (peer := peers.get(found.rank)) is None:
            continue  # this rank pauses in this round
        view = View(found.rank, peer)
        _probe_host(view, seconds)
        if view.same_host:
            pid, address, _ = about[view.peer]
            view.memory = _obstacle_to_reading(pid, address)
        view.one_sided, view.unopened = exposure.paths_to(view.peer, view.same_host)
        if with_gpus:
            _probe_gpu(view, seconds)
        found.views.append(view)  # only when it is complete
    if size > 1:
        found.choices = _choices(with_gpus)
    dist.barrier()


def _choices(with_gpus: bool) -> list[Choice]:
    if with_gpus:
        dist.all_reduce(torch.zeros(1, device="cuda"))  # the ranks agree whether kernels serve the group
        torch.cuda.synchronize()
    backend = _backend()
    return [
        Choice(each["operation"], num_bytes, each["algorithm"], each["kernel"] if with_gpus else None)
        for num_bytes in _CHOICE_SIZES
        for each in backend.selected(num_bytes)
    ]


def rounds_of(size: int) -> list[dict[int, int]]:
    """Returns the peer of each rank, round by round, so that each pair is measured once.

    With few ranks there is one pair per round, which is undisturbed. With more, all ranks take part in each round of a
    round-robin tournament by the circle method; if their number is odd, one pauses.

    Args:
        size: the number of ranks
    """
    if size <= _MOST_ONE_BY_ONE:
        return [{rank: peer, peer: rank} for rank, peer in combinations(range(size), 2)]
    last = size - 1 + size % 2  # fixed place of the circle; a virtual rank if the number is odd, whose peer pauses
    rounds = []
    for turn in range(last):
        circle = [last, *((turn + place) % last for place in range(last))]
        met = zip(circle, reversed(circle), strict=True)
        rounds.append({rank: peer for rank, peer in met if max(rank, peer) < size})
    return rounds


def _backend() -> AxonBackend:
    group = dist.distributed_c10d._get_default_group()
    return cast("AxonBackend", group._get_backend(torch.device("cpu")))


def _probe_host(view: View, seconds: float) -> None:
    view.host = _speed(view, "cpu", seconds)
    path = _backend().path_to(view.peer)
    view.same_host = path["same_host"]
    view.lanes = path["lanes"]
    view.obstacles = path["network_obstacles"]


def _probe_gpu(view: View, seconds: float) -> None:
    view.gpu = _speed(view, "cuda", seconds)
    data = torch.zeros(_LARGE["cuda"], dtype=torch.uint8, device="cuda")
    _warm_up(view, data)
    before = _backend().path_to(view.peer)
    _play(view, data, 1)
    torch.cuda.synchronize()
    path = _backend().path_to(view.peer)
    view.kernels, view.obstacle = path["kernels"], path["obstacle"]
    view.direct = path["num_zero_copy"] > before["num_zero_copy"]


def _speed(view: View, device: str, seconds: float) -> Speed | None:
    small = _time_one_way(view, torch.arange(_SMALL, dtype=torch.uint8, device=device), seconds / 3)
    count = _LARGE[device]
    data = torch.arange(count, dtype=torch.int32, device=device).to(torch.uint8)
    large = _time_one_way(view, data, seconds * 2 / 3)
    return None if small is None or large is None else Speed(small * 1e6, count / large / 1e9)


def _time_one_way(view: View, data: torch.Tensor, seconds: float) -> float | None:
    """Returns seconds per message on the lower rank, which also chooses the number of rounds for both."""
    sent = data.clone()
    _warm_up(view, data)
    started = time.perf_counter()
    _play(view, data, 1)
    _synchronize(data)
    rounds = torch.tensor([max(1, int(seconds / _NUM_SAMPLES / (time.perf_counter() - started)))])
    dist.send(rounds, view.peer) if view.rank < view.peer else dist.recv(rounds, view.peer)
    times = []
    for _ in range(_NUM_SAMPLES):
        started = time.perf_counter()
        _play(view, data, int(rounds))
        _synchronize(data)
        times.append((time.perf_counter() - started) / int(rounds) / 2)
    view.wrong |= not torch.equal(data, sent)
    return statistics.median(times) if view.rank < view.peer else None


def _warm_up(view: View, data: torch.Tensor) -> None:
    for _ in range(_WARM_UP_ROUNDS):
        _play(view, data, 1)
        if data.is_cuda and data.numel() > _SMALL:
            time.sleep(_MAPPING_S)
    _synchronize(data)


def _play(view: View, data: torch.Tensor, rounds: int) -> None:
    """Plays ping-pong: the lower rank sends and receives, the upper rank sends back what it receives."""
    for _ in range(rounds):
        if view.rank < view.peer:
            dist.send(data, view.peer)
            dist.recv(data, view.peer)
        else:
            dist.recv(data, view.peer)
            dist.send(data, view.peer)


def _synchronize(data: torch.Tensor) -> None:
    if data.is_cuda:
        torch.cuda.synchronize()


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _obstacle_to_reading(pid: int, address: int) -> str:
    """Returns why this process may not read the memory of another one, or an empty text if it may.

    CMA and the set-up of our kernels read memory in this way.
    """
    size = len(_WITNESS)
    here = ctypes.create_string_buffer(size)
    local, remote = _Range(ctypes.addressof(here), size), _Range(address, size)
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    one, no_flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    num_read = read(ctypes.c_int(pid), ctypes.byref(local), one, ctypes.byref(remote), one, no_flags)
    return "" if num_read == size else os.strerror(ctypes.get_errno())
