"""Times a batch of calls by the host's clock, by events on the GPU's stream, or only on the host while enqueuing.

Events time the work of the GPU between them. The batches of a sample round follow each other without a wait on the
host. An untimed batch precedes them and synchronises the ranks, so that the slowest rank's time contains no delay of
another rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns
from typing import Protocol

import torch


class Clock(Protocol):
    @property
    def sample_ns(self) -> int:
        """The least duration of a batch."""

    @property
    def smallest_batch(self) -> int:
        """The number of calls in a batch, independent of its duration."""

    @property
    def most_calls(self) -> int:
        """The most calls per side and line, unless the user asks for more."""

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        """Returns the nanoseconds of each of `num_samples` runs, after one that is not timed."""


class HostClock:
    sample_ns = 20_000
    smallest_batch = 1
    most_calls = 20_000

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        run()
        nanoseconds: list[float] = []
        for _ in range(num_samples):
            start = perf_counter_ns()
            run()
            nanoseconds.append(perf_counter_ns() - start)
        return nanoseconds


@dataclass(frozen=True)
class StreamClock:
    """Events resolve 0.5 µs and a graph takes microseconds to launch, so batches must be much longer."""

    sample_ns: int
    smallest_batch: int
    most_calls: int = 20_000

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(num_samples + 1)]  # type: ignore[no-untyped-call]
        run()
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e6 for start, end in pairwise(events)]


class EnqueueClock:
    """Times the host only: the GPU is idle when a batch begins, and its work after the batch is not timed.

    A GPU's queue holds about 1,000 launches; then the host waits for the GPU. Batches stay far below that. The
    number of calls is small, because the GPU executes them too, which takes long for large tensors.
    """

    sample_ns = 0
    smallest_batch = 32
    most_calls = 4096

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        run()
        nanoseconds: list[float] = []
        for _ in range(num_samples):
            torch.cuda.synchronize()
            start = perf_counter_ns()
            run()
            nanoseconds.append(perf_counter_ns() - start)
        torch.cuda.synchronize()
        return nanoseconds


def capture(calls: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Captures what `calls` enqueues on the current stream."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    return graph
