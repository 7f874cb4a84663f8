"""The groups that are measured in turn, over the same ranks, and a separate group for agreement between the ranks."""

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

# torch's backend that does nothing, which measures the cost of the Python call.
FLOOR = "fake"
# Not a backend: one launch of an empty kernel, the least cost of any call on a GPU.
LAUNCH = "launch"
FLOORS = (FLOOR, LAUNCH)


@dataclass(frozen=True)
class Contender:
    """A backend and its group of all ranks."""

    backend: str
    group: dist.ProcessGroup

    @property
    def moves_data(self) -> bool:
        return self.backend not in FLOORS

    def own_exercise(self, operation: Operation, setting: Setting) -> Exercise | None:
        """Makes the buffers of sides that need their own kind; the other sides share buffers. A collective call."""
        if self.backend in symmetric.KERNELS:
            return symmetric.prepare(self.backend, self.group, operation, setting)
        if self.backend == LAUNCH:
            return Exercise(lambda _group, _is_async: torch._C._cuda_sleep(1))  # no dispatch, no tensor
        return None


class Control:
    """Makes collective decisions over a Gloo group that no measurement uses."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = group

    def barrier(self) -> None:
        dist.barrier(group=self._group)

    def maximum(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def total(self, value: int) -> int:
        return round(self._reduce([value], dist.ReduceOp.SUM)[0])

    def first_reason(self, reason: str | None) -> str | None:
        """Returns the reason of the lowest rank that has one."""
        reasons: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, reason, group=self._group)
        return next((each for each in reasons if each), None)

    def _reduce(self, values: Sequence[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=op, group=self._group)
        return tensor.tolist()


def is_backend(name: str) -> bool:
    """Returns whether this names a c10d backend; other contenders bypass c10d."""
    return name != LAUNCH and name not in symmetric.KERNELS


def register(backend: str) -> None:
    """Registers `backend` with torch if importing a module does so; importing this package registers axon.

    Raises:
        ValueError: this process has no such backend
    """
    if backend == FLOOR:
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
    known = sorted({*dist.Backend.backend_list, FLOOR} - {"undefined"})
    if backend not in known:
        raise ValueError(f"{backend!r} is not a backend of this process; available: {', '.join(known)}")


def choose_gpu() -> torch.device:
    """Returns this rank's GPU. Ranks share GPUs if the host has fewer GPUs than ranks."""
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    return gpu


def open_contenders(backend: str, rivals: Sequence[str], timeout: timedelta) -> tuple[list[Contender], Control]:
    """Opens the default group on `backend`, then one on each of `rivals`; the first contender is the one under test."""
    dist.init_process_group(backend, timeout=timeout)
    contenders = [Contender(backend, dist.distributed_c10d._get_default_group())]
    for name in rivals:
        # Symmetric memory needs no backend, but a group with a store to meet through.
        group = dist.new_group(backend=name if is_backend(name) else "gloo", timeout=timeout)
        contenders.append(Contender(name, group))
    return contenders, Control(dist.new_group(backend="gloo", timeout=timeout))
