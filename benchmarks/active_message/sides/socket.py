"""A plain asyncio stream: a call's number and length precede its bytes, and answers may arrive in any order."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy

HEADER = struct.Struct("<QQ")
BUFFER_NUM_BYTES = 1 << 22


def payload(content: numpy.ndarray[Any, Any]) -> Any:
    return memoryview(content)


@asynccontextmanager
async def serving(host: str, _memory: str) -> AsyncIterator[Any]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                header = await reader.readexactly(HEADER.size)
                content = await reader.readexactly(HEADER.unpack(header)[1])
                writer.write(header)
                writer.write(content)
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(echo, host, 0, limit=BUFFER_NUM_BYTES)
    yield server.sockets[0].getsockname()
    server.close()


@asynccontextmanager
async def connected(address: Any, _memory: str) -> AsyncIterator[Callable[[Any], Awaitable[bytes]]]:
    reader, writer = await asyncio.open_connection(*address, limit=BUFFER_NUM_BYTES)
    waiting: dict[int, asyncio.Future[bytes]] = {}
    numbers = itertools.count()

    async def receive() -> None:
        while True:
            number, num_bytes = HEADER.unpack(await reader.readexactly(HEADER.size))
            waiting.pop(number).set_result(await reader.readexactly(num_bytes))

    async def call(content: Any) -> bytes:
        number = next(numbers)
        waiting[number] = future = asyncio.get_running_loop().create_future()
        writer.write(HEADER.pack(number, len(content)))
        writer.write(content)
        await writer.drain()
        return await future

    receiving = asyncio.create_task(receive())
    yield call
    receiving.cancel()
    writer.close()
