"""Mailboxes: ordered streams of messages to a tag of a peer, with flow control."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future as Waiter
from concurrent.futures import TimeoutError as NotInTime  # a class of its own before Python 3.11
from typing import TYPE_CHECKING, Any

from torch_axon import _native
from torch_axon.runtime import _loops, _wakeups

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection, RuntimeInvocation

PUT = "axon.mailbox:"  # prefix of the function of each mailbox
SETTLED = "axon.settled"

Message = tuple[Any, "RuntimeInvocation", int]  # its value, and how many more are queued at its sender


class Mailbox:
    """The messages of all peers to one tag, as `Runtime.mailbox` returns it. It may be used on any thread.

    The mailbox accepts up to `capacity` messages that have not been taken. Further messages stay queued at their
    senders, except one per sender, which waits here for room. The future of that message is done when it is accepted.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"mailbox: capacity is {capacity}; allowed: 1 or more")
        self._capacity = capacity
        self._lock = threading.RLock()  # reentrant: finalizers and signal handlers may run while it is held
        self._here: deque[Any] = deque()
        self._unaccepted: deque[Message] = deque()
        self._waiting: deque[Waiter[Any]] = deque()
        self._closed: Exception | None = None
        self._orders: dict[RuntimeConnection, _Order] = {}

    def probe(self) -> int:
        """Returns how many messages have arrived and not been taken. Messages queued at senders do not count."""
        with self._lock:
            return len(self._here) + len(self._unaccepted)

    def get(self, timeout: float | None = None) -> Any:
        """Takes the next message, waiting for it if necessary.

        Args:
            timeout: seconds to wait; None: without end

        Returns:
            The message.

        Raises:
            TimeoutError: no message arrived within `timeout`
            RuntimeClosedError: the runtime is closed and no message is left
        """
        try:
            waiter = self._take()
        except Exception:
            _native.load().block_if_runtimes_end()
            raise
        try:
            return waiter.result(timeout)
        except (TimeoutError, NotInTime):
            if waiter.cancel():
                raise TimeoutError(f"no message arrived within {timeout} s") from None
            return waiter.result()  # it arrived at that moment
        except BaseException:
            _native.load().block_if_runtimes_end()
            self._give_up(waiter)
            raise

    async def receive(self) -> Any:
        """Awaits and takes the next message. If this is cancelled, the message stays the next one.

        Returns:
            The message.

        Raises:
            RuntimeClosedError: the runtime is closed and no message is left
        """
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()
        waiter = self._take()
        receiver = _Receiver(self, waiter)
        _loops.watch(loop, receiver)
        waiter.add_done_callback(lambda _: _wakeups.tell(loop, arrived))
        try:
            await arrived
        except BaseException:  # cancelled, or garbage-collected after its loop
            receiver.give_up()
            raise
        receiver.is_over = True
        return waiter.result()

    def _give_up(self, waiter: Waiter[Any]) -> None:
        if not waiter.cancel():  # it has a message or is being given one, perhaps by this very thread
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
        with self._lock:
            try:  # do not check first: a signal handler may take the last one in between
                taken = self._here.popleft()
            except IndexError:
                if self._closed is not None:
                    raise self._closed from None
                self._waiting.append(waiter)
                return waiter
            waiter.set_result(taken)
            if not self._unaccepted:
                return waiter
            value, admitted, num_waiting = self._unaccepted.popleft()
            self._here.append(value)
            grant = self._grant_for(admitted, num_waiting)
        admitted.reply(grant)
        return waiter

    def arrive(self, invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Receives a message: the function that peers call."""
        number, num_unsettled, num_waiting, value = args
        with self._lock:
            order = self._orders.setdefault(invocation.connection, _Order())
            is_late = order.is_past(number)
            due = order.arrive(number, number - num_unsettled, (value, invocation, num_waiting))
        if is_late:
            invocation.fail(TimeoutError("the message arrived after its sender's timeout"))
        for message in due:
            self._put(*message)

    def settle(self, connection: RuntimeConnection, settled: int) -> None:
        with self._lock:
            due = self._orders.setdefault(connection, _Order()).settle(settled)
        for message in due:
            self._put(*message)

    def drop(self, connection: RuntimeConnection) -> None:
        with self._lock:
            self._orders.pop(connection, None)

    def _put(self, value: Any, invocation: RuntimeInvocation, num_waiting: int) -> None:
        with self._lock:
            taker = self._next_taker()
            if taker is None and len(self._here) >= self._capacity:
                self._unaccepted.append((value, invocation, num_waiting))
                return
            if taker is None:
                self._here.append(value)
            grant = self._grant_for(invocation, num_waiting)
        if taker is not None:
            taker.set_result(value)
        invocation.reply(grant)

    def _grant_for(self, invocation: RuntimeInvocation, num_waiting: int) -> int:
        """Returns how many more messages the sender may have in flight.

        That is as many as it has queued, up to its share of the room that is neither used nor granted. The caller holds
        the lock.
        """
        order = self._orders.get(invocation.connection)
        room = self._capacity - len(self._here) - sum(each.num_granted for each in self._orders.values())
        if order is None or self._unaccepted or room <= 0:
            return 0
        grant = min(max(num_waiting - order.num_granted, 0), max(room // len(self._orders), 1))
        order.num_granted += grant
        return grant

    def _close(self, error: Exception) -> None:
        """Fails all waiting receivers. Messages that have arrived may still be taken."""
        takers = []
        with self._lock:
            self._closed = error
            unaccepted, self._unaccepted = self._unaccepted, deque()
            self._here.extend(value for value, _, _ in unaccepted)
            while (taker := self._next_taker()) is not None:
                takers.append(taker)
        for _, admitted, _ in unaccepted:
            admitted.reply(0)
        for taker in takers:
            taker.set_exception(error)

    def _next_taker(self) -> Waiter[Any] | None:
        while True:
            try:  # do not check first: a signal handler may take the last one in between
                taker = self._waiting.popleft()
            except IndexError:
                return None
            if taker.set_running_or_notify_cancel():
                return taker


class _Receiver:
    """A `receive` in progress. When its loop is closed it gives up, so that the message goes to another receiver."""

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
    """Restores the sending order of one peer's messages to a mailbox, since large messages may arrive late."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, Message] = {}  # at most the granted messages and one more
        self.num_granted = 0  # messages that were granted and have not arrived

    def arrive(self, number: int, settled: int, message: Message) -> list[Message]:
        """Adds a message, unless its number is past, and returns the messages that are now in order."""
        if not self.is_past(number):
            self._early[number] = message
        return self.settle(settled)

    def is_past(self, number: int) -> bool:
        return number < self._next

    def settle(self, settled: int) -> list[Message]:
        """Notes that no further message with a lower number will arrive. Returns the messages that are now in order."""
        due = []
        while True:
            if self._next in self._early:
                due.append(self._early.pop(self._next))
                self._go_on_to(self._next + 1)
            elif self._next < settled:
                self._go_on_to(min([settled, *self._early]))
            else:
                return due

    def _go_on_to(self, number: int) -> None:
        """Advances to a number. Messages before it have arrived or will not arrive, so their grants are used up."""
        self.num_granted = max(self.num_granted - (number - self._next), 0)
        self._next = number


class Mailboxes:
    """The mailboxes of a runtime, by tag. Only the runtime's thread uses this, except for `add` and `close`."""

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
