"""Two kinds of continuous work with marks on their streams: matrix products, and calls of an operation."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from torch_axon.bench.measure import Trial


def mark(stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def times_us(origin: torch.cuda.Event, marks: Sequence[torch.cuda.Event]) -> list[float]:
    """Waits for the GPU and returns when it reached each mark."""
    torch.cuda.synchronize()
    return [origin.elapsed_time(each) * 1e3 for each in marks]


def period(times: Sequence[float], begin: float, end: float) -> float:
    """Returns the time per mark between two instants, counting fractions; infinite if the interval is empty."""
    begin, end = max(begin, times[0]), min(end, times[-1])
    if begin >= end:
        return math.inf
    return (end - begin) / (_position(times, end) - _position(times, begin))


def _position(times: Sequence[float], instant: float) -> float:
    """Returns how many marks were passed by an instant between times[0] and times[-1]."""
    if instant >= times[-1]:
        return len(times) - 1
    index = bisect_right(times, instant)
    return index - 1 + (instant - times[index - 1]) / (times[index] - times[index - 1])


class Product:
    """bfloat16 matrices and their product. Values are random, because zeros take less power and hence less time."""

    def __init__(self, size: int):
        self._left, self._right = (torch.randn(size, size, dtype=torch.bfloat16) for _ in range(2))
        self._result = torch.empty_like(self._left)

    def enqueue(self, num_products: int) -> list[torch.cuda.Event]:
        """Enqueues products on the current stream with a mark after each, and one mark before the first."""
        self._multiply()
        marks = [mark()]
        for _ in range(num_products):
            self._multiply()
            marks.append(mark())
        return marks

    def heat(self, seconds: float) -> None:
        """Warms the GPU up, because its clock depends on its temperature."""
        end = perf_counter() + seconds
        while perf_counter() < end:
            self.enqueue(8)
            torch.cuda.synchronize()

    def _multiply(self) -> None:
        torch.mm(self._left, self._right, out=self._result)


@dataclass(frozen=True)
class Streams:
    """Streams for starting and timing calls, so that calls wait neither for the product nor for marks."""

    feeder: torch.cuda.Stream
    observer: torch.cuda.Stream

    @staticmethod
    def open() -> "Streams":
        return Streams(torch.cuda.Stream(), torch.cuda.Stream())  # type: ignore[no-untyped-call]


@dataclass
class Calls:
    """Asynchronous calls of a contender, on its own stream or, if it has none, on the feeder."""

    trial: Trial
    streams: Streams
    calls_a_mark: int = 1

    def enqueue(self, num_marks: int) -> list[torch.cuda.Event]:
        return [self._enqueue_to_mark() for _ in range(num_marks)]

    def _enqueue_to_mark(self) -> torch.cuda.Event:
        feeder, observer = self.streams.feeder, self.streams.observer
        with torch.cuda.stream(feeder):
            works = self.trial.enqueue(self.calls_a_mark)
        observer.wait_stream(feeder)
        with torch.cuda.stream(observer):
            for work in works:
                work.wait()
            return mark(observer)
