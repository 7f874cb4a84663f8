"""What the benchmarks of one-sided transfers share: how sizes are written, and how an operation is timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FEWEST, _MOST = 3, 200


def num_bytes_of(size: str) -> int:
    """Returns the bytes of a text such as "64K"."""
    return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)


def blocks_of(text: str) -> tuple[int, int]:
    """Returns the number of blocks and the bytes of each, of a text such as "32768x4K"."""
    count, size = text.split("x")
    return int(count), num_bytes_of(size)


def median_seconds(operation: Callable[[], object], num_bytes: int, bytes_per_round: int) -> float:
    """Returns the median time of an operation that moves `num_bytes`, after one that is not timed.

    It is repeated until it has moved `bytes_per_round`, but at least 3 and at most 200 times.
    """
    times = []
    operation()
    for _ in range(max(_FEWEST, min(_MOST, bytes_per_round // max(num_bytes, 1)))):
        began = time.perf_counter()
        operation()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
