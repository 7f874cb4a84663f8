"""How runtimes end, and begin again: every waiter is told, and errors name the bounds that they enforce."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
import torch

from torch_axon.runtime import Future, Peer, PeerLostError, RemoteError, Runtime, RuntimeClosedError

DEADLINE_S = 60


@contextmanager
def pair(**options: int) -> Iterator[tuple[Runtime, Runtime, Peer]]:
    """A server, a client, and the server as the client calls it. Both may be closed by then."""
    with Runtime("server", **options) as server:  # type: ignore[arg-type]
        client = Runtime("client")

        @server.register
        async def never() -> None:
            await asyncio.Event().wait()

        server.register("echo")(lambda value: value)
        yield server, client, client.connect(server.address)
        client.close(drain=False)


def noted(future: Future, heard: list[object]) -> threading.Event:
    """An event, set after a callback of the future has put its outcome into `heard`."""
    told = threading.Event()

    def note(done: Future) -> None:
        heard.append(done.exception())
        told.set()

    future.add_done_callback(note)
    return told


def test_callbacks_run_where_the_runtime_closes() -> None:
    with pair() as (_, client, peer):
        heard: list[object] = []
        told = [noted(peer.invoke("never"), heard) for _ in range(100)]
        client.close(drain=False)
        assert all(each.wait(DEADLINE_S) for each in told)
        assert {type(error) for error in heard} == {RuntimeClosedError}
        assert noted(peer.invoke("echo", 1), heard).wait(DEADLINE_S)  # and of later calls


def test_callbacks_run_although_the_runtimes_thread_does_not_come_back() -> None:
    with pair() as (server, client, peer):
        entered, goes_on = threading.Event(), threading.Event()

        @client.register
        def naps() -> None:
            entered.set()
            goes_on.wait(DEADLINE_S)

        server.connect(client.address).invoke("naps")
        assert entered.wait(DEADLINE_S)
        heard: list[object] = []
        told = noted(peer.invoke("never"), heard)
        client.close(drain=False)  # waits 2 s for its thread
        assert told.wait(DEADLINE_S)
        assert [type(error) for error in heard] == [RuntimeClosedError]
        goes_on.set()


def test_tasks_hear_that_the_runtime_closes_whatever_ran_before() -> None:
    with pair() as (_, client, peer):
        heard: list[object] = []
        call = peer.invoke("never")
        told = noted(call, heard)
        waits = threading.Event()

        async def wait() -> None:
            asyncio.get_running_loop().call_soon(waits.set)
            with pytest.raises(RuntimeClosedError):
                await call

        with ThreadPoolExecutor(1) as threads:
            ended = threads.submit(lambda: asyncio.run(wait()))
            assert waits.wait(DEADLINE_S)
            client.close(drain=False)
            ended.result(DEADLINE_S)
        assert told.wait(DEADLINE_S)


def test_waiters_beside_a_loop_that_has_ended_hear_of_it() -> None:
    with pair() as (server, _, peer):
        goes_on = threading.Event()
        server.register("wait", executor=ThreadPoolExecutor(1))(lambda: goes_on.wait(DEADLINE_S))
        call = peer.invoke("wait")
        loop = asyncio.new_event_loop()
        task = loop.create_task(_wait_for(call))
        loop.run_until_complete(asyncio.sleep(0.01))  # the loop is the first to wait, and no longer runs
        heard: list[object] = []
        told = noted(call, heard)
        goes_on.set()
        assert told.wait(DEADLINE_S)
        assert heard == [None]
        assert loop.run_until_complete(task) is True
        loop.close()


async def _wait_for(call: Future) -> object:
    return await call


def test_closing_from_a_callback_and_from_a_function() -> None:
    with pair() as (server, client, peer):
        closed = threading.Event()

        def close(done: Future) -> None:
            client.close(drain=False)
            closed.set()

        peer.invoke("echo", 1).add_done_callback(close)
        assert closed.wait(DEADLINE_S)
        with Runtime("another") as another:
            server.register("close")(lambda: server.close(drain=False))
            with pytest.raises(PeerLostError):
                another.connect(server.address).invoke("close").result(DEADLINE_S)


@pytest.mark.parametrize("end", ["cancelled", "late", "gone"])
@pytest.mark.parametrize("kind", ["plain", "executor", "async"])
def test_a_call_without_a_waiter_does_not_begin_but_a_one_way_call_does(kind: str, end: str) -> None:
    with pair() as (server, client, peer), Runtime("another") as another:
        began, goes_on, told = threading.Event(), threading.Event(), threading.Event()
        executor = ThreadPoolExecutor(1) if kind == "executor" else None
        notes: list[str] = []

        def block() -> None:
            began.set()
            goes_on.wait(DEADLINE_S)

        def note(text: str) -> None:
            notes.append(text)
            if text == "told":
                told.set()

        async def block_loop() -> None:
            block()

        async def note_on_loop(text: str) -> None:
            note(text)

        server.register("block", executor=executor)(block_loop if kind == "async" else block)
        server.register("note", executor=executor)(note_on_loop if kind == "async" else note)
        blocked = another.connect(server.address).invoke("block")
        assert began.wait(DEADLINE_S)
        asked = peer.invoke("note", "asked", timeout=0.05 if end == "late" else None)
        peer.tell("note", "told").result(DEADLINE_S)
        if end == "late":
            with pytest.raises(TimeoutError):
                asked.result(DEADLINE_S)
        elif end == "gone":
            client.close(drain=False)
        else:
            asked.cancel()
        another.register("echo")(lambda: None)
        another.connect(another.address).invoke("echo").result(DEADLINE_S)  # after all earlier messages
        goes_on.set()
        blocked.result(DEADLINE_S)
        assert told.wait(DEADLINE_S)
        assert notes == ["told"]


def test_messages_without_an_answer_are_dealt_with_before_the_runtime_closes() -> None:
    with pair() as (server, client, peer):
        began, heard = threading.Event(), threading.Event()

        @server.register
        async def hear() -> None:
            began.set()
            await asyncio.sleep(0.1)
            heard.set()

        peer.tell("hear").result(DEADLINE_S)
        assert client.close()
        assert heard.is_set()


def test_coroutines_are_cancelled_where_their_runtime_closes() -> None:
    with pair() as (_, client, _), Runtime("closing") as closing:
        began, cancelled = threading.Event(), threading.Event()

        @closing.register
        async def waits() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cancelled.set()

        call = client.connect(closing.address).invoke("waits")
        assert began.wait(DEADLINE_S)
        closing.close(drain=False)
        assert cancelled.wait(DEADLINE_S)
        with pytest.raises(PeerLostError):
            call.result(DEADLINE_S)


Step = Callable[[threading.Event, threading.Event], Coroutine[object, object, None]]


def _ends_before_its_runtime(step: Step) -> bool:
    """Returns whether a cancelled coroutine sets its second event; its runtime closes once it has set the first."""
    with pair() as (_, client, _), Runtime("closing") as closing:
        began, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

        @closing.register
        async def waits() -> None:
            began.set()
            await step(cancelled, ended)

        call = client.connect(closing.address).invoke("waits")
        assert began.wait(DEADLINE_S)
        call.cancel()
        assert cancelled.wait(DEADLINE_S)
        closing.close(drain=False)
        return ended.is_set()


def test_a_coroutine_that_has_been_cancelled_cleans_up_though_its_runtime_closes_meanwhile() -> None:
    async def cleans_up(cancelled: threading.Event, clean: threading.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await asyncio.sleep(0.1)
            clean.set()

    assert _ends_before_its_runtime(cleans_up)


def test_a_coroutine_that_has_gone_on_though_it_was_cancelled_is_cancelled_where_its_runtime_closes() -> None:
    async def goes_on(cancelled: threading.Event, cancelled_again: threading.Event) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        cancelled.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled_again.set()

    assert _ends_before_its_runtime(goes_on)


def test_a_runtime_may_begin_again_under_its_name() -> None:
    with Runtime("client") as client:
        incarnations = set()
        for count in range(3):
            with Runtime("server") as server:
                server.register("count")(lambda count=count: count)
                peer = client.connect(server.address)
                assert peer.invoke("count").result(DEADLINE_S) == count
                incarnations.add(peer.incarnation)
                assert peer.incarnation == server.incarnation
            with pytest.raises(PeerLostError):
                peer.invoke("count").result(DEADLINE_S)
            assert peer.failure is not None
        assert len(incarnations) == 3


def test_functions_run_on_the_loop_that_was_running_where_they_were_registered() -> None:
    with pair() as (server, _, peer):

        async def thread() -> int:
            return threading.get_ident()

        server.register("elsewhere")(thread)

        async def main() -> None:
            server.register("here")(thread)
            assert await peer.invoke("here") == threading.get_ident()
            assert await peer.invoke("elsewhere") != threading.get_ident()

        asyncio.run(main())
        with pytest.raises(RuntimeError, match="the loop on which 'here' runs is closed"):
            peer.invoke("here").result(DEADLINE_S)


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_exceptions_that_would_end_something_else_at_the_caller_arrive_as_others(kind: type[BaseException]) -> None:
    with pair() as (server, _, peer):

        def raises() -> None:
            raise kind("there")

        server.register("raises")(raises)
        with pytest.raises(RemoteError, match=f"{kind.__name__}: there"):
            peer.invoke("raises").result(DEADLINE_S)
        assert peer.invoke("echo", 1).result(DEADLINE_S) == 1


def test_connecting_ends_where_no_process_listens_and_where_none_answers() -> None:
    with Runtime("client", secret=b"of sixteen bytes") as client, socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(TimeoutError):
            client.connect(silent.getsockname(), timeout=0.1)
        port = silent.getsockname()[1]
        silent.close()
        with pytest.raises(ConnectionError):
            client.connect(("127.0.0.1", port), timeout=DEADLINE_S)


def test_the_bound_on_calls_that_run_is_told() -> None:
    with pair(max_running_calls=3) as (_, _, peer):
        running = [peer.invoke("never") for _ in range(3)]
        with pytest.raises(
            BufferError, match=r"the runtime 'server' has 3 unanswered calls, the limit \(max_running_calls"
        ):
            peer.invoke("echo", 1).result(DEADLINE_S)
        for call in running:
            call.cancel()
        while peer.invoke("echo", 1).exception(DEADLINE_S) is not None:  # until they have ended
            pass


def test_the_bound_on_calls_that_wait_is_told() -> None:
    with Runtime("server") as server, Runtime("client", max_waiting_calls=2) as client:
        goes_on = threading.Event()
        server.register("wait")(lambda: goes_on.wait(DEADLINE_S))
        peer = client.connect(server.address)
        calls = [peer.invoke("wait") for _ in range(1025)]
        with pytest.raises(BufferError, match="1023 calls to 'server' await an answer and 2 more are queued"):
            peer.invoke("wait").result(DEADLINE_S)
        goes_on.set()
        assert all(call.result(DEADLINE_S) for call in calls)


def test_values_beyond_the_bound_are_named_before_they_are_copied() -> None:
    much = bytes((1 << 30) + 1)  # takes no memory until it is written to
    with pair() as (server, _, peer):
        server.register("much")(lambda: much)
        text = r"bytes of 1073741825 bytes cannot be sent in addition to \d+ bytes of other values; allowed: 1073741824"
        with pytest.raises(ValueError, match=text):
            peer.invoke("echo", much)
        with pytest.raises(ValueError, match=text):
            peer.invoke("much").result(DEADLINE_S)
        assert peer.invoke("echo", torch.ones(3)).result(DEADLINE_S).sum() == 3
