"""Measures what a process holds, such as memory, and whether that grows."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Summarises what a process held over some rounds: min, max or a median.
Summary = Callable[[list[int]], float]


def memory_kib(*names: str) -> list[int]:
    """Returns values of /proc/self/status by name, in KiB."""
    gc.collect()
    # glibc caches freed memory in the heaps of many threads; that memory does not count
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(status[name].split()[0]) for name in names]


def growth(
    history: Sequence[Mapping[str, int]], summaries: Mapping[str, Summary], otherwise: Summary
) -> dict[str, int]:
    """Returns the growth from the second third of the rounds to the last third.

    In the first third, pools fill. The growth over a single round is 0.
    """
    third = max(1, len(history) // 3)
    parts = history[-2 * third : -third] or history, history[-third:]
    grown = {}
    for name in history[0]:
        sum_up = summaries.get(name, otherwise)
        early, late = ([each[name] for each in part] for part in parts)
        grown[name] = round(sum_up(late) - sum_up(early))
    return grown
