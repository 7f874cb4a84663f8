"""gRPC's asyncio API with messages of plain bytes, without protobuf."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
METHOD = "/benchmark.Echo/Echo"


def payload(content: numpy.ndarray[Any, Any]) -> bytes:
    return content.tobytes()


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, details: Any) -> Any:
        async def echo(request: bytes, _context: Any) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(echo) if details.method == METHOD else None


@asynccontextmanager
async def serving(host: str, _memory: str) -> AsyncIterator[str]:
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers([_Echo()])
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    yield f"{host}:{port}"
    await server.stop(None)


@asynccontextmanager
async def connected(address: str, _memory: str) -> AsyncIterator[Callable[[bytes], Any]]:
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        yield channel.unary_unary(METHOD)
