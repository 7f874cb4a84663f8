"""Of what a process holds: its memory, and whether it holds more and more."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Of what some rounds have held: min, max, a median.
Summary = Callable[[list[int]], float]


def memory_kib(*names: str) -> list[int]:
    """By their names in /proc/self/status."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free, but kept for later in heaps of many threads, is not held
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(status[name].split()[0]) for name in names]


def growth(
    history: Sequence[Mapping[str, int]], summaries: Mapping[str, Summary], otherwise: Summary
) -> dict[str, int]:
    """From the second third of the rounds to the last: in the first, pools fill. A single round has not grown."""
    third = max(1, len(history) // 3)
    parts = history[-2 * third : -third] or history, history[-third:]
    grown = {}
    for name in history[0]:
        sum_up = summaries.get(name, otherwise)
        early, late = ([each[name] for each in part] for part in parts)
        grown[name] = round(sum_up(late) - sum_up(early))
    return grown
