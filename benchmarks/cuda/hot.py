"""Times of calls that multiply matrices, comparable between sides: a GPU's clock depends on its earlier work.

Each side's calls follow half a second of plain products, the order of the sides alternates, and figures are medians
over the blocks, of the slowest rank.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from torch_axon.bench.clock import StreamClock
from torch_axon.bench.contenders import Control

Key = TypeVar("Key", bound=Hashable)

NUM_WARM_CALLS = 3
FEWEST_CALLS, MOST_CALLS = 5, 200  # per block


@dataclass(frozen=True)
class Schedule:
    blocks: int
    seconds: float
    heat: float


def add_schedule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=3, help="blocks of each side")
    parser.add_argument("--seconds", type=float, default=0.15, help="length of a side's calls in a block")
    parser.add_argument("--heat", type=float, default=0.5, help="seconds of plain products before them")


def schedule(arguments: argparse.Namespace) -> Schedule:
    return Schedule(arguments.blocks, arguments.seconds, arguments.heat)


def interleave(
    calls: Mapping[Key, Callable[[], object]], heat: Callable[[], object], schedule: Schedule, control: Control
) -> dict[Key, float]:
    """Returns the microseconds per call of each side."""
    num_heating = _number(heat, schedule.heat, control)
    numbers = {
        side: min(MOST_CALLS, max(FEWEST_CALLS, _number(call, schedule.seconds, control)))
        for side, call in calls.items()
    }
    blocks: dict[Key, list[float]] = {side: [] for side in calls}
    for block in range(schedule.blocks):
        for side in list(calls)[:: 1 if block % 2 == 0 else -1]:
            control.barrier()
            for _ in range(num_heating):
                heat()
            blocks[side].append(_microseconds(calls[side], numbers[side]))
    return {side: median(control.maximum(figures)) for side, figures in blocks.items()}


def _number(call: Callable[[], object], seconds: float, control: Control) -> int:
    """Returns how many calls take this long; the result is the same on all ranks."""
    [slowest] = control.maximum([_microseconds(call, NUM_WARM_CALLS)])
    return round(seconds * 1e6 / slowest) + 1


def _microseconds(call: Callable[[], object], num_calls: int) -> float:
    def run() -> None:
        call()

    return median(StreamClock(0, 1).time(run, num_calls)) / 1e3
