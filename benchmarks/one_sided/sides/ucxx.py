"""UCXX's tagged messages, in its default progress mode (or that of UCXPY_PROGRESS_MODE).

Its Python API has no put and no get. So the owner's program takes part: it receives each write in place and answers
it, and it sends what the initiator asks for. The tag is the number of the operation in its window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import numpy
import torch
import ucxx
from cases import FRESH, NOTIFICATION, NOTIFIED_WRITE, READ, WRITE, Case, CaseError
from ends import Initiator as InitiatorEnd
from ends import Owner as OwnerEnd

Operation = Callable[[int], Coroutine[Any, Any, None]]


def _message() -> numpy.ndarray[Any, Any]:
    return numpy.zeros(1, dtype=numpy.uint8)


async def _window(operation: Operation, in_flight: int) -> None:
    if in_flight == 1:
        await operation(0)
    else:
        await asyncio.gather(*(operation(index) for index in range(in_flight)))


class Owner(OwnerEnd):
    def __init__(self, num_bytes: int, kind: str, host: str) -> None:
        super().__init__(num_bytes, kind)
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._listen(host))

    async def _listen(self, host: str) -> None:
        self._endpoint: asyncio.Future[Any] = self._loop.create_future()
        self._ended = asyncio.Event()

        async def accept(endpoint: Any) -> None:
            self._endpoint.set_result(endpoint)
            await self._ended.wait()  # its return would close the endpoint

        self._listener = ucxx.create_listener(accept)
        self.address = (host, self._listener.port)

    def meet(self, control: Connection) -> None:
        self._loop.run_until_complete(self._endpoint)

    def serve(self, case: Case, num_windows: int) -> None:
        self._loop.run_until_complete(self._serve(case, num_windows))

    async def _serve(self, case: Case, num_windows: int) -> None:
        endpoint = self._endpoint.result()
        parts = _parts(self.parts_of(case), case)

        async def take(index: int) -> None:
            await endpoint.recv(parts[index], tag=index)
            await endpoint.send(_message(), tag=index)

        async def give(index: int) -> None:
            await endpoint.recv(_message(), tag=index)
            await endpoint.send(parts[index], tag=index)

        for _ in range(num_windows):
            await _window(give if case.is_read else take, case.in_flight)


class Initiator(InitiatorEnd):
    def __init__(self, num_bytes: int, kind: str, owner: Any) -> None:
        super().__init__(num_bytes, kind)
        self._loop = asyncio.new_event_loop()
        self._endpoint = self._loop.run_until_complete(self._connect(*owner))

    async def _connect(self, host: str, port: int) -> Any:
        return await ucxx.create_endpoint(host, port)

    def prepare(self, case: Case) -> Callable[[], None]:
        if case.op not in (WRITE, READ, NOTIFICATION, NOTIFIED_WRITE):
            raise CaseError("a message carries one block")
        return lambda: None  # windows are coroutines

    def windows(self, case: Case, count: int) -> list[float]:
        return self._loop.run_until_complete(self._windows(case, count))

    async def _windows(self, case: Case, count: int) -> list[float]:
        times = []
        self.place(case)
        for number in range(count):
            if number > 0 and case.buffers == FRESH:
                self.place(case)
            parts = _parts(self.buffers, case)
            began = perf_counter()
            await _window(self._operation(parts, case), case.in_flight)
            times.append(perf_counter() - began)
        return times

    def _operation(self, parts: list[Any], case: Case) -> Operation:
        endpoint = self._endpoint

        async def put(index: int) -> None:
            await endpoint.send(parts[index], tag=index)
            await endpoint.recv(_message(), tag=index)

        async def get(index: int) -> None:
            await endpoint.send(_message(), tag=index)
            await endpoint.recv(parts[index], tag=index)

        return get if case.is_read else put


def _parts(tensors: list[torch.Tensor], case: Case) -> list[Any]:
    """Returns what carries the data: UCXX takes arrays of NumPy, or whatever has CUDA's array interface."""
    if not case.moves_data:
        return [_message()]
    return [tensor if tensor.is_cuda else tensor.numpy() for tensor in tensors]
