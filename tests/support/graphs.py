"""A loop of steps that check themselves on the GPU, to be captured in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from support.gpu import exercise, meet
from support.reference import finish


def num_replays() -> int:
    """Ranks that share a GPU take turns on it, some milliseconds each."""
    return 1000 if dist.get_world_size() <= torch.cuda.device_count() else 20


def captured(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Captures a step when all ranks have finished their work, which has connected them."""
    meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


class Loop:
    """An operation between kernels that make its input, another each time, and check its output: all on the device.

    Step s scales the exercise's data by s % 100 + 1, which scales its result equally.
    """

    def __init__(self, name: str, num_bytes: int, asynchronous: bool = False) -> None:
        self._exercise = exercise(name, num_bytes)
        self._asynchronous = asynchronous
        self._step = torch.zeros((), dtype=torch.int64)
        self._wrong = torch.zeros((), dtype=torch.int64)

    def step(self) -> None:
        factor = self._step % 100 + 1
        for buffer, _ in self._exercise.outputs:
            buffer.fill_(-1)
        for buffer, values in self._exercise.inputs:
            torch.mul(values, factor, out=buffer)
        finish(self._exercise.launch(dist.group.WORLD, self._asynchronous))
        for buffer, expected in self._exercise.outputs:
            self._wrong += (buffer != expected * factor).sum()
        self._step += 1

    def capture(self) -> torch.cuda.CUDAGraph:
        """Captures after an eager step, which connects the ranks."""
        self.step()
        return captured(self.step)

    def check(self, num_steps: int) -> None:
        torch.cuda.synchronize()
        assert int(self._step) == num_steps
        assert int(self._wrong) == 0
