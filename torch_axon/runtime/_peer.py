"""The other end of a connection."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch_axon.runtime._future import Future
from torch_axon.runtime._generators import NUMBER, Answers
from torch_axon.runtime._memory import BY_DEFAULT, AnyMemory, policy_of

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection
    from torch_axon.runtime._runtime import Runtime

# How long the end itself may take, once it is due.
_LONGEST_END_S = 1.0
# How often a loop looks for it, of which nobody tells: more and more seldom.
_LEAST_LOOK_INTERVAL_S, _MOST_LOOK_INTERVAL_S = 0.002, 0.05


class Peer:
    """A runtime of another process, or of this one. Made by `Runtime.connect`; for any thread.

    A context manager, and an asynchronous one: leaving it closes the peer.
    """

    def __init__(self, runtime: Runtime, connection: RuntimeConnection) -> None:
        self._runtime = runtime
        self._connection = connection
        self._timeout = runtime.timeout
        self._numbers = itertools.count()  # of generators
        self.name: str = connection.name
        self.incarnation: int = connection.incarnation

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(drain=error is None)

    def __repr__(self) -> str:
        return f"Peer({self.name!r}, incarnation={self.incarnation:#x})"

    def invoke(
        self,
        function: str,
        /,
        *args: Any,
        timeout: float | None = None,
        memory: AnyMemory = None,
        **kwargs: Any,
    ) -> Future:
        """Calls a function of the peer's; the future is done after `timeout` seconds at the latest.

        Arguments and answers: tensors, what speaks DLPack or the buffer protocol, None, bool, int, float, str, bytes,
        and lists, tuples and dicts of such; tuples arrive as lists. Tensors are read until the future is done: what is
        written into them before may be what arrives. `memory` says where tensors of the answer arrive, see `Memory`: by
        default on the CPU, or on CUDA where they were there at the peer and there is any here.
        """
        policy = BY_DEFAULT if memory is None else policy_of(memory)
        limit = self._timeout if timeout is None else timeout
        if policy.where is None:
            call = self._connection.invoke(function, args, kwargs, limit, True)
        else:
            call = self._runtime._core.invoke_into(self._connection, function, args, kwargs, limit, policy.where)
        return Future(self, call, policy)

    def tell(self, function: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Future:
        """Calls a function without waiting for what becomes of it: done, with None, once the message has left.

        At most 1,023 messages of a connection are under way; others wait for those to be dealt with.
        """
        call = self._connection.invoke(function, args, kwargs, self._timeout if timeout is None else timeout, False)
        return Future(self, call, BY_DEFAULT)

    def iterate(
        self,
        function: str,
        /,
        *args: Any,
        ahead: int = 16,
        timeout: float | None = None,
        memory: AnyMemory = None,
        **kwargs: Any,
    ) -> Answers:
        """The values of a generator function of the peer's, `ahead` of which are asked for before they are used.

        `timeout` is for each of them, and `memory` says where their tensors arrive. An error, of the generator or on
        the way, ends the iteration.
        """
        if ahead < 1:
            raise ValueError(f"iterate: ahead is {ahead}; allowed: 1 or more")
        number = next(self._numbers)
        kwargs[NUMBER] = number
        opening = self.invoke(function, *args, timeout=timeout, **kwargs)
        return Answers(self, opening, number, ahead, timeout, memory)

    def send(self, tag: str, value: Any, /, timeout: float | None = None) -> Future:
        """Sends a message to a mailbox of the peer's, in order with the others to this tag.

        The future is done once the mailbox has accepted it. While it is full, messages wait here, and count as calls
        that wait: beyond `max_waiting_calls` of these, BufferError ends the newest.
        """
        call = self._connection.send(tag, value, self._timeout if timeout is None else timeout)
        return Future(self, call, BY_DEFAULT)

    def close(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Takes no calls any more, in either direction, and waits for those under way, for `timeout` seconds at most.

        What is left then, and without `drain` at once, ends with an error here and at the peer, which is told in any
        case. Returns whether nothing was left. On the runtime's thread and where a loop is running it does not wait
        for what is under way, and returns False: that goes on, for as long. Closing again does nothing.
        """
        limit = self._begin_closing(drain, timeout)
        is_held_up = self._runtime._is_own_thread() or asyncio._get_running_loop() is not None
        return self._await_end(0.0 if is_held_up and limit > 0 else limit + _LONGEST_END_S)

    async def aclose(self, drain: bool = True, timeout: float | None = None) -> bool:
        """`close`, which is awaited."""
        until = monotonic() + self._begin_closing(drain, timeout) + _LONGEST_END_S
        interval = _LEAST_LOOK_INTERVAL_S
        while not self._connection.await_end(0.0) and monotonic() < until:
            await asyncio.sleep(interval)
            interval = min(2 * interval, _MOST_LOOK_INTERVAL_S)
        return self._await_end(0.0)

    def _begin_closing(self, drain: bool, timeout: float | None) -> float:
        limit = (self._timeout if timeout is None else timeout) if drain else 0.0
        self._connection.close(limit)
        return limit

    def _await_end(self, timeout: float) -> bool:
        self._connection.await_end(timeout)
        drained: bool = self._connection.has_drained()
        return drained

    @property
    def failure(self) -> str | None:
        """Why the peer cannot be called any more; None while it can."""
        failure = self._connection.failure()
        return None if failure is None else failure[1]


def publish(peers: Iterable[Peer], function: str, /, *args: Any, **kwargs: Any) -> list[Future]:
    """Tells all of them, without waiting for any; the futures are in their order."""
    return [peer.tell(function, *args, **kwargs) for peer in peers]
