"""One end of a side, a process of its own: `worker.py SIDE MEMORY serve HOST`, or `worker.py SIDE MEMORY call ADDRESS`.

Reports in JSON lines on stdout: its address, or that it is connected and then its measurements. Ends with its stdin.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable
from statistics import quantiles
from typing import Any

import numpy
from loops import Sample, await_calls, nothing, wait_for_calls

SECONDS_TO_WARM = 0.05
MOST_CALLS = 200_000


class Client:
    """Calls of one side, of any size."""

    def __init__(self, side: Any, memory: str, start: Callable[[Any], Any]) -> None:
        self._payload_of = side.payload if memory == "host" else side.device_payload
        self._start = start
        self._synchronize = getattr(side, "synchronize", nothing) if memory == "cuda" else nothing
        self._waits = getattr(side, "WAITS", False)
        self._payloads: dict[int, Any] = {}

    async def measure(self, num_bytes: int, in_flight: int, seconds: float) -> dict[str, Any]:
        payload = self._payload(num_bytes)
        num_calls = in_flight
        while (sample := await self._run(payload, num_calls, in_flight)).seconds < SECONDS_TO_WARM:
            num_calls = min(MOST_CALLS, 2 * num_calls)
        wanted = round(sample.num_calls * seconds / sample.seconds)
        sample = await self._run(payload, max(in_flight, 2, min(MOST_CALLS, wanted)), in_flight)
        times = [time / 1e3 for time in sample.times_ns]
        cuts = quantiles(times, n=100) if times else None
        return {
            "calls": sample.num_calls,
            "calls_per_s": sample.num_calls / sample.seconds,
            "p50_us": cuts[49] if cuts else None,
            "p99_us": cuts[98] if cuts else None,
        }

    async def check(self, num_bytes: int) -> None:
        payload = self._payload(num_bytes)
        result = self._start(payload)
        echoed = result.wait() if self._waits else await result
        if not numpy.array_equal(_as_array(echoed), _as_array(payload)):
            raise ValueError(f"{num_bytes} bytes returned with other content")

    async def _run(self, payload: Any, num_calls: int, in_flight: int) -> Sample:
        if self._waits:
            return wait_for_calls(self._start, payload, num_calls, in_flight, self._synchronize)
        return await await_calls(self._start, payload, num_calls, in_flight, self._synchronize)

    def _payload(self, num_bytes: int) -> Any:
        if num_bytes not in self._payloads:
            content = numpy.random.default_rng(num_bytes).integers(0, 256, num_bytes, dtype=numpy.uint8)
            self._payloads = {num_bytes: self._payload_of(content)}
        return self._payloads[num_bytes]


def _as_array(result: Any) -> numpy.ndarray[Any, Any]:
    if isinstance(result, bytes):
        return numpy.frombuffer(result, numpy.uint8)
    for to_host in ("cpu", "copy_to_host"):  # torch's and RMM's names
        if hasattr(result, to_host):
            result = getattr(result, to_host)()
    return numpy.asarray(result)


def say(**words: Any) -> None:
    os.write(_STDOUT, (json.dumps(words) + "\n").encode())


async def serve(side: Any, memory: str, host: str) -> None:
    async with side.serving(host, memory) as address:
        say(address=address)
        await asyncio.to_thread(sys.stdin.read)


async def call(side: Any, memory: str, address: Any) -> None:
    async with side.connected(address, memory) as start:
        client = Client(side, memory, start)
        for num_bytes in (8, 1 << 20):  # before both ends are stopped: some connect only after the first calls
            await client.check(num_bytes)
        say(connected=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            await client.check(command["num_bytes"])
            say(**await client.measure(**command))


if __name__ == "__main__":
    _STDOUT = os.dup(1)
    os.dup2(2, 1)  # redirects any other output
    name, memory, role, argument = sys.argv[1:]
    module = importlib.import_module(f"sides.{name}")
    work = serve(module, memory, argument) if role == "serve" else call(module, memory, json.loads(argument))
    asyncio.run(work)
