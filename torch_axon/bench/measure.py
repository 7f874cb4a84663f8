"""Times the contenders in turn, so that other load on the machine affects all of them alike.

A sample is a batch of calls between two readings of a clock (`clock`). A batch is one of three: sequential synchronous
calls, a window of asynchronous calls that are launched together and then waited for, or a CUDA graph of calls. A sample
round of one contender is followed by one of the next; every second time they run in reverse order. Before a sample
round, all ranks synchronise and run one batch untimed. Each rank computes p50 and p99 of its own samples, and the
result is the largest over the ranks. Every element of the results is checked before the first sample round and after
the last one.
"""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch
import torch.distributed as dist

from torch_axon.bench.arguments import Arguments
from torch_axon.bench.clock import Clock, EnqueueClock, HostClock, StreamClock, capture
from torch_axon.bench.contenders import Contender, Control
from torch_axon.bench.exercise import Exercise, Pending, Setting
from torch_axon.bench.memory import free_bytes
from torch_axon.bench.operations import Operation
from torch_axon.bench.record import Line, Machine, Side

_LARGEST_BATCH = 64
_SMALLEST_GRAPH = 20
_BUFFERS_PER_CALL = 4  # at most: two buffers, their inputs and their expected results


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the quantile `share` (0 to 1) of `values`, interpolated linearly."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True)
class Method:
    """How calls are executed and timed."""

    clock: Clock
    graph: bool  # replayed from CUDA graphs
    chained: bool  # each call reads what the previous one wrote, which keeps the ranks in step
    to_end: bool = True  # otherwise only enqueuing is timed, which gives no bandwidth

    @staticmethod
    def of(arguments: Arguments) -> "Method":
        if arguments.device == "cpu":
            return Method(HostClock(), graph=False, chained=False)
        if arguments.host:
            return Method(EnqueueClock(), graph=False, chained=True, to_end=False)
        clock = StreamClock(1_000_000, _SMALLEST_GRAPH) if arguments.graph else StreamClock(200_000, 1)
        return Method(clock, arguments.graph, chained=True)


class Trial:
    """One contender on one line: its calls, checks and samples."""

    def __init__(self, contender: Contender, exercises: Sequence[Exercise], method: Method):
        self.contender = contender
        self.failure: str | None = None
        self.wrong = 0
        self.batch = self._once = len(exercises)
        self.nanoseconds: list[float] = []  # per call, one entry per sample
        self._samples_per_block = 1
        self._exercises = exercises
        self._method = method
        self._is_async = len(exercises) > 1
        self._steps = exercises[0].chain() if method.chained else [exercises[0].launch]
        self._run_check = self._launch_all
        self._run_batch = self._launch_batch

    def probe(self, control: Control) -> None:
        """Makes the first check. A backend that does not support the operation is left out of the line."""
        reason = None
        try:
            self._check()
            if self._method.graph:  # after a call outside, because the set-up in a first call cannot be captured
                self._run_check = capture(self._launch_all).replay
                self._check()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
        self.failure = control.first_reason(reason)
        self.wrong = control.total(self.wrong)

    def recheck(self, control: Control) -> None:
        before, self.wrong = self.wrong, 0
        self._check()
        self.wrong = before + control.total(self.wrong)

    def plan(self, arguments: Arguments, control: Control) -> None:
        """Chooses the sizes of batches and sample rounds, equal on all ranks, from the time of the warm-up."""
        clock = self._method.clock
        rounds = math.ceil(arguments.warmup / self._once)
        elapsed = sum(clock.time(self._run_batch, rounds)) / (rounds * self._once)
        call_ns = max(1.0, control.maximum([elapsed])[0])
        if not self._is_async:
            self.batch = min(_LARGEST_BATCH, max(clock.smallest_batch, math.ceil(clock.sample_ns / call_ns)))
        calls = arguments.iters or min(clock.most_calls, arguments.seconds * 1e9 / call_ns)
        self._samples_per_block = math.ceil(calls / (arguments.blocks * self.batch))
        if self._method.graph:
            self._run_batch = capture(self._launch_batch).replay

    def block(self) -> None:
        samples = self._method.clock.time(self._run_batch, self._samples_per_block)
        self.nanoseconds += [sample / self.batch for sample in samples]

    def enqueue(self, num_calls: int) -> list[Pending]:
        """Starts calls without waiting for earlier ones and returns the works of those that are asynchronous."""
        works = [launch(self.contender.group, True) for launch in islice(cycle(self._steps), num_calls)]
        return [work for work in works if work is not None]

    def side(self, operation: Operation, size: int, control: Control) -> Side:
        if self.failure is not None:
            return Side(self.contender.backend, failure=self.failure)
        hops = 1 if self._is_async else operation.hops
        own = [percentile(self.nanoseconds, share) / hops / 1e3 for share in (0.5, 0.99)]
        p50_us, p99_us = control.maximum(own)
        moved = size if self.contender.moves_data and self._method.to_end else 0
        algbw_gbs = moved / p50_us / 1e3
        return Side(
            self.contender.backend,
            p50_us=p50_us,
            p99_us=p99_us,
            algbw_gbs=algbw_gbs,
            busbw_gbs=algbw_gbs * operation.bus_factor(dist.get_world_size()),
            calls=len(self.nanoseconds) * self.batch,
            batch=self.batch,
            wrong=self.wrong if self.contender.moves_data else None,
        )

    def _launch_batch(self) -> None:
        if self._is_async:
            self._launch_all()
            return
        group = self.contender.group
        for launch in islice(cycle(self._steps), self.batch):
            launch(group, False)

    def _launch_all(self) -> None:
        """Makes each exercise's call once."""
        works = [exercise.launch(self.contender.group, self._is_async) for exercise in self._exercises]
        for work in works:
            if work is not None:
                work.wait()

    def _check(self) -> None:
        for exercise in self._exercises:
            exercise.fill()
        self._run_check()
        if self.contender.moves_data:
            self.wrong += sum(exercise.count_wrong() for exercise in self._exercises)
        for exercise in self._exercises:
            exercise.zero()


def prepare_trials(
    contenders: Sequence[Contender], operation: Operation, setting: Setting, arguments: Arguments, window: int = 1
) -> list[Trial]:
    """Makes one trial per contender, over the same buffers unless a contender needs its own."""
    method = Method.of(arguments)
    with torch.device(arguments.device):
        shared = [operation.prepare(setting) for _ in range(window)]
        own = [contender.own_exercise(operation, setting) for contender in contenders]
        return [
            Trial(contender, [exercise] if exercise else shared, method)
            for contender, exercise in zip(contenders, own, strict=True)
        ]


def take_turns(turns: Sequence[Callable[[], None]], blocks: int, control: Control) -> None:
    """Runs all trials in `blocks` sample rounds, every second one in reverse order, each after a barrier."""
    gc.collect()
    gc.disable()
    try:
        for block in range(blocks):
            for turn in turns if block % 2 == 0 else reversed(turns):
                control.barrier()
                turn()
    finally:
        gc.enable()


@dataclass(frozen=True)
class Meter:
    """Measures lines with the same contenders throughout; the first is the one under test."""

    contenders: Sequence[Contender]
    control: Control
    arguments: Arguments
    machine: Machine

    def line(self, operation: Operation, setting: Setting) -> Line:
        size = operation.size(setting.count, setting.dtype, setting.num_ranks)
        window = self._window(size)
        trials = self._measure(prepare_trials(self.contenders, operation, setting, self.arguments, window))
        return Line(
            op=operation.name,
            size=size,
            count=setting.count,
            dtype=str(setting.dtype).removeprefix("torch."),
            redop=setting.redop if operation.reduces else "none",
            root=setting.root if operation.rooted else -1,
            ranks=setting.num_ranks,
            window=window,
            sides=tuple(trial.side(operation, size, self.control) for trial in trials),
            machine=self.machine,
            device=self.arguments.device,
            graph=self.arguments.graph,
            host=self.arguments.host,
        )

    def _window(self, size: int) -> int:
        """Returns the number of calls in flight: fewer if their buffers would fill half the memory; 1: synchronous."""
        if self.arguments.window is None:
            return 1
        least_free = -self.control.maximum([-free_bytes(self.arguments.device)])[0]
        return max(1, min(self.arguments.window, int(least_free / 2) // (_BUFFERS_PER_CALL * max(1, size))))

    def _measure(self, trials: list[Trial]) -> list[Trial]:
        for trial in trials:
            trial.probe(self.control)
        able = [trial for trial in trials if trial.failure is None]
        for trial in able:
            trial.plan(self.arguments, self.control)
        take_turns([trial.block for trial in able], self.arguments.blocks, self.control)
        for trial in able:
            trial.recheck(self.control)
        return trials
