"""Waits for notifications: of all peers and of one, on threads and on event loops, until the runtime closes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from torch_axon.runtime import Peer, Runtime, RuntimeClosedError

DEADLINE_S = 30.0


@pytest.fixture
def owner() -> Iterator[Runtime]:
    with Runtime("owner") as runtime:
        yield runtime


def _peer(owner: Runtime, other: Runtime) -> tuple[Peer, Peer]:
    """Connects a runtime with the owner. Returns the peer at both ends."""
    there = other.connect(owner.address)
    there.notify(b"connected").result(DEADLINE_S)
    [(here, _)] = owner.notifications(timeout=DEADLINE_S)
    return here, there


def test_a_wait_for_one_peer_leaves_the_notifications_of_others(owner: Runtime) -> None:
    with Runtime("first") as first, Runtime("second") as second:
        _, to_owner = _peer(owner, first)
        other, other_to_owner = _peer(owner, second)
        to_owner.notify(b"of the first").result(DEADLINE_S)
        assert owner.notifications(other, timeout=0.05) == []  # waits, though there is one of the first
        waited: list[list[tuple[Peer, bytes]]] = []
        thread = threading.Thread(target=lambda: waited.append(owner.notifications(other, timeout=DEADLINE_S)))
        thread.start()
        to_owner.notify(b"of the first again").result(DEADLINE_S)
        thread.join(0.05)
        assert thread.is_alive()
        other_to_owner.notify(b"of the second").result(DEADLINE_S)
        thread.join(DEADLINE_S)
        assert waited == [[(other, b"of the second")]]
        assert [tag for _, tag in owner.notifications()] == [b"of the first", b"of the first again"]


def test_a_wait_lasts_as_long_as_its_timeout_if_another_thread_takes_all(owner: Runtime) -> None:
    with Runtime("notifier") as notifier:
        _, to_owner = _peer(owner, notifier)
        taken: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: taken.extend(tag for _, tag in owner.notifications(timeout=DEADLINE_S)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        to_owner.notify(b"one").result(DEADLINE_S)
        until = time.monotonic() + DEADLINE_S
        while sum(thread.is_alive() for thread in threads) == 2:
            assert time.monotonic() < until
        to_owner.notify(b"two").result(DEADLINE_S)
        for thread in threads:
            thread.join(DEADLINE_S)
        assert sorted(taken) == [b"one", b"two"]


@pytest.mark.parametrize("waits_for_peer", [False, True])
def test_closing_the_runtime_ends_the_wait_of_a_thread(waits_for_peer: bool) -> None:
    runtime = Runtime("closing")
    with Runtime("notifier") as notifier:
        here, _ = _peer(runtime, notifier)
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                runtime.notifications(here if waits_for_peer else None, timeout=2 * DEADLINE_S)
            except RuntimeClosedError as error:
                failures.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        runtime.close()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert [str(error) for error in failures] == ["the runtime 'closing' is closed"]


def test_a_closed_runtime_returns_what_has_arrived_before() -> None:
    runtime = Runtime("closed")
    with Runtime("notifier") as notifier:
        here, to_runtime = _peer(runtime, notifier)
        to_runtime.notify(b"last").result(DEADLINE_S)
        runtime.close()
        assert runtime.notifications(timeout=DEADLINE_S) == [(here, b"last")]
        for timeout in (0.0, DEADLINE_S):
            with pytest.raises(RuntimeClosedError):
                runtime.notifications(timeout=timeout)


def test_a_negative_timeout_is_refused(owner: Runtime) -> None:
    with pytest.raises(ValueError, match=r"notifications: timeout is -1; allowed: 0 or more"):
        owner.notifications(timeout=-1)


def test_the_longest_tag_arrives_and_a_longer_one_is_refused(owner: Runtime) -> None:
    with Runtime("notifier") as notifier:
        here, to_owner = _peer(owner, notifier)
        tag = bytes(65_536)
        to_owner.notify(tag).result(DEADLINE_S)
        assert owner.notifications(timeout=DEADLINE_S) == [(here, tag)]
        with pytest.raises(ValueError, match="65537 bytes; allowed: up to 65536"):
            to_owner.notify(tag + b"x")


def test_notifications_are_awaited_until_the_runtime_closes() -> None:
    async def run() -> None:
        runtime = Runtime("awaiting")
        peer = await runtime.aconnect(runtime.address)
        waiting = [asyncio.create_task(runtime.notification()) for _ in range(2)]
        await asyncio.sleep(0)
        await peer.notify(b"first")
        done, [left] = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result()[1] for task in done] == [b"first"]
        await runtime.aclose()
        with pytest.raises(RuntimeClosedError):
            await left

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_the_wait_for_a_notification_ends_its_registration() -> None:
    async def give_up_often(runtime: Runtime) -> None:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(runtime.notification(), 0.001)

    with Runtime("impatient") as runtime:
        asyncio.run(give_up_often(runtime))
        assert runtime._awaiting_notifications == []


def test_a_cancelled_task_takes_no_notification() -> None:
    async def run(runtime: Runtime, peer: Peer) -> None:
        waiting = [asyncio.create_task(runtime.notification()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        for tag in (b"1", b"2"):
            await peer.notify(tag)
        assert sorted([(await waiting[1])[1], (await waiting[2])[1]]) == [b"1", b"2"]
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]

    with Runtime("awaiting") as runtime:
        peer = runtime.connect(runtime.address)
        asyncio.run(asyncio.wait_for(run(runtime, peer), DEADLINE_S))


def test_tasks_are_told_of_a_close_that_waits_for_calls() -> None:
    async def run() -> None:
        runtime = Runtime("draining")
        is_running, goes_on = threading.Event(), threading.Event()

        def wait() -> bool:
            is_running.set()
            return goes_on.wait(DEADLINE_S)

        runtime.register("wait")(wait)
        with Runtime("caller") as caller:
            call = caller.connect(runtime.address).invoke("wait")
            waiting = asyncio.create_task(runtime.notification())
            assert await asyncio.to_thread(is_running.wait, DEADLINE_S)
            closing = asyncio.create_task(runtime.aclose())
            with pytest.raises(RuntimeClosedError):
                await waiting
            goes_on.set()
            assert call.result(DEADLINE_S) is True
            assert await closing

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
