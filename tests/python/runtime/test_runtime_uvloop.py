"""Calls on uvloop's event loop in place of asyncio's: awaited, served, streamed, cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import torch
import uvloop

from torch_axon.runtime import Peer, Runtime

DEADLINE_S = 60


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(main(), DEADLINE_S))
    finally:
        loop.close()


def test_calls_are_awaited(peer: Peer) -> None:
    async def main() -> None:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        assert await peer.invoke("echo", 1) == 1
        large = torch.arange(300_000)
        came = await asyncio.gather(*(peer.invoke("echo", i, large) for i in range(300)))
        assert all(number == i and torch.equal(tensor, large) for i, (number, tensor) in enumerate(came))
        with pytest.raises(ValueError, match="not"):
            await peer.invoke("fails", "value")

    run(main)
    run(main)  # another loop


def test_calls_are_given_up(peer: Peer) -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(peer.invoke("never"), 0.05)
        task = asyncio.ensure_future(_value_of(peer))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)
    assert peer.invoke("was_cancelled", 30).result()


async def _value_of(peer: Peer) -> object:
    return await peer.invoke("never")


def test_functions_generators_and_mailboxes_are_served() -> None:
    async def main() -> None:
        with Runtime("server") as server, Runtime("client") as client:

            @server.register
            async def where() -> str:
                return type(asyncio.get_running_loop()).__module__

            @server.register
            async def numbers(count: int) -> AsyncIterator[torch.Tensor]:
                for i in range(count):
                    await asyncio.sleep(0)
                    yield torch.full((20_000,), i)

            inbox = server.mailbox("news", capacity=2)
            peer = client.connect(server.address)
            assert (await peer.invoke("where")).startswith("uvloop")
            assert [int(value[0]) async for value in peer.iterate("numbers", 30)] == list(range(30))
            sent = [peer.send("news", number) for number in range(20)]
            assert [await inbox.receive() for _ in sent] == list(range(20))
            assert await asyncio.gather(*sent) == [None] * 20

    run(main)
