"""Measures how much of the buckets' communication ran during the backward pass, from a trace written by AXON_TRACE.

DDP starts the last bucket when the last gradient is ready, so the backward pass computes until then. The part of an
all_reduce before the beginning of the last one ran during the backward pass.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DEADLINE_S = 5.0  # the engine's background thread writes every 10 ms
_WAIT_S = 0.01


@dataclass(frozen=True)
class Span:
    begin_us: float  # since 1970
    end_us: float


@dataclass(frozen=True)
class Timeline:
    """Means over the steps, of rank 0."""

    buckets: float
    ended_beside_backward: float  # buckets that had finished before the last one left
    in_flight_us: float  # of all buckets, summed
    beside_backward_us: float


def read_all_reduces(path: Path, not_before_us: float) -> list[Span]:
    """Returns the all_reduces that began since, from call to end. Waits until all that have begun have ended."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        begun, spans = _parse(path, not_before_us)
        if spans and not begun:
            return spans
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path}: {len(begun)} all_reduces without an end, {len(spans)} with one")
        time.sleep(_WAIT_S)


def timeline_of(all_reduces: Sequence[Span], backwards: Sequence[Span]) -> Timeline:
    """Summarises the all_reduces that began in one of the backward passes, which end when DDP has waited for all."""
    steps = [[each for each in all_reduces if pass_.begin_us <= each.begin_us <= pass_.end_us] for pass_ in backwards]
    ended, in_flight, beside = 0, 0.0, 0.0
    for step in filter(None, steps):
        last = max(each.begin_us for each in step)
        ended += sum(each.end_us <= last for each in step)
        in_flight += sum(each.end_us - each.begin_us for each in step)
        beside += sum(min(each.end_us, last) - each.begin_us for each in step)
    num_steps = max(1, len(steps))
    return Timeline(sum(map(len, steps)) / num_steps, ended / num_steps, in_flight / num_steps, beside / num_steps)


def _parse(path: Path, not_before_us: float) -> tuple[dict[tuple[int, int], float], list[Span]]:
    """Returns the beginnings without an end yet, and the spans."""
    begun: dict[tuple[int, int], float] = {}
    spans: list[Span] = []
    for event in _events(path):
        if event["name"] != "all_reduce" or event["ts"] < not_before_us:
            continue
        key = (event["tid"], event["id"])
        if event["ph"] == "b":
            begun[key] = event["ts"]
        elif event["ph"] == "e" and key in begun:
            spans.append(Span(begun.pop(key), event["ts"]))
    return begun, spans


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Returns one event per line; the last line may be incomplete."""
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        if line.startswith("{"):
            yield json.loads(line.rstrip(","))
