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

PUT = "axon.mailbox:"  # a function a mailbox
SETTLED = "axon.settled"

Message = tuple[Any, "RuntimeInvocation", int]  # its value, and how many wait behind it at its sender


class Mailbox:
    """The messages for one tag, from all peers. Made by `Runtime.mailbox`; for any thread.

    `capacity` messages are accepted ahead of those who take them. Further ones wait at their senders, but for one of
    each, which asks for room; its future is done once there is some.
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
        self._orders: dict[RuntimeConnection, _Order] = {}

    def probe(self) -> int:
        """How many messages have come that nobody has taken: not those that wait at their senders."""
        with self._lock:
            return len(self._here) + len(self._at_the_door)

    def get(self, timeout: float | None = None) -> Any:
        """The next message; waits for it, TimeoutError after `timeout` seconds."""
        try:
            waiter = self._take()
        except Exception:
            _native.load().stay_behind()
            raise
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
        with self._lock:
            try:  # rather than to look first: a signal handler may take the last one in between
                taken = self._here.popleft()
            except IndexError:
                if self._closed is not None:
                    raise self._closed from None
                self._waiting.append(waiter)
                return waiter
            waiter.set_result(taken)
            if not self._at_the_door:
                return waiter
            value, admitted, num_waiting = self._at_the_door.popleft()
            self._here.append(value)
            grant = self._grant_for(admitted, num_waiting)
        admitted.reply(grant)
        return waiter

    def arrive(self, invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What peers call."""
        number, num_unsettled, num_waiting, value = args
        with self._lock:
            order = self._orders.setdefault(invocation.connection, _Order())
            is_late = order.is_past(number)
            due = order.arrive(number, number - num_unsettled, (value, invocation, num_waiting))
        if is_late:
            invocation.fail(TimeoutError("the message has come after its sender had given it up"))
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
                self._at_the_door.append((value, invocation, num_waiting))
                return
            if taker is None:
                self._here.append(value)
            grant = self._grant_for(invocation, num_waiting)
        if taker is not None:
            taker.set_result(value)
        invocation.reply(grant)

    def _grant_for(self, invocation: RuntimeInvocation, num_waiting: int) -> int:
        """How many more messages its sender may have on their way: its share of the room that is neither taken nor
        granted, if it needs that. With the lock held."""
        order = self._orders.get(invocation.connection)
        room = self._capacity - len(self._here) - sum(each.num_granted for each in self._orders.values())
        if order is None or self._at_the_door or room <= 0:
            return 0
        grant = min(max(num_waiting - order.num_granted, 0), max(room // len(self._orders), 1))
        order.num_granted += grant
        return grant

    def _close(self, error: Exception) -> None:
        """Nobody waits any more; what has come may still be taken."""
        takers = []
        with self._lock:
            self._closed = error
            at_the_door, self._at_the_door = self._at_the_door, deque()
            self._here.extend(value for value, _, _ in at_the_door)
            while (taker := self._next_taker()) is not None:
                takers.append(taker)
        for _, admitted, _ in at_the_door:
            admitted.reply(0)
        for taker in takers:
            taker.set_exception(error)

    def _next_taker(self) -> Waiter[Any] | None:
        while True:
            try:  # rather than to look first: a signal handler may take the last one in between
                taker = self._waiting.popleft()
            except IndexError:
                return None
            if taker.set_running_or_notify_cancel():
                return taker


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
        self._early: dict[int, Message] = {}  # no more than were granted, and one
        self.num_granted = 0  # that have not come

    def arrive(self, number: int, settled: int, message: Message) -> list[Message]:
        """The messages whose turn it is; not this one, if that is past."""
        if not self.is_past(number):
            self._early[number] = message
        return self.settle(settled)

    def is_past(self, number: int) -> bool:
        return number < self._next

    def settle(self, settled: int) -> list[Message]:
        """None of a lower number will come that has not."""
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
        """What has come, or will not, needs its place no more, or has it otherwise."""
        self.num_granted = max(self.num_granted - (number - self._next), 0)
        self._next = number


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
