"""Callbacks for peers that connect and for peers that are lost."""

from __future__ import annotations

import asyncio
import logging
import queue
import signal
import threading
from typing import Any

import pytest

from support.runtime_clients import Server
from torch_axon.runtime import Peer, PeerLostError, Runtime, RuntimeClosedError, current_call

DEADLINE_S = 60


class Events:
    """What the callbacks of a runtime were told, in order."""

    def __init__(self, runtime: Runtime) -> None:
        self._told: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        thread = f"axon-runtime {runtime.name}"

        def put(*event: object) -> None:
            assert threading.current_thread().name == thread
            self._told.put(event)

        runtime.on_peer_connected(lambda peer: put("connected", peer))
        runtime.on_peer_lost(lambda peer, error: put("lost", peer, error))

    def next(self) -> tuple[Any, ...]:
        return self._told.get(timeout=DEADLINE_S)

    def expect_connected(self) -> Peer:
        kind, peer = self.next()
        assert kind == "connected"
        assert isinstance(peer, Peer)
        return peer

    def expect_lost(self, of: Peer, error: type[BaseException], text: str) -> None:
        kind, peer, reason = self.next()
        assert (kind, type(reason)) == ("lost", error)
        assert peer is of
        assert text in str(reason)
        assert str(reason) == peer.failure

    def expect_none(self) -> None:
        assert self._told.empty()


def test_both_ends_learn_of_each_connection_and_of_its_end() -> None:
    with Runtime("server") as server, Runtime("client") as client:
        here, there = Events(client), Events(server)
        for _ in range(3):
            peer = client.connect(server.address)
            assert client.connect(server.address) is peer
            assert here.expect_connected() is peer
            accepted = there.expect_connected()
            assert (accepted.name, accepted.incarnation) == ("client", client.incarnation)
            peer.close()
            here.expect_lost(peer, RuntimeClosedError, "peer 'server' was closed here")
            there.expect_lost(accepted, PeerLostError, "'client' has closed the connection")
        peer = client.connect(server.address)
        accepted = there.expect_connected()
        server.close()
        there.expect_lost(accepted, RuntimeClosedError, "'server'")
        assert here.expect_connected() is peer
        here.expect_lost(peer, PeerLostError, "'server'")
        client.close()
        here.expect_none()
        there.expect_none()


def test_closing_a_runtime_loses_its_peers() -> None:
    with Runtime("server") as server:
        client = Runtime("client")
        events = Events(client)
        peer = client.connect(server.address)
        client.close()
        assert events.expect_connected() is peer
        events.expect_lost(peer, RuntimeClosedError, "the runtime 'client' is closed")
        events.expect_none()


@pytest.mark.parametrize("progress", ["adaptive", "block"])
def test_a_process_that_is_killed_is_missed_by_an_idle_runtime(progress: str) -> None:
    with Runtime("client", progress=progress) as client:
        events = Events(client)
        server = Server()
        peer = client.connect(server.address)
        assert events.expect_connected() is peer
        server.process.send_signal(signal.SIGKILL)
        server.process.communicate()
        events.expect_lost(peer, PeerLostError, "'server' is gone: its process")
        events.expect_none()


def test_a_peer_is_announced_before_it_calls() -> None:
    met: set[Peer] = set()
    with Runtime("server") as server, Runtime("client") as client:
        server.on_peer_connected(met.add)
        server.register("is_known")(lambda: current_call().peer in met)  # type: ignore[union-attr]
        for _ in range(50):
            with client.connect(server.address) as peer:
                assert peer.invoke("is_known").result(DEADLINE_S)
        assert len(met) == 50


def test_a_removed_callback_is_not_called_and_the_others_are() -> None:
    told: list[str] = []
    with Runtime("server") as server, Runtime("client") as client:
        lost = threading.Event()
        first = client.on_peer_connected(lambda _: told.append("first"))
        client.on_peer_connected(lambda _: told.append("second"))
        removed = client.on_peer_lost(lambda *_: told.append("removed"))
        first.remove()
        first.remove()
        client.on_peer_lost(lambda *_: later.remove())
        later = client.on_peer_lost(lambda *_: told.append("later"))
        removed.remove()
        client.on_peer_lost(lambda *_: lost.set())
        with client.connect(server.address):
            pass
        assert lost.wait(DEADLINE_S)
        assert told == ["second"]


def test_exceptions_of_callbacks_are_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: object) -> None:
        raise ValueError("of a callback")

    with Runtime("server") as server, Runtime("client") as client:
        client.on_peer_connected(fails)
        client.on_peer_lost(fails)
        events = Events(client)
        with caplog.at_level(logging.ERROR, "torch_axon.runtime"):
            client.connect(server.address).close()
            events.expect_lost(events.expect_connected(), RuntimeClosedError, "closed here")
        assert [record.getMessage() for record in caplog.records] == [
            "a callback of runtime 'client' for peer 'server' raised an exception"
        ] * 2
        assert all("of a callback" in str(record.exc_info) for record in caplog.records)


def test_callbacks_may_use_the_runtime() -> None:
    """They hold no lock that another thread needs, and may close their runtime."""
    with Runtime("server") as server, Runtime("client") as client:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        server.register("echo")(lambda value: value)

        def greet(peer: Peer) -> None:
            client.on_peer_lost(lambda *_: None).remove()
            client.on_peer_lost(lambda peer, _: client.close(drain=False))
            peer.invoke("echo", 1).add_done_callback(lambda future: answers.put(future.result()))
            answers.put(client.num_connections)

        client.on_peer_connected(greet)
        peer = client.connect(server.address)
        assert [answers.get(timeout=DEADLINE_S) for _ in range(2)] == [1, 1]
        ends = threading.Event()
        client.on_peer_lost(lambda *_: ends.set())
        peer.close()
        assert ends.wait(DEADLINE_S)
        with pytest.raises(RuntimeClosedError, match="the runtime 'client' is closed"):
            client.connect(server.address)


def test_a_loop_learns_of_peers() -> None:
    async def main(server: Runtime, client: Runtime) -> None:
        loop, lost = asyncio.get_running_loop(), asyncio.Event()
        client.on_peer_lost(lambda *_: loop.call_soon_threadsafe(lost.set))
        peer = await client.aconnect(server.address)
        assert not lost.is_set()
        await peer.aclose()
        await asyncio.wait_for(lost.wait(), DEADLINE_S)

    with Runtime("server") as server, Runtime("client") as client:
        asyncio.run(main(server, client))
