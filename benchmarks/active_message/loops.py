"""The loops that time calls: one after the other or a fixed number in flight, awaited or waited for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol


class Future(Protocol):
    def wait(self) -> Any: ...


@dataclass(frozen=True)
class Sample:
    """Results of one sample round; the times of single calls if one is in flight."""

    num_calls: int
    seconds: float
    times_ns: list[int]


def nothing() -> None:
    pass


async def await_calls(
    call: Callable[[Any], Awaitable[Any]],
    payload: Any,
    num_calls: int,
    in_flight: int,
    synchronize: Callable[[], None] = nothing,
) -> Sample:
    """`synchronize` waits until received data is present, if that arrives in the order of a stream."""
    times: list[int] = []
    began = perf_counter_ns()
    if in_flight == 1:
        for _ in range(num_calls):
            started = perf_counter_ns()
            await call(payload)
            synchronize()
            times.append(perf_counter_ns() - started)
    else:
        left = num_calls

        async def keep_calling() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await call(payload)

        await asyncio.gather(*(keep_calling() for _ in range(in_flight)))
        synchronize()
    return Sample(num_calls, (perf_counter_ns() - began) / 1e9, times)


def wait_for_calls(
    start: Callable[[Any], Future],
    payload: Any,
    num_calls: int,
    in_flight: int,
    synchronize: Callable[[], None] = nothing,
) -> Sample:
    times: list[int] = []
    began = perf_counter_ns()
    if in_flight == 1:
        for _ in range(num_calls):
            started = perf_counter_ns()
            start(payload).wait()
            synchronize()
            times.append(perf_counter_ns() - started)
    else:
        flying: deque[Future] = deque()
        for _ in range(num_calls):
            if len(flying) == in_flight:
                flying.popleft().wait()
            flying.append(start(payload))
        for future in flying:
            future.wait()
        synchronize()
    return Sample(num_calls, (perf_counter_ns() - began) / 1e9, times)
