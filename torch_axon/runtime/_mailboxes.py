"""Streams of messages: sent to a tag at a peer, taken there in order, held back while nobody takes them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future as Waiter
from concurrent.futures import TimeoutError as NotInTime  # another one before Python 3.11
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection, RuntimeInvocation

PUT = "axon.put"
SKIP = "axon.skip"


class Mailbox:
    """The messages for one tag, from all peers. Made by `Runtime.mailbox`; for any thread.

    `capacity` messages are accepted ahead of those who take them; further ones wait at the door, and their senders'
    futures with them.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"mailbox: capacity is {capacity}; allowed: 1 or more")
        self._capacity = capacity
        self._lock = threading.Lock()
        self._here: deque[Any] = deque()
        self._at_the_door: deque[tuple[Any, RuntimeInvocation]] = deque()
        self._waiting: deque[Waiter[Any]] = deque()
        self._closed: Exception | None = None

    def probe(self) -> int:
        """How many messages have come that nobody has taken, those at the door among them."""
        with self._lock:
            return len(self._here) + len(self._at_the_door)

    def get(self, timeout: float | None = None) -> Any:
        """The next message; waits for it, TimeoutError after `timeout` seconds."""
        waiter = self._take()
        try:
            return waiter.result(timeout)
        except (TimeoutError, NotInTime):
            if waiter.cancel():
                raise TimeoutError(f"no message has come within {timeout} s") from None
            return waiter.result()  # it came at that moment
        except BaseException:
            self._give_up(waiter)
            raise

    async def receive(self) -> Any:
        """The next message; still the next one, if this is cancelled."""
        waiter = self._take()
        try:
            return await asyncio.wrap_future(waiter)
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: Waiter[Any]) -> None:
        if not waiter.cancel() and waiter.exception() is None:  # it is being given a message, or has one
            self._put_back(waiter.result())

    def _put_back(self, value: Any) -> None:
        with self._lock:
            taker = self._next_taker()
            if taker is None:
                self._here.appendleft(value)
                return
        taker.set_result(value)

    def _take(self) -> Waiter[Any]:
        waiter: Waiter[Any] = Waiter()
        admitted = None
        with self._lock:
            if not self._here:
                if self._closed is not None:
                    raise self._closed
                self._waiting.append(waiter)
                return waiter
            waiter.set_result(self._here.popleft())
            if self._at_the_door:
                value, admitted = self._at_the_door.popleft()
                self._here.append(value)
        if admitted is not None:
            admitted.reply(None)
        return waiter

    def _put(self, value: Any, invocation: RuntimeInvocation) -> None:
        with self._lock:
            taker = self._next_taker()
            if taker is None and len(self._here) >= self._capacity:
                self._at_the_door.append((value, invocation))
                return
            if taker is None:
                self._here.append(value)
        if taker is not None:
            taker.set_result(value)
        invocation.reply(None)

    def _close(self, error: Exception) -> None:
        """Nobody waits any more; what has come may still be taken."""
        with self._lock:
            self._closed = error
            while (taker := self._next_taker()) is not None:
                taker.set_exception(error)

    def _next_taker(self) -> Waiter[Any] | None:
        while self._waiting:
            taker = self._waiting.popleft()
            if taker.set_running_or_notify_cancel():
                return taker
        return None


class _Order:
    """Puts what one peer sends to one tag into the order in which it was sent: large messages may come later."""

    def __init__(self) -> None:
        self.next = 0
        self.early: dict[int, tuple[Any, RuntimeInvocation] | None] = {}  # None: will not come


class Mailboxes:
    """Those of a runtime, by tag."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mailboxes: dict[str, Mailbox] = {}
        self._orders: dict[tuple[RuntimeConnection, str], _Order] = {}  # the runtime's thread alone

    def open(self, tag: str, capacity: int) -> Mailbox:
        with self._lock:
            if tag in self._mailboxes:
                raise ValueError(f"there is a mailbox {tag!r} already")
            self._mailboxes[tag] = Mailbox(capacity)
            return self._mailboxes[tag]

    def close(self, error: Exception) -> None:
        with self._lock:
            for mailbox in self._mailboxes.values():
                mailbox._close(error)

    def put(self, invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tag, number, value = args
        if tag not in self._mailboxes:
            invocation.fail(LookupError(f"there is no mailbox {tag!r}"))
            self._advance(invocation.connection, tag, number, None)
        else:
            self._advance(invocation.connection, tag, number, (value, invocation))

    def skip(self, invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tag, number = args
        self._advance(invocation.connection, tag, number, None)
        invocation.reply(None)

    def _advance(
        self, connection: RuntimeConnection, tag: str, number: int, message: tuple[Any, RuntimeInvocation] | None
    ) -> None:
        order = self._orders.get((connection, tag))
        if order is None:
            self._orders = {key: kept for key, kept in self._orders.items() if key[0].failure() is None}
            order = self._orders[connection, tag] = _Order()
        if number < order.next:
            return
        order.early.setdefault(number, message)
        while order.next in order.early:
            due = order.early.pop(order.next)
            order.next += 1
            if due is not None:
                self._mailboxes[tag]._put(*due)
