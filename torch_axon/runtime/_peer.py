"""The other end of a connection."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any

from torch_axon.runtime._closable import Closable
from torch_axon.runtime._future import Future
from torch_axon.runtime._generators import Answers
from torch_axon.runtime._memory import BY_DEFAULT, AnyMemory, Policy, policy_of, read_answer
from torch_axon.runtime._names import NUMBER

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection
    from torch_axon.runtime._runtime import Runtime

# How long the end itself may take, once it is due.
_LONGEST_END_S = 1.0
# How often a loop looks for it, of which nobody tells: more and more seldom.
_LEAST_LOOK_INTERVAL_S, _MOST_LOOK_INTERVAL_S = 0.002, 0.05

_numbers = itertools.count()  # of generators, of all peers of this process


class Peer(Closable):
    """A runtime of another process, or of this one. Made by `Runtime.connect`; for any thread.

    A context manager, and an asynchronous one: leaving it closes the peer.
    """

    def __init__(self, runtime: Runtime, connection: RuntimeConnection) -> None:
        self._runtime = runtime
        self._connection = connection
        self._timeout = runtime.timeout
        self.name: str = connection.name
        self.incarnation: int = connection.incarnation

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

        `timeout` and `memory` are not handed to the function: see `options` for one with parameters of these names.
        """
        if memory is not None:
            return self._start(function, args, kwargs, timeout, policy_of(memory, read_answer))
        limit = self._timeout if timeout is None else timeout
        try:  # as _start does, without another call: most calls come this way
            return Future(self, self._connection.invoke(function, args, kwargs, limit, True), BY_DEFAULT)
        except TypeError:
            _check(function, limit)
            raise

    def _start(
        self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None, policy: Policy
    ) -> Future:
        limit = self._timeout if timeout is None else timeout
        try:
            if policy.where is None:
                call = self._connection.invoke(function, args, kwargs, limit, True)
            else:
                call = self._runtime._core.invoke_into(self._connection, function, args, kwargs, limit, policy.where)
        except TypeError:
            _check(function, limit)
            raise
        return Future(self, call, policy)

    def options(self, *, timeout: float | None = None, memory: AnyMemory = None, ahead: int = 16) -> Options:
        """This peer with options for calls, whose named arguments are then all the function's.

            peer.options().invoke("wait_for", timeout=3)                # the function's own timeout
            patient = peer.options(timeout=600)
            patient.invoke("train", epochs=3)

        Args:
            timeout: seconds that a call may take; None: as long as the runtime says
            memory: where tensors of answers and values arrive, see `Memory`
            ahead: values of a generator that are asked for before they are used

        Returns:
            What has `invoke`, `tell` and `iterate`, and can be given to `publish`.
        """
        return Options(self, timeout, memory, ahead)

    def tell(self, function: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Future:
        """Calls a function without waiting for what becomes of it: done, with None, once the message has left.

        At most 1,023 messages of a connection are under way; others wait for those to be dealt with.
        """
        return self._tell(function, args, kwargs, timeout)

    def _tell(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None) -> Future:
        limit = self._timeout if timeout is None else timeout
        try:
            call = self._connection.invoke(function, args, kwargs, limit, False)
        except TypeError:
            _check(function, limit)
            raise
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
        return self.options(timeout=timeout, memory=memory, ahead=ahead).iterate(function, *args, **kwargs)

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


class Options:
    """A peer with options for its calls. Made by `Peer.options`; for any thread, and for any number of calls."""

    def __init__(self, peer: Peer, timeout: float | None, memory: AnyMemory, ahead: int) -> None:
        if not isinstance(ahead, int) or ahead < 1:
            raise ValueError(f"iterate: ahead is {ahead!r}; allowed: 1 or more")
        self._peer = peer
        self._timeout = timeout
        self._memory = memory
        self._ahead = ahead
        self._policy = BY_DEFAULT if memory is None else policy_of(memory, read_answer)

    def invoke(self, function: str, /, *args: Any, **kwargs: Any) -> Future:
        """As `Peer.invoke`. All arguments are the function's."""
        return self._peer._start(function, args, kwargs, self._timeout, self._policy)

    def tell(self, function: str, /, *args: Any, **kwargs: Any) -> Future:
        """As `Peer.tell`. All arguments are the function's."""
        return self._peer._tell(function, args, kwargs, self._timeout)

    def iterate(self, function: str, /, *args: Any, **kwargs: Any) -> Answers:
        """As `Peer.iterate`. All arguments are the function's."""
        number = next(_numbers)
        kwargs[NUMBER] = number
        opening = self._peer._start(function, args, kwargs, self._timeout, BY_DEFAULT)
        return Answers(self._peer, opening, number, self._ahead, self._timeout, self._memory)


def _check(function: object, timeout: object) -> None:
    """Raises what is wrong with these, where something is."""
    if not isinstance(function, str):
        raise TypeError(f"invoke: function is {function!r}; allowed: the name of a function of the peer's")
    if not isinstance(timeout, int | float):
        raise TypeError(f"invoke: timeout is {timeout!r}; allowed: a number of seconds")


def publish(peers: Iterable[Peer | Options], function: str, /, *args: Any, **kwargs: Any) -> list[Future]:
    """Tells all of them, without waiting for any; the futures are in their order.

    A `timeout` is for each of them, and is not handed to the function, unless they are `Options` of peers.
    """
    return [peer.tell(function, *args, **kwargs) for peer in peers]
