"""Mailboxes: ordered streams of messages to a tag of a peer, with flow control."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from torch_axon import _native
from torch_axon.runtime import _loops, _wakeups

if TYPE_CHECKING:
    from torch_axon._C import RuntimeMailbox, RuntimeMailReceiver


class Mailbox:
    """The messages of all peers to one tag, as `Runtime.mailbox` returns it. It may be used on any thread.

    The mailbox accepts up to `capacity` messages that have not been taken. Further messages stay queued at their
    senders, except one per sender, which waits here for room. The future of that message is done when it is accepted.
    """

    def __init__(self, core: RuntimeMailbox) -> None:
        self._core = core

    def probe(self) -> int:
        """Returns how many messages have arrived and not been taken. Messages queued at senders do not count."""
        return self._core.probe()

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
        receiver = self._core.receive()
        try:
            if not receiver.over:
                self._await_end(receiver, timeout)
            return self._core.take(receiver)
        except BaseException:
            _native.load().block_if_runtimes_end()
            self._core.give_up(receiver)
            raise

    def _await_end(self, receiver: RuntimeMailReceiver, timeout: float | None) -> None:
        arrived = threading.Lock()
        arrived.acquire()
        if not receiver.watch(arrived.release):
            return
        limit = -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        if not arrived.acquire(timeout=limit) and self._core.withdraw(receiver):  # otherwise one arrived at that moment
            raise TimeoutError(f"no message arrived within {timeout} s")

    async def receive(self) -> Any:
        """Awaits and takes the next message. If this is cancelled, the message stays the next one.

        Returns:
            The message.

        Raises:
            RuntimeClosedError: the runtime is closed and no message is left
        """
        loop = asyncio.get_running_loop()
        receiver = self._core.receive()
        on_loop = _OnLoop(self._core, receiver)
        try:
            _loops.watch(loop, on_loop)
            if receiver.over:
                await asyncio.sleep(0)  # so that other tasks run, too, while messages keep arriving
            else:
                arrived: asyncio.Future[None] = loop.create_future()
                if receiver.watch(partial(_wakeups.tell, loop, arrived)):
                    await arrived
            return self._core.take(receiver)
        except BaseException:  # cancelled, or garbage-collected after its loop
            self._core.give_up(receiver)
            raise


class _OnLoop:
    """A `receive` in progress. When its loop is closed it gives up, so that the message goes to another receiver."""

    def __init__(self, core: RuntimeMailbox, receiver: RuntimeMailReceiver) -> None:
        self._core = core
        self._receiver = receiver

    def loop_closed(self) -> None:
        self._core.give_up(self._receiver)
