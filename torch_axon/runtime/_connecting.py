"""Connecting a runtime: targets, repeated attempts, and attempts that do not block an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch_axon.runtime._errors import RuntimeClosedError, VersionMismatchError, WrongSecretError

if TYPE_CHECKING:
    from torch_axon.runtime._peer import Peer

SocketAddress = tuple[str, int]
Target = bytes | bytearray | memoryview | str | tuple[str, int | str] | list[str | int]

# The interval between attempts, which doubles.
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.01, 0.5
# The timeout of the first attempt if others will follow. It doubles, too.
_FIRST_LIMIT_S = 1.0
# Failures that no further attempt would change.
_FINAL = (WrongSecretError, VersionMismatchError, RuntimeClosedError)


def target_of(to: object) -> bytes | SocketAddress:
    """Returns the target of `connect` as an address, or as host and port.

    Raises:
        TypeError, ValueError: it is neither; the text says what is allowed
    """
    if isinstance(to, bytes | bytearray | memoryview):
        return bytes(to)
    if isinstance(to, str):
        host, colon, port = to.rpartition(":")
        if not colon:
            raise ValueError(f"connect: to is {to!r}, without a port; allowed: 'host:port', '[::1]:port'")
        return _socket_address(host.removeprefix("[").removesuffix("]"), port, "connect")
    if isinstance(to, tuple | list) and len(to) == 2:
        return _socket_address(to[0], to[1], "connect")
    raise TypeError(f"connect: to is {to!r}; allowed: the address of a runtime (bytes), (host, port) or 'host:port'")


def listening_address(host: object, port: object) -> SocketAddress:
    """Returns host and port for `listen`, which accepts port 0 for any free port.

    Raises:
        TypeError, ValueError: one of them is not allowed
    """
    return _socket_address(host, port, "listen", 0)


def _socket_address(host: object, port: object, function: str, least_port: int = 1) -> SocketAddress:
    if not isinstance(host, str) or not host:
        raise TypeError(f"{function}: host is {host!r}; allowed: a name or an address, as text")
    allowed = f"{least_port} to 65535"
    if isinstance(port, str) and port.isascii() and port.isdigit():
        port = int(port)
    if not isinstance(port, int):
        raise TypeError(f"{function}: port is {port!r}; allowed: {allowed}")
    if not least_port <= port <= 65535:
        raise ValueError(f"{function}: port is {port}; allowed: {allowed}")
    return host, port


def keep_trying(
    attempt: Callable[[float], Peer], timeout: float, wait: float, pause: Callable[[float], object] = time.sleep
) -> Peer:
    """Repeats attempts to connect for `wait` seconds and returns the peer of the first one that succeeds.

    Each attempt is called with its own timeout. An attempt that meets a network which is still being set up gets no
    answer, while the next one may succeed at once. Early attempts therefore have short timeouts.

    Raises:
        ConnectionError, TimeoutError: what the last attempt raised
        ValueError: `wait` is negative
    """
    if not wait >= 0:
        raise ValueError(f"connect: wait is {wait!r} s; allowed: 0 or more")
    until = time.monotonic() + wait
    interval, limit = _LEAST_INTERVAL_S, _FIRST_LIMIT_S
    num_attempts = 0
    while True:
        num_attempts += 1
        left = until - time.monotonic()
        try:
            return attempt(min(timeout, limit) if left > 0 else timeout)
        except (ConnectionError, TimeoutError) as error:
            if wait == 0 or isinstance(error, _FINAL):
                raise
            if left <= 0:
                raise type(error)(f"{error} (attempt {num_attempts}, within wait={wait} s)") from None
        pause(min(interval, max(until - time.monotonic(), 0.0)))
        interval, limit = min(2 * interval, _MOST_INTERVAL_S), 2 * limit


async def in_thread(connect: Callable[[Callable[[float], object]], Peer], name: str) -> Peer:
    """Calls `connect` on a new thread, with a function that pauses, and returns its peer.

    If the task is cancelled, the thread ends after its current attempt and closes the peer that this attempt returns,
    unless another connect has returned it, too.

    Raises:
        Exception: what `connect` raised
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Peer] = loop.create_future()
    is_given_up = threading.Event()

    def pause(interval: float) -> None:
        if is_given_up.wait(interval):
            raise RuntimeClosedError("the task that waited for this connection was cancelled")

    def tell(peer: Peer | None, error: BaseException | None) -> None:
        if outcome.done():
            _drop(peer)
        elif peer is not None:
            outcome.set_result(peer)
        elif error is not None:
            outcome.set_exception(error)

    def run() -> None:
        peer, failure = None, None
        try:
            peer = connect(pause)
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(tell, peer, failure)
        except RuntimeError:  # the loop is closed
            _drop(peer)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return await outcome
    except asyncio.CancelledError:
        is_given_up.set()
        if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
            _drop(outcome.result())
        raise


def _drop(peer: Peer | None) -> None:
    if peer is not None:
        peer._runtime._core.undo_connect(peer._connection)
