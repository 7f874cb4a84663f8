"""Random operations that every rank draws alike from a seed, and their expected results, computed on the same device.

    torture = Torture(seed)
    torture.run(2000)              # on every rank; raises where an element differs
    torture.close()

Each step draws the group, the operation, types, sizes, offsets, roots, whether it is asynchronous and when it is waited
for. On a GPU, it also draws the streams of call and wait. There, each rank also allocates and frees memory
independently, so that addresses differ and recur. Bursts of large operations give the ranks time to map each other's
tensors, so that kernels of all kinds run, also those that fall back. Values are small integers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from support import gpu
from support.torture_calls import LARGEST_BYTES, OPERATIONS, Call, Draw

MOST_IN_FLIGHT = 12
STEPS_BETWEEN_CHECKS = 200


def _all_and_pairs() -> list[tuple[int, ...]]:
    everybody = range(dist.get_world_size())
    return [tuple(everybody)] * 2 + [pair for pair in combinations(everybody, 2) if len(everybody) > 2]


@dataclass
class _Pending:
    step: int
    name: str
    call: Call
    work: Any


class Torture:
    """Runs on every rank of the default group, with one seed, in groups of these ranks (default: all, and all pairs).

    Several may run at a time, each on a thread of its own. All ranks must create and close them in one order.
    """

    def __init__(
        self,
        seed: int,
        subsets: Sequence[Sequence[int]] = (),
        timeout: timedelta | None = None,
        large_share: float = 0.01,  # of the calls outside bursts
    ) -> None:
        self._random = random.Random(seed)
        self._large_share = large_share
        self._of_this_rank = random.Random(f"{seed}, rank {dist.get_rank()}")
        self._groups = [
            (dist.new_group(list(members), timeout=timeout), list(members)) for members in subsets or _all_and_pairs()
        ]
        # The groups that this rank is in, and their members.
        self.own_groups = [(group, members) for group, members in self._groups if dist.get_rank() in members]
        self._on_gpu = torch.get_default_device().type == "cuda"
        self._streams = [torch.cuda.Stream() for _ in range(3)] if self._on_gpu else []
        self._kept: list[Tensor] = []
        self._pending: list[_Pending] = []
        self._wrong: list[tuple[str, Tensor]] = []

    def run(self, num_steps: int, before_step: Callable[[int], object] = lambda _: None) -> None:
        operations, weights = zip(*OPERATIONS, strict=True)
        for step in range(num_steps):
            before_step(step)
            operation = self._random.choices(operations, weights)[0]
            self._step(step, operation)
            if step % STEPS_BETWEEN_CHECKS == STEPS_BETWEEN_CHECKS - 1:
                self._check()
        self._check()

    def close(self) -> int:
        """Returns how many operations the kernels have run zero-copy, directly on the peers' tensors."""
        own_groups = [group for group, _ in self.own_groups]
        num_zero_copy = sum(gpu.num_zero_copy(group) for group in own_groups) if self._on_gpu else 0
        for group in own_groups:
            dist.destroy_process_group(group)
        return num_zero_copy

    def _step(self, step: int, operation: Callable[[Draw], Call]) -> None:
        group, members = self._random.choice(self._groups)
        draw = Draw(self._random, group, members, step, self._large_share)
        # All ranks draw the same, members or not.
        state = random.Random(self._random.random())
        draw.random = state
        asynchronous, stream, later = self._random.random() < 0.5, self._stream(), self._stream()
        num_waits = self._random.randrange(3)
        if draw.rank >= 0:
            with stream:
                call = operation(draw)
                pending = _Pending(
                    step, f"{operation.__name__}, {draw.dtype}, {draw.count}", call, call.launch(asynchronous)
                )
                if pending.work is None:
                    self._judge(pending)
                else:
                    self._pending.append(pending)
        with later:
            for _ in range(num_waits):
                self._wait()
            while len(self._pending) > MOST_IN_FLIGHT:
                self._wait()
        if self._on_gpu:
            self._take_and_give_back()

    def _take_and_give_back(self) -> None:
        """Allocates and frees memory, on each rank independently."""
        draw = self._of_this_rank.random()
        if draw < 0.002:
            torch.cuda.empty_cache()
        elif draw < 0.004:
            self._kept.append(torch.empty(self._of_this_rank.randrange(1, LARGEST_BYTES), dtype=torch.uint8))
        elif draw < 0.006:
            self._kept.clear()

    def _stream(self) -> AbstractContextManager[Any]:
        index = self._random.randrange(4)
        return torch.cuda.stream(self._streams[index]) if self._on_gpu and index < 3 else nullcontext()

    def _wait(self) -> None:
        """Waits on the current stream for the oldest work in flight."""
        if self._pending:
            pending = self._pending.pop(0)
            pending.work.wait()
            self._judge(pending)

    def _judge(self, pending: _Pending) -> None:
        """Counts wrong elements on the device, without waiting for the figure."""
        for output, expected in pending.call.results:
            self._wrong.append((f"step {pending.step}: {pending.name}", (output != expected.to(output.dtype)).sum()))
        if self._on_gpu:
            for tensor in (*pending.call.tensors, *(expected for _, expected in pending.call.results)):
                tensor.record_stream(torch.cuda.current_stream())

    def _check(self) -> None:
        while self._pending:
            self._wait()
        if self._on_gpu:
            torch.cuda.synchronize()
            for group, _ in self.own_groups:
                dist.barrier(group)  # raises if enqueued work has failed and left an error pending
        wrong = [f"{name}: {int(count)} wrong elements" for name, count in self._wrong if int(count)]
        self._wrong.clear()
        assert not wrong, "\n".join(wrong)
