"""Ctrl-C while the main thread waits for a runtime: it ends the wait soon, and the waited object stays usable."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torch_axon.runtime import Peer, Runtime

LIMIT_S = 60.0  # of each interrupted wait
SOON_S = LIMIT_S / 2


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def server() -> Iterator[Runtime]:
    released = asyncio.Event()

    async def slow() -> None:
        await released.wait()

    with Runtime("server") as runtime:
        runtime.register(slow)
        runtime.register("echo")(lambda value: value)
        yield runtime
        runtime.close(drain=False)


@pytest.fixture
def client() -> Iterator[Runtime]:
    with Runtime("client", secret="s" * 20) as runtime:
        yield runtime
        runtime.close(drain=False)


@pytest.fixture
def peer(server: Runtime, client: Runtime) -> Peer:
    return client.connect(server.address)


def is_within(thread: int, function: str) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


def interrupted(wait: Callable[[], Any], function: str) -> None:
    """Runs the wait, and interrupts it once the main thread is in this function."""
    main = threading.get_ident()
    is_over = threading.Event()

    def interrupt() -> None:
        while not is_within(main, function) and not is_over.is_set():
            time.sleep(0.001)
        time.sleep(0.05)  # it waits by now; otherwise the test shows nothing
        if not is_over.is_set():
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
        took = time.monotonic() - began
    finally:
        is_over.set()
        thread.join()
    assert took < SOON_S


def test_results(peer: Peer) -> None:
    future = peer.invoke("slow", timeout=LIMIT_S)
    interrupted(future.result, "wait")
    interrupted(future.exception, "wait")
    assert peer.invoke("echo", 3).result() == 3


def test_awaiting(peer: Peer) -> None:
    async def awaits() -> None:
        await peer.invoke("slow", timeout=LIMIT_S)

    interrupted(lambda: asyncio.run(awaits()), "_run_once")
    assert peer.invoke("echo", 3).result() == 3


def test_messages(client: Runtime, server: Runtime) -> None:
    mailbox = client.mailbox("news")
    interrupted(lambda: mailbox.get(LIMIT_S), "get")
    assert server.connect(client.address).send("news", 5).result() is None
    assert mailbox.get(LIMIT_S) == 5


def test_connecting(client: Runtime, server: Runtime) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = ("127.0.0.1", silent.getsockname()[1])
        interrupted(lambda: client.connect(place, timeout=LIMIT_S), "connect")
    assert client.connect(server.address).invoke("echo", 3).result() == 3


def test_connecting_within_a_handler(client: Runtime, server: Runtime) -> None:
    """Interrupts a coroutine that another wait runs."""
    met: list[Peer] = []

    def handle(*_: object) -> None:
        met.append(client.connect(server.address))
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = ("127.0.0.1", silent.getsockname()[1])
        interrupted(lambda: client.connect(place, timeout=LIMIT_S), "connect")
    assert met[0].invoke("echo", 3).result() == 3


def test_closing_a_peer(client: Runtime, server: Runtime) -> None:
    closing = client.connect(server.address)
    future = closing.invoke("slow", timeout=2 * LIMIT_S)
    interrupted(lambda: closing.close(timeout=LIMIT_S), "_await_end")
    with pytest.raises(ConnectionError):
        closing.invoke("echo", 3).result()
    closing.close(drain=False)
    assert isinstance(future.exception(), ConnectionError)
    assert client.connect(server.address).invoke("echo", 3).result() == 3


@pytest.mark.parametrize("leave", ["close", "block"])
def test_closing_a_runtime(server: Runtime, leave: str) -> None:
    """The interrupt closes it: its calls in flight have ended, and so have its threads."""
    closing = Runtime("closing", timeout=LIMIT_S)
    future = closing.connect(server.address).invoke("slow", timeout=2 * LIMIT_S)

    def leave_block() -> None:
        with closing:
            pass

    interrupted(closing.close if leave == "close" else leave_block, "close")
    assert isinstance(future.exception(), ConnectionError)
    with pytest.raises(ConnectionError, match="closed"):
        closing.connect(server.address)
    assert not closing._thread.is_alive()
    assert closing.close()


def test_a_handler_calls_while_its_thread_does(peer: Peer) -> None:
    told: list[tuple[int, Any]] = []
    numbers = itertools.count()  # a handler may interrupt another one anywhere

    def handler(*_: Any) -> None:
        number = next(numbers)
        told.append((number, peer.invoke("echo", number)))

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        for number in range(1000):
            assert peer.invoke("echo", number).result() == number
        while len(told) < 5:
            peer.invoke("echo", 0).result()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(future.result() == number for number, future in told)


class InterruptedLoop(asyncio.SelectorEventLoop):
    """A loop whose wake-ups from the main thread are interrupted once."""

    is_interrupted = False

    def call_soon_threadsafe(self, *args: Any, **named: Any) -> asyncio.Handle:
        if threading.current_thread() is threading.main_thread() and not self.is_interrupted:
            self.is_interrupted = True
            signal.raise_signal(signal.SIGINT)
        return super().call_soon_threadsafe(*args, **named)


def test_closing_interrupted_while_it_wakes_a_receiver(client: Runtime) -> None:
    """The receiver hears that the mailbox is closed, and close() raises the interrupt."""
    mailbox = client.mailbox("news")
    loop = InterruptedLoop()
    heard: list[BaseException] = []
    waits = threading.Event()

    async def receive() -> None:
        loop.call_soon(waits.set)  # runs once the task waits
        try:
            await asyncio.wait_for(mailbox.receive(), LIMIT_S)
        except Exception as error:
            heard.append(error)

    thread = threading.Thread(target=loop.run_until_complete, args=(receive(),))
    thread.start()
    assert waits.wait(LIMIT_S)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    thread.join(SOON_S)
    assert not thread.is_alive()
    loop.close()
    assert loop.is_interrupted
    assert isinstance(heard[0], ConnectionError), heard
