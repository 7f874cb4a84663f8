"""Closing a peer: its effects at both ends, and on all that is open with it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from support.processes import environment
from support.runtime_clients import PROGRAMS, Server
from torch_axon.runtime import Future, Peer, PeerLostError, Runtime, RuntimeClosedError, publish

DEADLINE_S = 60
CLOSED = "peer 'server' was closed here"


@contextmanager
def pair() -> Iterator[tuple[Runtime, Runtime, Peer]]:
    """A server, a client, and the server as the client calls it."""
    with Runtime("server") as server, Runtime("client") as client:

        @server.register
        async def never() -> None:
            await asyncio.Event().wait()

        @server.register
        async def sleepy(seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "awake"

        server.register("echo")(lambda value: value)
        yield server, client, client.connect(server.address)


def expect_closed(peer: Peer, *runtimes: Runtime) -> None:
    with pytest.raises(RuntimeClosedError, match=CLOSED):
        peer.invoke("echo", 1).result(DEADLINE_S)
    assert peer.failure == CLOSED
    await_condition(lambda: all(runtime.num_connections == 0 for runtime in runtimes))


def await_condition(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(DEADLINE_S * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition did not become true in time")


def test_a_peer_is_closed_where_its_block_is_left_and_another_one_takes_its_place() -> None:
    with pair() as (server, client, first):
        first.close()
        with client.connect(server.address) as peer:
            assert peer.invoke("echo", 1).result(DEADLINE_S) == 1
            assert client.num_connections == server.num_connections == 1
            late = peer.invoke("sleepy", 0.05)
        assert late.result() == "awake"
        expect_closed(peer, client, server)
        assert peer.close()  # does nothing
        another = client.connect(server.address)
        assert another is not peer
        assert another.incarnation == peer.incarnation
        assert another.invoke("echo", torch.ones(30_000)).result(DEADLINE_S).sum() == 30_000

        never = another.invoke("never")
        with pytest.raises(KeyError), another:
            raise KeyError("of the block")
        with pytest.raises(RuntimeClosedError, match=CLOSED):  # not waited for
            never.result()


def test_waiters_hear_that_a_peer_is_closed() -> None:
    with pair() as (_, _, peer), ThreadPoolExecutor(2) as threads:
        heard: list[BaseException | None] = []
        told = threading.Event()

        def note(done: Future) -> None:
            heard.append(done.exception())
            told.set()

        async def wait() -> None:
            await peer.invoke("never")

        peer.invoke("never").add_done_callback(note)
        waiting = [threads.submit(peer.invoke("never").result), threads.submit(asyncio.run, wait())]
        closing = threading.Timer(0.05, peer.close, kwargs={"drain": False})
        closing.start()
        for each in waiting:
            with pytest.raises(RuntimeClosedError, match=CLOSED):
                each.result(DEADLINE_S)
        assert told.wait(DEADLINE_S)
        assert isinstance(heard[0], RuntimeClosedError)
        closing.join()


def test_what_is_left_when_the_time_is_up_ends_and_is_cancelled_there() -> None:
    with pair() as (server, _, peer):
        began, cancelled = threading.Event(), threading.Event()

        @server.register
        async def waits() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        call = peer.invoke("waits")
        assert began.wait(DEADLINE_S)
        assert not peer.close(timeout=0.05)
        assert isinstance(call.exception(), RuntimeClosedError)
        assert cancelled.wait(DEADLINE_S)
        assert not peer.close()  # it still has not run


def test_the_other_side_hears_which_side_has_closed() -> None:
    with pair() as (_, client, _), Runtime("third") as third:

        @client.register
        async def never() -> None:
            await asyncio.Event().wait()

        to_client = third.connect(client.address)
        call = to_client.invoke("never")
        (connection,) = [  # the client's connection with the third, which has connected to it
            invocation.connection for _, invocation in await_running(client).values()
        ]
        connection.close(0.0)
        with pytest.raises(PeerLostError, match="'client' has closed the connection"):
            call.result(DEADLINE_S)
        assert to_client.failure == "'client' has closed the connection"
        assert not to_client.close()


def await_running(runtime: Runtime) -> dict[int, tuple[object, object]]:
    """The coroutines that it runs for peers."""
    (on_loop,) = runtime._loops.values()
    await_condition(lambda: len(on_loop._running) == 1)
    return on_loop._running


def test_a_loop_closes_peers_without_being_held_up() -> None:
    with pair() as (server, client, peer):

        async def main() -> None:
            call = peer.invoke("sleepy", 0.1)
            assert not peer.close()  # goes on
            with pytest.raises(RuntimeClosedError, match=CLOSED):
                await peer.invoke("echo", 1)
            assert await call == "awake"
            assert await peer.aclose()
            async with client.connect(server.address) as another:
                late = another.invoke("sleepy", 0.05)
            assert await late == "awake"
            assert await client.connect(server.address).aclose(drain=False)  # nothing is left

        asyncio.run(main())
        expect_closed(peer, client, server)


def test_a_loop_closes_peers_though_its_executor_is_gone() -> None:
    with pair() as (server, client, peer):

        async def main() -> None:
            await asyncio.get_running_loop().shutdown_default_executor()
            late = peer.invoke("sleepy", 0.05)
            assert await peer.aclose()
            assert await late == "awake"
            another = client.connect(server.address)
            never = another.invoke("never")
            assert not await another.aclose(timeout=0.05)
            assert isinstance(never.exception(), RuntimeClosedError)

        asyncio.run(main())
        expect_closed(peer, client, server)


def test_functions_and_callbacks_close_peers_without_waiting_for_themselves() -> None:
    with pair() as (server, client, peer):
        back: list[Peer] = []
        server.register("leave")(lambda: [back[0].close(), "left"])
        client.register("call_back")(lambda: peer.invoke("leave").result(DEADLINE_S))
        back.append(server.connect(client.address))
        # The server's function closes its peer for the client during a call of its own to it.
        under_way = back[0].invoke("call_back")
        assert under_way.result(DEADLINE_S) == [False, "left"]
        with pytest.raises(RuntimeClosedError, match="peer 'client' was closed here"):
            back[0].invoke("call_back").result(DEADLINE_S)

        closed: list[bool] = []
        done = threading.Event()

        def close(_: Future) -> None:
            closed.append(peer.close())
            done.set()

        slow = peer.invoke("sleepy", 0.1)
        peer.invoke("echo", 1).add_done_callback(close)
        assert done.wait(DEADLINE_S)
        assert slow.result(DEADLINE_S) == "awake"
        assert peer.close()
        expect_closed(peer, client, server)


@pytest.mark.parametrize("drain", [True, False])
def test_what_is_open_with_a_peer_ends_with_it(drain: bool) -> None:
    with pair() as (server, client, peer):
        ended = threading.Event()

        @server.register
        def numbers() -> Iterator[int]:
            try:
                yield from itertools.count()
            finally:
                ended.set()

        full = server.mailbox("full", capacity=1)
        own = client.mailbox("own")
        values = peer.iterate("numbers", ahead=2)
        assert next(values) == 0
        sent = [peer.send("full", number) for number in range(3)]
        sent[0].result(DEADLINE_S)
        told = publish([peer], "echo", 1)[0]
        if drain:
            taken = threading.Timer(0.05, lambda: [full.get(DEADLINE_S) for _ in range(2)])
            taken.start()
        assert peer.close(drain=drain) is drain
        assert told.exception(DEADLINE_S) is None or not drain
        assert [each.exception(DEADLINE_S) is None for each in sent[1:]] == [drain, drain]
        assert ended.wait(DEADLINE_S)
        with pytest.raises(RuntimeClosedError, match=CLOSED):
            list(values)
        values.close()
        with pytest.raises(RuntimeClosedError, match=CLOSED):
            peer.send("full", 4).result(DEADLINE_S)
        with pytest.raises(RuntimeClosedError, match=CLOSED):
            next(peer.iterate("numbers"))
        with pytest.raises(TimeoutError):  # a mailbox belongs to no peer
            own.get(0.01)
        with client.connect(server.address) as another:
            assert another.invoke("echo", 1).result(DEADLINE_S) == 1
        assert full.get(DEADLINE_S) == (2 if drain else 0)


def test_messages_after_one_that_has_failed_are_accepted_while_the_peer_closes() -> None:
    with pair() as (server, _, peer):
        inbox = server.mailbox("news")
        began = threading.Event()
        goes_on = threading.Event()

        @server.register(executor=ThreadPoolExecutor(1))
        def waits() -> bool:
            began.set()
            return goes_on.wait(DEADLINE_S)

        calls = [peer.invoke("waits", timeout=DEADLINE_S) for _ in range(1024)]  # the maximum per peer
        lost = peer.send("news", 0, timeout=0.2)
        later = peer.send("news", 1, timeout=DEADLINE_S)
        assert began.wait(DEADLINE_S)
        closing = threading.Thread(target=lambda: drained.append(peer.close(timeout=DEADLINE_S)))
        drained: list[bool] = []
        closing.start()
        with pytest.raises(TimeoutError):
            lost.result(DEADLINE_S)
        await_condition(lambda: peer.failure == CLOSED)
        goes_on.set()
        closing.join()
        assert drained == [True]
        later.result()
        assert all(call.result() for call in calls)
        assert inbox.get(DEADLINE_S) == 1


def test_both_sides_may_close_at_once_with_nothing_under_way() -> None:
    with pair() as (server, client, peer):
        assert peer.invoke("echo", 1).result(DEADLINE_S) == 1
        server.close()
        await_condition(lambda: client.num_connections == 0)
        assert peer.close()


def held() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def test_a_server_holds_nothing_of_processes_that_have_gone(server: Server) -> None:
    with Runtime("watching") as watching, watching.connect(server.address) as watch:

        def come_and_go() -> None:
            said = subprocess.run(
                [sys.executable, str(PROGRAMS), "comes_and_goes"],
                input=server.address.hex() + "\n",
                stdout=subprocess.PIPE,
                text=True,
                timeout=120,
                check=True,
                env=environment(),
            ).stdout
            assert said == "gone\n"

        def held_there() -> list[int]:
            counts: list[int] = watch.invoke("held").result(DEADLINE_S)[:3]
            return counts

        come_and_go()
        await_condition(lambda: held_there()[2] == 1)
        before = held_there()
        for _ in range(3):
            come_and_go()
        await_condition(lambda: held_there() == before)


def test_neither_side_grows_with_peers_that_come_and_go(server: Server) -> None:
    with Runtime("watching") as watching:
        watch = watching.connect(server.address)

        def come_and_go(times: int) -> None:
            for count in range(times):
                with Runtime("short-lived") as client, client.connect(server.address) as peer:
                    assert peer.invoke("echo", count).result(DEADLINE_S) == count
            with Runtime("client") as client:
                for count in range(times):
                    peer = client.connect(server.address)
                    assert peer.invoke("echo", torch.full((20_000,), count)).result(DEADLINE_S)[0] == count
                    assert peer.close()
                    assert client.num_connections == 0

        come_and_go(20)
        here, there = held(), watch.invoke("held").result(DEADLINE_S)
        come_and_go(100)
        grown = [now - before for now, before in zip(watch.invoke("held").result(DEADLINE_S), there, strict=True)]
        assert grown[:3] == [0, 0, 0], f"descriptors, threads, connections, KiB: {there}, {grown} more"
        assert grown[3] < 4096, f"{grown[3]} KiB more, for 200 connections"
        await_condition(lambda: held() == here)  # a thread that has been joined may still be listed


def test_a_runtime_is_closed_on_the_loop_that_its_functions_run_on() -> None:
    async def main() -> None:
        async with Runtime("client") as client:
            async with Runtime("server") as server:
                entered, goes_on = asyncio.Event(), asyncio.Event()

                @server.register
                async def waits() -> int:
                    entered.set()
                    await goes_on.wait()
                    return 1

                call = client.connect(server.address).invoke("waits")
                await entered.wait()
                closing = asyncio.create_task(server.aclose())
                await asyncio.sleep(0)
                goes_on.set()
                assert await closing  # nothing was left
            assert await call == 1

    asyncio.run(main())


def test_a_closed_runtime_registers_and_keeps_no_functions() -> None:
    runtime = Runtime("server")
    runtime.close()

    def numbers(owner: Runtime = runtime) -> Iterator[Runtime]:
        yield owner

    with pytest.raises(RuntimeClosedError, match="the runtime 'server' is closed"):
        runtime.register(numbers)
    left = weakref.ref(numbers)
    del numbers, runtime
    gc.collect()
    assert left() is None
