"""Generators, mailboxes and publishing: streams of messages that are held back by who takes them."""

from __future__ import annotations

import asyncio

import pytest
import torch
from runtime_clients import Server

from torch_axon.runtime import Peer, Runtime, publish


@pytest.mark.parametrize("function", ["numbers", "executor_numbers"])
def test_generators_answer_one_after_the_other(peer: Peer, function: str) -> None:
    values = list(peer.iterate(function, 50))
    assert len(values) == 50
    assert all(torch.equal(value, torch.full((i % 3 * 20_000,), i)) for i, value in enumerate(values))
    with pytest.raises(ValueError, match="only three"):
        list(peer.iterate(function, 3))
    with pytest.raises(TypeError):
        list(peer.iterate(function))
    assert list(peer.iterate(function, 0)) == []


def test_asynchronous_generators(peer: Peer) -> None:
    async def main() -> None:
        assert [value async for value in peer.iterate("async_numbers", 40)] == list(range(40))
        async for value in peer.iterate("numbers", 5):
            assert value.numel() % 20_000 == 0

    asyncio.run(main())
    assert list(peer.iterate("async_numbers", 7, ahead=1)) == list(range(7))
    with pytest.raises(ValueError, match="ahead is 0; allowed: 1 or more"):
        peer.iterate("numbers", 1, ahead=0)


def test_generators_are_held_back_and_closed(peer: Peer) -> None:
    made, closed = peer.invoke("made").result()
    with peer.iterate("numbers", 1000, ahead=3) as values:
        assert next(values).numel() == 0
        assert peer.invoke("made").result()[0] - made <= 4
    while peer.invoke("made").result()[1] == closed:
        pass
    assert len(list(values)) <= 4  # what had come by then


def test_mailboxes_keep_order_and_hold_back(peer: Peer) -> None:
    sent = [peer.send("news", torch.full((i % 4 * 30_000,), i)) for i in range(20)]
    for future in sent[:4]:
        assert future.result() is None
    while peer.invoke("probe").result() < 20:
        pass
    assert not any(future.done() for future in sent[4:])  # no more than fit have been accepted
    for i in range(20):
        assert torch.equal(
            peer.invoke("read" if i % 2 else "receive", *([5] * (i % 2))).result(), torch.full((i % 4 * 30_000,), i)
        )
    assert [future.result() for future in sent] == [None] * 20
    with pytest.raises(TimeoutError, match=r"no message has come within 0\.01 s"):
        peer.invoke("read", 0.01).result()
    waiting = peer.invoke("receive")
    peer.send("news", "at last").result()
    assert waiting.result() == "at last"
    with pytest.raises(LookupError, match="there is no mailbox 'absent'"):
        peer.send("absent", 1).result()


def test_messages_that_never_left_hold_nobody_up(peer: Peer) -> None:
    blocking = [peer.invoke("wait_for_word") for _ in range(1024)]  # all places are taken
    lost = peer.send("news", "late", timeout=0.05)
    with pytest.raises(TimeoutError):
        lost.result()
    behind = peer.send("news", "in time")
    for call in blocking:
        call.cancel()
    behind.result()
    assert peer.invoke("read", 30).result() == "in time"


def test_publishing_reaches_all_peers(server: Server, runtime: Runtime, peer: Peer) -> None:
    other = runtime.connect(server.address)
    for future in publish([peer, other], "greet", "everybody"):
        assert future.result() is None
    while peer.invoke("greeted").result().count("everybody") < 2:
        pass
