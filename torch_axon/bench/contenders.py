"""The groups that take turns, all over the same ranks of one process each, and a group of our own to agree through."""

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from torch_axon.bench import symmetric
from torch_axon.bench.exercise import Exercise, Setting
from torch_axon.bench.operations import Operation

# torch's backend that does nothing at all: what remains is the cost of the Python call.
FLOOR = "fake"
# No backend: what any call on a GPU cannot do without, one launch of a kernel that does nothing.
LAUNCH = "launch"
FLOORS = (FLOOR, LAUNCH)


@dataclass(frozen=True)
class Contender:
    """A backend with a group of all ranks."""

    backend: str
    group: dist.ProcessGroup

    @property
    def moves_data(self) -> bool:
        return self.backend not in FLOORS

    def own_exercise(self, operation: Operation, setting: Setting) -> Exercise | None:
        """For sides that need buffers of their own kind; the others work on the same ones. A collective call."""
        if self.backend in symmetric.KERNELS:
            return symmetric.prepare(self.backend, self.group, operation, setting)
        if self.backend == LAUNCH:
            return Exercise(lambda _group, _is_async: torch._C._cuda_sleep(1))  # no dispatch, no tensor
        return None


class Control:
    """Collective decisions and figures over a Gloo group that no measurement uses."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = group

    def barrier(self) -> None:
        dist.barrier(group=self._group)

    def maximum(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def total(self, value: int) -> int:
        return round(self._reduce([value], dist.ReduceOp.SUM)[0])

    def first_reason(self, reason: str | None) -> str | None:
        """The reason of the lowest rank that has one."""
        reasons: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, reason, group=self._group)
        return next((each for each in reasons if each), None)

    def _reduce(self, values: Sequence[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=op, group=self._group)
        return tensor.tolist()


def is_backend(name: str) -> bool:
    """Whether groups can be opened on it; other contenders go past c10d."""
    return name != LAUNCH and name not in symmetric.KERNELS


def register(backend: str) -> None:
    """Makes torch know `backend` where an import does that; importing this package does it for axon."""
    if backend == FLOOR:
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
    known = sorted({*dist.Backend.backend_list, FLOOR} - {"undefined"})
    if backend not in known:
        raise ValueError(f"{backend!r} is no backend of this process; there are {', '.join(known)}")


def choose_gpu() -> torch.device:
    """The GPU of this rank of its host; ranks share them where there are fewer GPUs."""
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    return gpu


def open_contenders(backend: str, rivals: Sequence[str], timeout: timedelta) -> tuple[list[Contender], Control]:
    """Opens the default group on `backend`, then one on each of `rivals`; the first contender is the one judged."""
    dist.init_process_group(backend, timeout=timeout)
    contenders = [Contender(backend, dist.distributed_c10d._get_default_group())]
    for name in rivals:
        # Symmetric memory needs no backend, but a group with a store to meet through.
        group = dist.new_group(backend=name if is_backend(name) else "gloo", timeout=timeout)
        contenders.append(Contender(name, group))
    return contenders, Control(dist.new_group(backend="gloo", timeout=timeout))
