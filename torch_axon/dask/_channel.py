"""Channels: ordered messages in both directions between two event loops. A message is a list of frames."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from distributed.comm.core import CommClosedError
from distributed.utils import ensure_memoryview, nbytes

from torch_axon.runtime import _loops

if TYPE_CHECKING:
    from torch import Tensor

    from torch_axon.runtime import Future, Peer

Frame = bytes | bytearray | memoryview

# Functions of both runtimes.
DELIVER, RESUME, CLOSE = "deliver", "resume", "close"
# Answers to `deliver`: whether further messages may follow. `FULL` holds up the writer until `resume` is called.
CLOSED, GO_ON, FULL = range(3)
# Tensors of one call. The runtime allows 4,096.
_MOST_FRAMES = 1024
# Messages up to this size are copied into the call, so that `send` need not wait for the answer. With a wait for each,
# a round trip of 1 KiB took three times as long.
_MOST_COPIED_BYTES = 128 << 10
# A writer is held up while this number of bytes is unread.
MOST_UNREAD_BYTES = 16 << 20
# The weight of a message besides its frames: the objects that hold it.
_MESSAGE_BYTES = 1024
# A call has no deadline: the peer may be busy for any time, and its loss is noticed otherwise.
_FOREVER_S = 365 * 24 * 3600.0

_log = logging.getLogger(__name__)


class Channel:
    """One end of a channel. Its methods are called on its loop, but for `deliver` and `abandon`.

    Args:
        peer: the runtime of the other end
        number: what the channel is called between the two runtimes
        forget: is called with the channel once it has ended, so that it gets no further messages
    """

    def __init__(self, peer: Peer, number: int, forget: Callable[[Channel], None]) -> None:
        self.peer = peer
        self.number = number
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._end: str | None = None  # why nothing is sent or delivered any more
        self._sending = asyncio.Lock()
        self._answer: Future | None = None  # to what is being sent
        self._num_full = 0  # how often the other end was full, and has read since. It may tell the latter first.
        self._num_resumed = 0
        self._may_send = asyncio.Event()
        self._can_read = asyncio.Event()
        self._parts: list[Frame] = []  # of a message that has not arrived in full; the runtime's thread uses it
        self._lock = threading.RLock()  # guards the members below
        self._unread: deque[tuple[list[Frame], int]] = deque()  # messages, and their bytes
        self._num_unread_bytes = 0
        self._is_full = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent, and nothing is left to be received."""
        return self._end is not None and (not self._unread or self._loop.is_closed())

    # ---- Sending

    async def send(self, frames: list[Frame]) -> None:
        """Returns when the frames may be reused: they have been copied, or the other end has the message.

        Raises:
            CommClosedError: the channel has ended, or the message cannot be sent. The channel is aborted.
        """
        async with self._sending:
            try:
                for batch in _batches(frames):
                    await self._await_room()
                    self._answer = self.peer.invoke(DELIVER, self.number, *batch, timeout=_FOREVER_S)
                    if batch.lengths is None or self._answer.done():
                        await self._settle()
            except BaseException as error:
                end = self._end
                self.abort()  # the other end may have a part of the message
                if isinstance(error, Exception) and not isinstance(error, CommClosedError):
                    raise CommClosedError(end or str(error)) from error
                raise

    async def _await_room(self) -> None:
        await self._settle()
        while self._end is None and self._num_full > self._num_resumed:
            self._may_send.clear()
            await self._may_send.wait()
        if self._end is not None:
            raise CommClosedError(self._end)

    async def _settle(self) -> None:
        """Awaits the answer to what was sent last."""
        if self._answer is None:
            return
        answer = await self._answer
        self._answer = None
        if answer == CLOSED:
            raise CommClosedError(f"'{self.peer.name}' has closed the comm")
        self._num_full += answer == FULL

    def resume(self) -> None:
        """Lets the next message be sent: the other end, which was full, has read."""
        self._num_resumed += 1
        self._may_send.set()

    # ---- Receiving

    async def receive(self) -> list[Frame]:
        """Returns the next message. If this is cancelled, the message stays the next one.

        Raises:
            CommClosedError: the channel has ended, and no message is left
        """
        while not self._unread:
            if self._end is not None:
                raise CommClosedError(self._end)
            self._can_read.clear()
            await self._can_read.wait()
        with self._lock:
            frames, num_bytes = self._unread.popleft()
            self._num_unread_bytes -= num_bytes
            resumes = self._is_full and self._num_unread_bytes < MOST_UNREAD_BYTES
            self._is_full = self._is_full and not resumes
        if resumes and self._end is None:
            self.peer.tell(RESUME, self.number)
        return frames

    def deliver(self, frames: list[Tensor] | bytes, lengths: list[int] | None, is_last: bool) -> int:
        """Takes a part of a message from the other end, on the runtime's thread. Returns the answer to it."""
        try:
            self._parts += _separate(frames, lengths)
        except BaseException:  # the writer may not wait for the answer
            _loops.call_soon(self._loop, self.abort)
            raise
        if not is_last:
            return GO_ON if self._end is None else CLOSED
        message, self._parts = self._parts, []
        num_bytes = _MESSAGE_BYTES + sum(map(len, message))
        with self._lock:
            if self._end is not None:
                return CLOSED
            self._unread.append((message, num_bytes))
            self._num_unread_bytes += num_bytes
            self._is_full = self._num_unread_bytes >= MOST_UNREAD_BYTES
            answer = FULL if self._is_full else GO_ON
        _loops.call_soon(self._loop, self._can_read.set)
        return answer

    # ---- Ends

    async def close(self) -> None:
        """Closes this end once the other end has what is being sent."""
        async with self._sending:
            with suppress(Exception):  # the comm is closed in any case
                await self._settle()
            self.abort()

    def abort(self) -> None:
        """Closes this end at once. What is being sent or received fails, and unread messages are dropped."""
        is_open = self._end is None
        self.end("the comm is closed")
        self._unread.clear()
        if is_open:
            if self._sending.locked() and self._answer is not None:  # otherwise it was copied, and may arrive
                self._answer.cancel()
            self.peer.tell(CLOSE, self.number)

    def end(self, reason: str) -> None:
        """Lets nothing be sent or delivered any more. Messages that have arrived can still be received."""
        with self._lock:
            if self._end is not None:
                return
            self._end = reason
        if not self._loop.is_closed():  # otherwise no task waits
            self._can_read.set()
            self._may_send.set()
        self._forget(self)

    def abandon(self, name: str) -> None:
        """Aborts the channel of a comm that was destroyed without being closed. On any thread."""
        if self._end is None:
            _log.warning("%s was destroyed without being closed", name)
            _loops.call_soon(self._loop, self.abort)


class _Batch(NamedTuple):
    """What one call delivers of a message."""

    frames: list[Frame] | bytes
    lengths: list[int] | None  # of the frames, if they were copied into one
    is_last: bool


def _batches(frames: list[Frame]) -> Iterator[_Batch]:
    lengths = [nbytes(frame) for frame in frames]
    if sum(lengths) <= _MOST_COPIED_BYTES:
        yield _Batch(b"".join(map(ensure_memoryview, frames)), lengths, True)
        return
    for begin in range(0, len(frames), _MOST_FRAMES):
        end = begin + _MOST_FRAMES
        yield _Batch([ensure_memoryview(frame) for frame in frames[begin:end]], None, end >= len(frames))


def _separate(frames: list[Tensor] | bytes, lengths: list[int] | None) -> list[Frame]:
    """Returns the frames of a batch. The receiver may write to them."""
    if lengths is None:
        return [frame.numpy().data for frame in cast("list[Tensor]", frames)]
    whole = memoryview(bytearray(cast("bytes", frames)))
    ends = itertools.accumulate(lengths)
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]
