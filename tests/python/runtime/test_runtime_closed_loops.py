"""Event loops stop or are closed while calls, coroutines and messages wait for them."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from torch_axon.runtime import Peer, Runtime

LIMIT_S = 60.0  # of calls that learn of a closed loop long before

NewLoop = Callable[[], asyncio.AbstractEventLoop]
on_both_loops = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@pytest.fixture
def server() -> Iterator[Runtime]:
    with Runtime("server") as runtime:
        yield runtime


@pytest.fixture
def peer(server: Runtime) -> Iterator[Peer]:
    with Runtime("client") as runtime:
        yield runtime.connect(server.address)


async def function(value: int) -> int:
    return value


def register_on(loop: asyncio.AbstractEventLoop, runtime: Runtime, function: Callable[..., Any]) -> None:
    async def register() -> None:
        runtime.register(function)

    loop.run_until_complete(register())


def await_arrival(server: Runtime, peer: Peer) -> None:
    """Waits until all earlier calls have arrived."""
    server.register("arrived")(lambda: None)
    peer.invoke("arrived").result()


def is_closed_error(error: BaseException | None, name: str) -> bool:
    return isinstance(error, RuntimeError) and f"the loop on which '{name}' runs is closed" in str(error)


@on_both_loops
def test_functions_of_a_closed_loop_fail_at_once(server: Runtime, peer: Peer, new_loop: NewLoop) -> None:
    loop = new_loop()
    register_on(loop, server, function)
    loop.close()
    for _ in range(3):
        assert is_closed_error(peer.invoke("function", 1, timeout=LIMIT_S).exception(), "function")


@on_both_loops
def test_calls_that_wait_for_a_loop_fail_when_it_is_closed(server: Runtime, peer: Peer, new_loop: NewLoop) -> None:
    loop = new_loop()
    register_on(loop, server, function)
    waiting = [peer.invoke("function", number, timeout=LIMIT_S) for number in range(3)]
    await_arrival(server, peer)
    assert not any(future.done() for future in waiting)
    loop.close()
    for future in [*waiting, peer.invoke("function", 1, timeout=LIMIT_S)]:
        assert is_closed_error(future.exception(), "function")


@on_both_loops
def test_a_loop_that_has_stopped_answers_once_it_runs_again(server: Runtime, peer: Peer, new_loop: NewLoop) -> None:
    loop = new_loop()
    register_on(loop, server, function)
    waiting = peer.invoke("function", 3, timeout=LIMIT_S)
    await_arrival(server, peer)

    async def until_it_is_answered() -> None:
        while not waiting.done():
            await asyncio.sleep(0)

    loop.run_until_complete(until_it_is_answered())
    loop.close()
    assert waiting.result() == 3


@on_both_loops
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_coroutines_fail_when_their_loop_is_closed_beneath_them(server: Runtime, peer: Peer, new_loop: NewLoop) -> None:
    entered = asyncio.Event()

    async def waits() -> None:
        entered.set()
        await asyncio.Event().wait()

    loop = new_loop()
    register_on(loop, server, waits)
    running = peer.invoke("waits", timeout=LIMIT_S)
    loop.run_until_complete(entered.wait())
    loop.set_exception_handler(lambda *_: None)  # of the task that is destroyed
    loop.close()
    assert is_closed_error(running.exception(), "waits")


def test_callers_hear_when_a_servers_asyncio_run_ends(server: Runtime, peer: Peer) -> None:
    """Some of their coroutines run, others have not begun, others arrive while the loop is being closed."""
    is_ready, is_over = threading.Event(), threading.Event()

    async def slow(value: int) -> None:
        await asyncio.Event().wait()

    async def serve() -> None:
        server.register(slow)
        is_ready.set()
        while len(calls) < 50:
            await asyncio.sleep(0)

    def run() -> None:
        asyncio.run(serve())
        is_over.set()

    calls: list[Any] = []
    thread = threading.Thread(target=run)
    thread.start()
    assert is_ready.wait(LIMIT_S)
    while not is_over.is_set():
        calls.append(peer.invoke("slow", len(calls), timeout=LIMIT_S))
        if len(calls) % 16 == 0:
            is_over.wait(0.001)
    thread.join()
    errors = [call.exception() for call in calls]
    assert all(isinstance(error, RuntimeError) for error in errors), errors
    assert {"cancelled" in str(error) or "is closed" in str(error) for error in errors} == {True}


@on_both_loops
def test_a_message_is_not_given_to_a_receive_whose_loop_is_closed(
    server: Runtime, peer: Peer, new_loop: NewLoop
) -> None:
    mailbox = server.mailbox("news")
    loop = new_loop()
    task = loop.create_task(mailbox.receive())
    loop.run_until_complete(asyncio.sleep(0))  # so that it waits
    loop.set_exception_handler(lambda *_: None)
    loop.close()
    peer.send("news", 1).result()
    assert mailbox.get(LIMIT_S) == 1
    del task


@on_both_loops
def test_a_message_that_its_receive_has_not_seen_is_for_the_next_one(
    server: Runtime, peer: Peer, new_loop: NewLoop
) -> None:
    mailbox = server.mailbox("news")
    loop = new_loop()
    task = loop.create_task(mailbox.receive())
    loop.run_until_complete(asyncio.sleep(0))
    peer.send("news", 1).result()  # it has been given to that one, whose loop no longer runs
    peer.send("news", 2).result()
    loop.set_exception_handler(lambda *_: None)
    loop.close()
    assert [mailbox.get(LIMIT_S), mailbox.get(LIMIT_S)] == [1, 2]
    del task


@on_both_loops
def test_a_message_that_was_there_is_not_lost_with_the_loop(server: Runtime, peer: Peer, new_loop: NewLoop) -> None:
    mailbox = server.mailbox("news")
    peer.send("news", 1).result()
    loop = new_loop()
    task = loop.create_task(mailbox.receive())
    loop.stop()
    loop.run_forever()  # one iteration: it has seen that there is a message
    loop.set_exception_handler(lambda *_: None)
    loop.close()
    assert mailbox.get(LIMIT_S) == 1
    del task


@on_both_loops
def test_a_receive_whose_loop_is_closed_is_collected(server: Runtime, new_loop: NewLoop) -> None:
    mailbox = server.mailbox("news")
    loop = new_loop()
    task = loop.create_task(mailbox.receive())
    loop.run_until_complete(asyncio.sleep(0))  # so that it waits
    loop.set_exception_handler(lambda *_: None)
    loop.close()
    left = weakref.ref(task)
    del task
    gc.collect()
    assert left() is None


def num_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@on_both_loops
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::ResourceWarning")
def test_loops_that_are_closed_with_tasks_left_hold_no_descriptors(
    server: Runtime, peer: Peer, new_loop: NewLoop
) -> None:
    release = threading.Event()

    async def slow() -> None:
        await asyncio.get_running_loop().run_in_executor(None, release.wait)

    async def forget() -> None:
        await peer.invoke("slow", timeout=LIMIT_S)

    def leave(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop = new_loop()
        loop.set_exception_handler(lambda *_: None)
        loop.create_task(main())
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    server.register(slow)
    try:
        leave(forget)
        before = num_descriptors()
        for _ in range(20):
            leave(forget)
        assert num_descriptors() <= before + 5
    finally:
        release.set()
