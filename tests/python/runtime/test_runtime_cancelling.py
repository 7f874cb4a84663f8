"""Calls are cancelled at the moment of their answer: they end either way, and the process goes on."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from contextlib import ExitStack

import pytest
import torch

from support.runtime_clients import Server
from torch_axon.runtime import Future, Peer, Runtime

NUM_CALLS = 20_000


def outcome(future: Future) -> str:
    """Returns the outcome of a call that has ended."""
    assert future.done()
    error = future.exception()
    assert error is None or isinstance(error, CancelledError)
    assert future.cancelled() == (error is not None)
    return "answered" if error is None else "cancelled"


def test_cancels_race_with_their_answers(peer: Peer) -> None:
    for number in range(NUM_CALLS):
        future = peer.invoke("echo", number)
        assert future.cancel() == (outcome(future) == "cancelled")


@pytest.mark.parametrize("size", [10, 20_000])
def test_cancels_of_many_at_a_time_race_with_their_answers(peer: Peer, size: int) -> None:
    tensor = torch.ones(size)
    for _ in range(NUM_CALLS // 64):
        futures = [peer.invoke("echo", tensor) for _ in range(32)]
        futures[0].result()
        for future in futures:
            future.cancel()
        assert {outcome(future) for future in futures} <= {"answered", "cancelled"}


def test_another_thread_cancels(peer: Peer) -> None:
    flying: deque[Future] = deque(maxlen=64)
    is_over = threading.Event()

    def cancel() -> None:
        while not is_over.is_set():
            if flying:
                flying[random.randrange(len(flying))].cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        for number in range(300):
            flying.append(peer.invoke("echo", number))
            error = flying[-1].exception()
            assert error is None or isinstance(error, CancelledError)
    finally:
        is_over.set()
        thread.join()


def test_waiting_with_a_limit_near_the_time_of_an_answer(peer: Peer) -> None:
    counts = {"answered": 0, "late": 0}

    async def one(number: int) -> None:
        try:
            limit = random.choice([0.0002, 0.001, 0.003])
            assert await asyncio.wait_for(peer.invoke("echo", number), limit) == number
            counts["answered"] += 1
        except asyncio.TimeoutError:
            counts["late"] += 1

    async def main() -> None:
        for start in range(0, NUM_CALLS // 10, 16):
            await asyncio.gather(*(one(start + i) for i in range(16)))

    asyncio.run(main())
    assert sum(counts.values()) >= NUM_CALLS // 10


def test_tasks_are_cancelled_while_their_calls_are_answered(peer: Peer) -> None:
    async def call(number: int) -> object:
        return await peer.invoke("echo", number)

    async def main() -> None:
        for _ in range(NUM_CALLS // 100):
            tasks = [asyncio.create_task(call(number)) for number in range(32)]
            for _ in range(random.randrange(8)):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            for number, result in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                assert result == number or isinstance(result, asyncio.CancelledError)

    asyncio.run(main())


def test_loops_end_with_calls_under_way(server: Server) -> None:
    tasks: list[asyncio.Future[None]] = []

    async def main(peer: Peer) -> None:
        for number in range(8):
            tasks.append(asyncio.ensure_future(forget(peer, number)))
        await asyncio.sleep(0)

    async def forget(peer: Peer, number: int) -> None:
        await peer.invoke("echo", number)

    with Runtime("client") as runtime, runtime.connect(server.address) as peer:
        for _ in range(200):
            asyncio.run(main(peer))
        assert peer.invoke("echo", 5).result() == 5


def test_readers_that_are_cancelled_while_their_peer_closes_leave_no_connection() -> None:
    async def read(peer: Peer) -> None:
        async for _ in peer.iterate("numbers", ahead=4):
            pass

    async def session(client: Runtime, address: bytes) -> None:
        peer = client.connect(address)
        reader = asyncio.create_task(read(peer))
        assert await peer.invoke("echo", 1) == 1
        reader.cancel()
        await peer.aclose(drain=False)
        with pytest.raises(asyncio.CancelledError):
            await reader

    async def main(clients: list[Runtime], address: bytes) -> None:
        for _ in range(5):
            await asyncio.gather(*(session(client, address) for client in clients))

    with Runtime("server") as server, ExitStack() as stack:
        clients = [stack.enter_context(Runtime("client")) for _ in range(10)]
        server.register("echo")(lambda value: value)

        @server.register
        async def numbers() -> AsyncIterator[int]:
            number = 0
            while True:
                yield number
                number += 1

        asyncio.run(main(clients, server.address))
        assert all(client.num_connections == 0 for client in clients)
        probe = clients[0].connect(server.address)
        while server.num_connections > 1:  # until the server has received it
            assert probe.invoke("echo", 1).result() == 1
