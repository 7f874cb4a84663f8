"""Generators, mailboxes and publishing: streams of messages whose receivers hold back their senders."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from support.runtime_clients import Server
from torch_axon.runtime import Future, Peer, Runtime, RuntimeClosedError, publish
from torch_axon.runtime._at_exit import _open


@pytest.fixture(autouse=True)
def _emptied_mailbox(peer: Peer) -> Iterator[None]:
    """Takes the messages that a failed test has left, so that no later test fails because of it."""
    yield
    while peer.invoke("probe").result():
        peer.invoke("read", 30).result()


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
    assert len(list(values)) <= 4  # values that had arrived by then


def test_generators_are_closed_by_aclosing(peer: Peer) -> None:
    async def take_one() -> None:
        async with contextlib.aclosing(peer.iterate("numbers", 1000)) as values:
            assert (await anext(values)).numel() == 0

    closed = peer.invoke("made").result()[1]
    asyncio.run(take_one())
    while peer.invoke("made").result()[1] == closed:
        pass


def test_mailboxes_keep_order_and_hold_back(peer: Peer) -> None:
    sent = [peer.send("news", torch.full((i % 4 * 30_000,), i)) for i in range(20)]
    for future in sent[:4]:
        assert future.result() is None
    while peer.invoke("probe").result() < 5:
        pass
    assert peer.invoke("probe").result() == 5  # as many as fit, and one that waits for room
    assert not any(future.done() for future in sent[4:])  # no more than fit have been accepted
    for i in range(20):
        assert torch.equal(
            peer.invoke("read" if i % 2 else "receive", *([5] * (i % 2))).result(), torch.full((i % 4 * 30_000,), i)
        )
    assert [future.result() for future in sent] == [None] * 20
    with pytest.raises(TimeoutError, match=r"no message arrived within 0\.01 s"):
        peer.invoke("read", 0.01).result()
    waiting = peer.invoke("receive")
    peer.send("news", "at last").result()
    assert waiting.result() == "at last"
    with pytest.raises(LookupError, match="the runtime 'server' has no mailbox 'absent'"):
        peer.send("absent", 1).result()


def test_a_message_that_asks_for_room_takes_no_granted_slot(peer: Peer) -> None:
    """Messages queue up here while answers that grant room are on their way."""
    for _ in range(30):
        sent = [peer.send("news", torch.full((number % 4 * 30_000,), number)) for number in range(12)]
        for accepted in sent[:4]:
            accepted.result(30)
        deadline = time.monotonic() + 30
        while (num_arrived := peer.invoke("probe").result()) < 5 and time.monotonic() < deadline:
            pass
        assert max(num_arrived, peer.invoke("probe").result()) == 5  # as many as fit, and one that waits for room
        for _ in sent:
            peer.invoke("read", 30).result()


@pytest.mark.parametrize("size", [50_000, 1 << 20])  # one is sent with its message, one is fetched
def test_messages_beyond_a_mailboxs_capacity_wait_at_their_senders(server: Server, size: int) -> None:
    num_messages = 300
    with Runtime("first") as first, Runtime("second") as second:
        peers = [sender.connect(server.address) for sender in (first, second)]
        before = peers[0].invoke("held").result()[3]
        message = torch.ones(size, dtype=torch.uint8)
        sent = [peer.send("news", message) for _ in range(num_messages) for peer in peers]
        assert peers[0].invoke("echo", 1).result() == 1  # which does not wait for them
        while peers[0].invoke("probe").result() < 6:
            pass
        for number in range(2 * num_messages):
            assert peers[0].invoke("probe").result() <= 4 + 4 + 2
            if number % 50 == 0:
                assert peers[0].invoke("held").result()[3] - before < 64 << 10
            peers[number % 2].invoke("read", 30).result()
        assert [future.result() for future in sent] == [None] * len(sent)


def test_messages_that_never_left_hold_up_no_others(peer: Peer) -> None:
    blocking = [peer.invoke("wait_until_told") for _ in range(1024)]  # all call slots are taken
    lost = peer.send("news", "late", timeout=0.05)
    with pytest.raises(TimeoutError):
        lost.result()
    later = peer.send("news", "in time")
    for call in blocking:
        call.cancel()
    later.result()
    assert peer.invoke("read", 30).result() == "in time"


def test_publishing_reaches_all_peers(server: Server, peer: Peer) -> None:
    with Runtime("other") as publishing:
        for future in publish([peer, publishing.connect(server.address)], "greet", "everybody"):
            assert future.result() is None
        while peer.invoke("greeted").result().count("everybody") < 2:
            pass


def test_messages_after_one_that_fails_on_its_way_are_delivered(runtime: Runtime, peer: Peer) -> None:
    """The failing message holds up later ones that have been sent."""
    blocking = [peer.invoke("wait_until_told") for _ in range(1024)]  # all call slots are taken
    lost = peer.send("news", "late", timeout=0.05)
    later = [peer.send("news", number) for number in range(3)]  # which do not know yet that it fails
    with pytest.raises(TimeoutError):
        lost.result()
    for call in blocking:
        call.cancel()
    assert [future.result(30) for future in later] == [None] * 3
    assert [peer.invoke("read", 30).result() for _ in later] == [0, 1, 2]


def test_a_mailbox_takes_no_message_that_its_sender_has_given_up() -> None:
    with Runtime("server") as server, Runtime("client") as client:
        mailbox = server.mailbox("news", capacity=4)
        peer = client.connect(server.address)

        def send(number: int, num_unsettled: int) -> Future:
            return peer.invoke("axon.mailbox:news", number, num_unsettled, 0, number)

        early, later = send(1, 1), send(3, 3)
        peer.tell("axon.settled", "news", 1)  # 0 will not arrive
        assert mailbox.get(30) == 1
        with pytest.raises(TimeoutError, match="the message arrived after its sender gave up"):
            send(0, 0).result(30)
        last = send(5, 0)
        assert [mailbox.get(30) for _ in range(2)] == [3, 5]
        assert [future.result(30) for future in (early, later, last)] == [0, 0, 0]
        with pytest.raises(TypeError, match=r"'axon\.mailbox:news' belongs to a mailbox; send messages to it"):
            peer.invoke("axon.mailbox:news", "no message").result(30)


def test_receiving_messages_that_have_arrived_lets_other_tasks_run() -> None:
    with Runtime("server") as server, Runtime("client") as client:
        inbox = server.mailbox("news")
        peer = client.connect(server.address)

        async def receive_all() -> None:
            nonlocal num_received
            while inbox.probe():
                await inbox.receive()
                num_received += 1

        async def cancel_one() -> None:
            task = asyncio.create_task(receive_all())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        num_received = 0
        for number in range(10):
            peer.send("news", number).result(30)
        asyncio.run(cancel_one())
        assert num_received == 0
        assert [inbox.get(30) for _ in range(10)] == list(range(10))


def test_a_mailbox_of_a_closed_runtime_is_closed() -> None:
    with Runtime("server") as server:
        before = server.mailbox("before")
    for mailbox in (before, server.mailbox("after")):
        with pytest.raises(RuntimeClosedError, match="the runtime 'server' is closed"):
            mailbox.get(30)


@contextmanager
def numbers_of(kind: str = "plain") -> Iterator[tuple[Peer, threading.Event, Runtime]]:
    """A peer with a generator "numbers" that counts without end, and an event that is set when it is closed."""
    closed = threading.Event()
    with Runtime("server") as server, Runtime("client") as client:

        def numbers(padding: object = None) -> Iterator[int]:
            try:
                yield from itertools.count()
            finally:
                closed.set()

        async def async_numbers(padding: object = None) -> AsyncIterator[int]:
            try:
                for number in itertools.count():
                    yield number
            finally:
                closed.set()

        executor = ThreadPoolExecutor(2) if kind == "executor" else None
        server.register("numbers", executor=executor)(async_numbers if kind == "async" else numbers)
        yield client.connect(server.address), closed, client


@pytest.mark.parametrize("kind", ["plain", "executor", "async"])
def test_closing_before_the_first_value_leaves_nothing_open(kind: str) -> None:
    with numbers_of(kind) as (peer, _, _):
        openings = []
        for _ in range(1100):  # more than may be open
            values = peer.iterate("numbers", torch.empty(20_000))
            openings.append(values._opening)
            values.close()  # the close message may arrive before the opening, which is larger
        assert all(opening.exception(60) is None for opening in openings)
        assert next(peer.iterate("numbers")) == 0


@pytest.mark.parametrize("kind", ["plain", "executor", "async"])
def test_generators_are_closed_with_their_callers_connection(kind: str) -> None:
    with numbers_of(kind) as (peer, closed, client):
        values = peer.iterate("numbers")
        assert next(values) == 0
        client.close(drain=False)
        assert closed.wait(60)


def test_generators_belong_to_the_peer_that_has_opened_them() -> None:
    with numbers_of() as (peer, closed, _), Runtime("other") as other, Runtime("second") as third:
        values = peer.iterate("numbers", ahead=1)
        assert next(values) == 0
        stranger = other.connect(peer._runtime.address)  # to the client, which has no generators
        with pytest.raises(LookupError):
            stranger.invoke("axon.next", 0).result(60)
        second = third.connect(_address_of(peer))
        with pytest.raises(LookupError, match="no generator 0 is open"):
            second.invoke("axon.next", 0).result(60)
        second.tell("axon.stop", 0).result(60)
        assert second.invoke("axon.settled", "", 0).result(60) is None  # arrives after it
        assert next(values) == 1
        assert not closed.is_set()


@pytest.mark.parametrize("kind", ["plain", "executor", "async"])
def test_a_stopped_generator_has_no_more_values(kind: str) -> None:
    with numbers_of(kind) as (peer, closed, _):
        number = {"axon.number": 7}
        assert peer.invoke("numbers", **number).result(60) == 7
        with pytest.raises(ValueError, match="generator 7 is already open"):
            peer.invoke("numbers", **number).result(60)
        assert [peer.invoke("axon.next", 7).result(60) for _ in range(2)] == [[0, 0], [1, 1]]
        peer.tell("axon.stop", 7).result(60)
        assert peer.invoke("axon.next", 7).result(60) is None
        assert closed.wait(60)


def _address_of(peer: Peer) -> bytes:
    (address,) = [runtime.address for runtime in _open if runtime.incarnation == peer.incarnation]
    return address


@pytest.mark.parametrize("kind", ["plain", "executor", "async"])
def test_iterations_end_with_the_first_error(kind: str) -> None:
    with Runtime("server") as server, Runtime("client") as client:

        def fails(at: int) -> Iterator[int]:
            yield from range(at)
            raise ValueError("that is all")

        async def async_fails(at: int) -> AsyncIterator[int]:
            for number in range(at):
                yield number
            raise ValueError("that is all")

        executor = ThreadPoolExecutor(2) if kind == "executor" else None
        server.register("fails", executor=executor)(async_fails if kind == "async" else fails)
        values = client.connect(server.address).iterate("fails", 3)
        assert next(values) == 0
        with pytest.raises(ValueError, match="that is all"):
            list(values)
        assert list(values) == []


def test_a_value_that_does_not_come_in_time_ends_the_iteration() -> None:
    with Runtime("server") as server, Runtime("client") as client:
        goes_on = threading.Event()
        closed = threading.Event()

        @server.register(executor=ThreadPoolExecutor(1))
        def slow() -> Iterator[int]:
            try:
                yield 0
                goes_on.wait(60)
                yield from itertools.count(1)
            finally:
                closed.set()

        values = client.connect(server.address).iterate("slow", ahead=2, timeout=2)
        assert next(values) == 0
        with pytest.raises(TimeoutError):
            next(values)
        goes_on.set()
        assert list(values) == []
        assert closed.wait(60)


def test_generator_functions_are_iterated_over_and_others_are_not(peer: Peer) -> None:
    with pytest.raises(TypeError, match=r"'numbers' is a generator function; call it with Peer\.iterate"):
        peer.invoke("numbers", 3).result()
    with pytest.raises(TypeError, match=r"'greet' is not a generator function; use invoke\(\)"):
        list(peer.iterate("greet", "you"))
    with pytest.raises(TypeError, match=r"'echo' is not a generator function; use invoke\(\)"):
        list(peer.iterate("echo", 1))


def test_names_of_the_runtimes_own_functions_are_taken() -> None:
    with Runtime("server") as server, pytest.raises(ValueError, match=r"'axon\.next' begins with 'axon\.'"):
        server.register("axon.next")(print)


def test_a_message_that_never_leaves_holds_up_no_others_although_its_end_is_told_late() -> None:
    with Runtime("server") as server, Runtime("client", timeout=0.1) as client:
        goes_on = threading.Event()
        server.register("wait", executor=ThreadPoolExecutor(1))(lambda: goes_on.wait(60))
        inbox = server.mailbox("news")
        peer = client.connect(server.address, timeout=60)
        calls = [peer.invoke("wait", timeout=60) for _ in range(1024)]  # all call slots are taken
        lost = peer.send("news", "late")
        later = peer.send("news", 0, timeout=60)
        with pytest.raises(TimeoutError):
            lost.result(60)
        with pytest.raises(TimeoutError):
            peer.invoke("wait").result(60)  # its control message, which began before, waits longer than that
        goes_on.set()
        assert all(call.result(60) for call in calls)
        later.result(10)
        peer.send("news", 1, timeout=60).result(10)
        assert [inbox.get(10), inbox.get(10)] == [0, 1]
