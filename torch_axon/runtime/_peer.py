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
from torch_axon.runtime._remote_access import RemoteAccess

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection
    from torch_axon.runtime._runtime import Runtime

# How long closing itself may take after the time for draining.
_LONGEST_END_S = 1.0
# How often a loop polls for the end of a connection, since no event reports it. The interval doubles.
_LEAST_LOOK_INTERVAL_S, _MOST_LOOK_INTERVAL_S = 0.002, 0.05

_numbers = itertools.count()  # of generators, unique in this process


class Peer(RemoteAccess, Closable):
    """A connected runtime of another process, or of this one, as `Runtime.connect` returns it.

    All methods may be called on any thread. A peer is a context manager, also an asynchronous one, that closes the
    connection.

    Attributes:
        name: the name that the peer's runtime was given
        incarnation: a number that identifies that runtime; a restarted runtime has another one
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
        """Calls a function of the peer.

        Arguments and answers may be tensors, objects with DLPack or the buffer protocol, None, bool, int, float, str,
        bytes, and lists, tuples and dicts of these. Tuples arrive as lists. Tensors are not copied when this returns:
        do not write to them until the future is done.

        Args:
            function: the name under which the peer registered the function
            args: positional arguments of the function
            timeout: seconds until the call fails; None: the runtime's timeout
            memory: where tensors of the answer arrive, see `Memory`. By default they arrive on the CPU, or on CUDA if
                they are on CUDA at the peer and this process has CUDA.
            kwargs: named arguments of the function. It gets neither `timeout` nor `memory`; use `options` for functions
                with parameters of these names.

        Returns:
            The future of the answer, which is done within `timeout`. Failures of the call are raised by the future.

        Raises:
            TypeError: an argument cannot be sent, or `function` or `timeout` has a wrong type
            ValueError: an argument is nested deeper than 64 levels, or `timeout` is negative
            OverflowError: an int needs more than 64 bits
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
        """Returns this peer with options for calls, so that all named arguments of a call go to the function.

            peer.options().invoke("wait_for", timeout=3)                # the function's own timeout
            patient = peer.options(timeout=600)
            patient.invoke("train", epochs=3)

        Args:
            timeout: seconds until a call fails; None: the runtime's timeout
            memory: where tensors of answers and values arrive, see `Memory`
            ahead: how many values of a generator are requested before they are used; at least 1

        Returns:
            An object with `invoke`, `tell` and `iterate` that `publish` accepts as well.

        Raises:
            TypeError: `memory` is neither a device nor a function nor a `Memory`
            ValueError: `ahead` is less than 1
        """
        return Options(self, timeout, memory, ahead)

    def tell(self, function: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Future:
        """Makes a one-way call: the function's result and its exceptions are dropped.

        At most 1,023 calls of a connection are in flight; further ones are queued.

        Args:
            function: the name under which the peer registered the function
            args: positional arguments of the function, as for `invoke`
            timeout: seconds within which the message must be sent; None: the runtime's timeout
            kwargs: named arguments of the function

        Returns:
            A future that is done, with None, when the message has been sent.

        Raises:
            TypeError: an argument cannot be sent, or `function` or `timeout` has a wrong type
            ValueError: an argument is nested deeper than 64 levels, or `timeout` is negative
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
        """Calls a generator function of the peer and returns an iterator over its values.

        Args:
            function: the name under which the peer registered the generator function
            args: positional arguments of the function, as for `invoke`
            ahead: how many values are requested before they are used; at least 1
            timeout: seconds until the request of one value fails; None: the runtime's timeout
            memory: where tensors of the values arrive, see `Memory`
            kwargs: named arguments of the function

        Returns:
            The values in order. The iteration ends with the first exception, of the generator or of the connection.

        Raises:
            TypeError, ValueError, OverflowError: an argument cannot be sent, as for `invoke`, or `ahead` is less than 1
        """
        return self.options(timeout=timeout, memory=memory, ahead=ahead).iterate(function, *args, **kwargs)

    def send(self, tag: str, value: Any, /, timeout: float | None = None) -> Future:
        """Sends a message to a mailbox of the peer, in order with the other messages of this peer to the same tag.

        While the mailbox is full, messages are queued here and count toward `max_waiting_calls`.

        Args:
            tag: the tag of the mailbox
            value: the message, of the same types as arguments of `invoke`
            timeout: seconds within which the mailbox must accept the message; None: the runtime's timeout

        Returns:
            A future that is done, with None, when the mailbox has accepted the message. It raises BufferError if
                `max_waiting_calls` calls and messages are already queued.

        Raises:
            TypeError, ValueError, OverflowError: the message cannot be sent, as for `invoke`
        """
        call = self._connection.send(tag, value, self._timeout if timeout is None else timeout)
        return Future(self, call, BY_DEFAULT)

    def close(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Refuses new calls in both directions, waits for calls in flight, and closes the connection.

        The peer is notified. Calls that are still in flight after `timeout`, or without `drain` at once, fail here and
        at the peer. On the runtime's thread and on a thread with a running event loop this does not wait. Calls in
        flight then continue in the background for up to `timeout`. Closing again does nothing.

        Args:
            drain: whether to wait for calls in flight
            timeout: seconds to wait for them; None: the runtime's timeout

        Returns:
            Whether no call was left in flight. False if this did not wait.
        """
        limit = self._begin_closing(drain, timeout)
        is_held_up = self._runtime._is_own_thread() or asyncio._get_running_loop() is not None
        return self._await_end(0.0 if is_held_up and limit > 0 else limit + _LONGEST_END_S)

    async def aclose(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Closes the connection as `close` does, and awaits the end.

        Args:
            drain: whether to wait for calls in flight
            timeout: seconds to wait for them; None: the runtime's timeout

        Returns:
            Whether no call was left in flight.
        """
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
        """Why the peer can no longer be called; None while it can."""
        failure = self._connection.failure()
        return None if failure is None else failure[1]


class Options:
    """A peer with options for its calls, as `Peer.options` returns it.

    It may be used on any thread and for any number of calls. All arguments of its methods go to the function.
    """

    def __init__(self, peer: Peer, timeout: float | None, memory: AnyMemory, ahead: int) -> None:
        if not isinstance(ahead, int) or ahead < 1:
            raise ValueError(f"iterate: ahead is {ahead!r}; allowed: 1 or more")
        self._peer = peer
        self._timeout = timeout
        self._memory = memory
        self._ahead = ahead
        self._policy = BY_DEFAULT if memory is None else policy_of(memory, read_answer)

    def invoke(self, function: str, /, *args: Any, **kwargs: Any) -> Future:
        """Calls a function of the peer, as `Peer.invoke` does.

        Args:
            function: the name under which the peer registered the function
            args: positional arguments of the function
            kwargs: named arguments of the function, whatever their names

        Returns:
            The future of the answer.

        Raises:
            TypeError, ValueError, OverflowError: an argument cannot be sent, as for `Peer.invoke`
        """
        return self._peer._start(function, args, kwargs, self._timeout, self._policy)

    def tell(self, function: str, /, *args: Any, **kwargs: Any) -> Future:
        """Makes a one-way call, as `Peer.tell` does.

        Args:
            function: the name under which the peer registered the function
            args: positional arguments of the function
            kwargs: named arguments of the function, whatever their names

        Returns:
            A future that is done when the message has been sent.

        Raises:
            TypeError, ValueError, OverflowError: an argument cannot be sent, as for `Peer.invoke`
        """
        return self._peer._tell(function, args, kwargs, self._timeout)

    def iterate(self, function: str, /, *args: Any, **kwargs: Any) -> Answers:
        """Calls a generator function of the peer, as `Peer.iterate` does.

        Args:
            function: the name under which the peer registered the generator function
            args: positional arguments of the function
            kwargs: named arguments of the function, whatever their names

        Returns:
            The values in order.

        Raises:
            TypeError, ValueError, OverflowError: an argument cannot be sent, as for `Peer.invoke`
        """
        number = next(_numbers)
        kwargs[NUMBER] = number
        opening = self._peer._start(function, args, kwargs, self._timeout, BY_DEFAULT)
        return Answers(self._peer, opening, number, self._ahead, self._timeout, self._memory)


def _check(function: object, timeout: object) -> None:
    """Checks two arguments of a call that the extension has refused.

    Raises:
        TypeError: one of them has a wrong type
    """
    if not isinstance(function, str):
        raise TypeError(f"invoke: function is {function!r}; allowed: the name of a function of the peer")
    if not isinstance(timeout, int | float):
        raise TypeError(f"invoke: timeout is {timeout!r}; allowed: a number of seconds")


def publish(peers: Iterable[Peer | Options], function: str, /, *args: Any, **kwargs: Any) -> list[Future]:
    """Makes the same one-way call to several peers without waiting for any of them.

    Args:
        peers: the peers, or their `Options`
        function: the name under which the peers registered the function
        args: positional arguments of the function
        kwargs: named arguments of the function. For a `Peer`, `timeout` is the option of `Peer.tell`; for `Options` of
            a peer it goes to the function.

    Returns:
        One future per peer, in the order of `peers`.

    Raises:
        TypeError, ValueError, OverflowError: an argument cannot be sent, as for `Peer.invoke`
    """
    return [peer.tell(function, *args, **kwargs) for peer in peers]
