"""Streams of messages: sent to a tag at a peer, taken there in order, held back while nobody takes them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future as Waiter
from concurrent.futures import TimeoutError as NotInTime  # another one before Python 3.11
from typing import TYPE_CHECKING, Any

from torch_axon import _native
from torch_axon.runtime import _loops, _wakeups

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection, RuntimeInvocation
    from torch_axon.runtime._future import Future
    from torch_axon.runtime._peer import Peer

PUT = "axon.mailbox:"  # a function a mailbox
SETTLED = "axon.settled"
# The word of what is settled waits for its place as long as it takes: others wait for it.
_LONGEST_WORD_S = 365 * 24 * 3600.0

Message = tuple[Any, "RuntimeInvocation"]


class Mailbox:
    """The messages for one tag, from all peers. Made by `Runtime.mailbox`; for any thread.

    `capacity` messages are accepted ahead of those who take them; further ones wait at the door, and their senders'
    futures with them.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"mailbox: capacity is {capacity}; allowed: 1 or more")
        self._capacity = capacity
        self._lock = threading.RLock()  # finalizers and signal handlers may come here while it is held
        self._here: deque[Any] = deque()
        self._at_the_door: deque[Message] = deque()
        self._waiting: deque[Waiter[Any]] = deque()
        self._closed: Exception | None = None
        self._orders: dict[RuntimeConnection, _Order] = {}  # the runtime's thread alone

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
            _native.load().stay_behind()
            self._give_up(waiter)
            raise

    async def receive(self) -> Any:
        """The next message; still the next one, if this is cancelled."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()
        waiter = self._take()
        receiver = _Receiver(self, waiter)
        _loops.watch(loop, receiver)
        waiter.add_done_callback(lambda _: _wakeups.tell(loop, arrived))
        try:
            await arrived
        except BaseException:  # cancelled; or the loop has gone, and this is collected
            receiver.give_up()
            raise
        receiver.is_over = True
        return waiter.result()

    def _give_up(self, waiter: Waiter[Any]) -> None:
        if not waiter.cancel():  # it is being given a message, maybe by this very thread, or has one
            waiter.add_done_callback(self._return)

    def _return(self, waiter: Waiter[Any]) -> None:
        if waiter.exception() is None:
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

    def arrive(self, invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What peers call."""
        number, settled, value = args
        order = self._orders.setdefault(invocation.connection, _Order())
        for message in order.arrive(number, settled, (value, invocation)):
            self._put(*message)

    def settle(self, connection: RuntimeConnection, settled: int) -> None:
        for message in self._orders.setdefault(connection, _Order()).settle(settled):
            self._put(*message)

    def drop(self, connection: RuntimeConnection) -> None:
        self._orders.pop(connection, None)

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
        takers = []
        with self._lock:
            self._closed = error
            while (taker := self._next_taker()) is not None:
                takers.append(taker)
        for taker in takers:
            taker.set_exception(error)

    def _next_taker(self) -> Waiter[Any] | None:
        while self._waiting:
            taker = self._waiting.popleft()
            if taker.set_running_or_notify_cancel():
                return taker
        return None


class _Receiver:
    """A `receive` under way. A loop that is closed does not go on with it, so that a message is for the next one."""

    def __init__(self, mailbox: Mailbox, waiter: Waiter[Any]) -> None:
        self._mailbox = mailbox
        self._waiter = waiter
        self.is_over = False

    def loop_closed(self) -> None:
        self.give_up()

    def give_up(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._mailbox._give_up(self._waiter)


class _Order:
    """Puts what one peer sends to a mailbox into the order in which it was sent: large messages may come later."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, Message] = {}  # no more than calls of a connection

    def arrive(self, number: int, settled: int, message: Message) -> list[Message]:
        """The messages whose turn it is."""
        if number < self._next:
            message[1].fail(TimeoutError("the message has come after its sender had given it up"))
        else:
            self._early[number] = message
        return self.settle(settled)

    def settle(self, settled: int) -> list[Message]:
        """None of a lower number will come that has not."""
        due = []
        while True:
            if self._next in self._early:
                due.append(self._early.pop(self._next))
                self._next += 1
            elif self._next < settled:
                self._next = min([settled, *self._early])
            else:
                return due


class Mailboxes:
    """Those of a runtime, by tag. But for `add` and `close`, the runtime's thread alone."""

    def __init__(self) -> None:
        self._mailboxes: dict[str, Mailbox] = {}

    def add(self, tag: str, mailbox: Mailbox) -> None:
        self._mailboxes[tag] = mailbox

    def settle(self, invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tag, settled = args
        if tag in self._mailboxes:
            self._mailboxes[tag].settle(invocation.connection, settled)
        invocation.reply(None)

    def drop(self, connection: RuntimeConnection) -> None:
        for mailbox in list(self._mailboxes.values()):
            mailbox.drop(connection)

    def close(self, error: Exception) -> None:
        for mailbox in list(self._mailboxes.values()):
            mailbox._close(error)


class Sent:
    """The messages to one tag of a peer's, numbered. For any thread.

    Each tells below which number all have found their end, accepted or not, so that none of those is waited for. Where
    one fails that others are behind already, the peer is told by itself.
    """

    def __init__(self, peer: Peer, tag: str) -> None:
        self._peer = peer
        self._tag = tag
        self._lock = threading.RLock()  # guards what follows; callbacks may run within what it is held for
        self._num_sent = 0
        self._settled = 0  # all below have found their end
        self._done: set[int] = set()  # so have these, above
        self._failed = 0  # the latest that has, and one more
        self._told = 0  # what the peer has heard of, by itself
        self._is_telling = False

    def send(self, value: Any, timeout: float | None) -> Future:
        with self._lock:
            number = self._num_sent
            self._num_sent += 1  # before: a finalizer may send to the same tag while the value is packed
            try:
                future = self._peer.invoke(PUT + self._tag, number, self._settled, value, timeout=timeout)
            except BaseException:  # the value cannot be sent, and nobody is to wait for it
                self._on_done(number, True)
                raise
        future.add_done_callback(lambda done: self._on_done(number, done.exception() is not None))
        return future

    def _on_done(self, number: int, has_failed: bool) -> None:
        with self._lock:
            self._done.add(number)
            while self._settled in self._done:
                self._done.remove(self._settled)
                self._settled += 1
            if has_failed:
                self._failed = max(self._failed, number + 1)
        self._tell_if_waited_for()

    def _tell_if_waited_for(self) -> None:
        with self._lock:
            settled = self._settled
            is_waited_for = self._told < min(settled, self._failed) and settled < self._num_sent
            if not is_waited_for or self._is_telling:
                return
            self._is_telling = True
        word = self._peer.tell(SETTLED, self._tag, settled, timeout=_LONGEST_WORD_S)
        word.add_done_callback(lambda told: self._on_told(settled, told))

    def _on_told(self, settled: int, told: Future) -> None:
        has_left = told.exception() is None
        with self._lock:
            self._is_telling = False
            if has_left:
                self._told = settled
        if has_left:  # else the connection has ended
            self._tell_if_waited_for()
