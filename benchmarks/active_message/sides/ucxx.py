"""UCXX's active messages between two endpoints, in its default progress mode (or that of UCXPY_PROGRESS_MODE).

Its messages carry no header in Python, so what returns is the echo of some call, not necessarily of this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy
import ucxx

ECHOES_AT_A_TIME = 32


def payload(content: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    return content


def device_payload(content: numpy.ndarray[Any, Any]) -> Any:
    import rmm

    return rmm.DeviceBuffer.to_device(content.tobytes())


def _placed(come: Any, memory: str) -> Any:
    """Moves the data to its memory: small messages are always received on the host."""
    if memory == "host" or hasattr(come, "__cuda_array_interface__"):
        return come
    return device_payload(numpy.asarray(come))


@asynccontextmanager
async def serving(host: str, memory: str) -> AsyncIterator[Any]:
    tasks: set[asyncio.Task[None]] = set()

    async def echo(endpoint: Any) -> None:
        async def repeat() -> None:
            while True:
                await endpoint.am_send(_placed(await endpoint.am_recv(), memory))

        tasks.update(asyncio.create_task(repeat()) for _ in range(ECHOES_AT_A_TIME))
        await asyncio.gather(*tasks, return_exceptions=True)

    listener = ucxx.create_listener(echo)
    yield (host, listener.port)
    for task in tasks:
        task.cancel()
    listener.close()


@asynccontextmanager
async def connected(address: Any, memory: str) -> AsyncIterator[Callable[[Any], Awaitable[Any]]]:
    endpoint = await ucxx.create_endpoint(*address)

    async def call(content: Any) -> Any:
        await endpoint.am_send(content)
        return _placed(await endpoint.am_recv(), memory)

    yield call
    await endpoint.close()
