"""The future of a call's answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import torch

from torch_axon.runtime import _wakeups
from torch_axon.runtime._memory import Policy

if TYPE_CHECKING:
    from torch_axon._C import RuntimeCallLike
    from torch_axon.runtime._peer import Peer

_FOREVER_S = 365 * 24 * 3600.0
_UNSET: Any = object()
# Guards the callbacks of all futures. It is reentrant, since garbage collection under it may close a runtime.
_watching = threading.RLock()
# How often a thread checks whether another thread has unpacked an answer, and how long that may take.
_TAKING_INTERVAL_S, _LONGEST_TAKING_S = 0.0005, 60.0
_log = logging.getLogger("torch_axon.runtime")


class Future:
    """The answer of a call, as `Peer.invoke` returns it. Any thread may wait for it, and any event loop may await it.

    A thread that waits drives the engine. An event loop drives it while answers arrive soon. Otherwise the engine's own
    thread does, and one wake-up of the loop serves all calls that have been answered by then.
    """

    __slots__ = (
        "_call",
        "_callbacks",
        "_exception",
        "_is_served",
        "_is_told",
        "_loop_wakeups",
        "_peer",
        "_policy",
        "_taker",
        "_value",
    )

    def __init__(self, peer: Peer, call: RuntimeCallLike, policy: Policy) -> None:
        self._peer = peer
        self._call = call
        self._policy = policy
        self._value = _UNSET
        self._exception: BaseException | None = None
        self._taker: int | None = None  # the thread that unpacks the answer
        self._callbacks: list[Callable[[], object]] | None = None  # None: no callbacks yet
        self._is_told = False
        self._loop_wakeups: _wakeups.Wakeups | None = None  # those of the loop that awaits it
        self._is_served = False  # whether the runtime's thread, which outlives any loop, runs the callbacks

    def done(self) -> bool:
        """Returns whether the answer, or an error in its place, has arrived."""
        return self._call.finished

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the answer and returns it. `result` is the same method.

        Args:
            timeout: seconds to wait; None: until the call's own deadline. The call continues after a timeout here.

        Returns:
            What the function returned; None for a one-way call.

        Raises:
            Exception: what the function raised, as the same class if this process has imported it
            RemoteError: the function raised an exception of a class that this process cannot construct
            LookupError: the peer has no function or mailbox of this name
            TimeoutError: no answer within `timeout`, or the call's own deadline passed
            CancelledError: the call was cancelled
            PeerLostError: the peer's process or the connection ended
            RuntimeClosedError: this process closed the runtime or the connection
            BufferError: a limit was reached, such as `max_waiting_calls`; the text names it
            RuntimeError: the runtime's own thread waits, but is needed to place the answer's tensors
        """
        if self._policy.where is not None and not self._call.finished and self._peer._runtime._is_own_thread():
            raise RuntimeError(
                f"the runtime's thread waits for an answer of '{self._peer.name}', but must itself choose the memory "
                "for that answer: register the waiting function with an executor, or make it asynchronous"
            )
        if not self._call.finished and not self._call.wait(_FOREVER_S if timeout is None else timeout):
            raise self._late(timeout)
        return self._outcome()

    result = wait

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the answer and returns the exception in its place.

        Args:
            timeout: seconds to wait; None: until the call's own deadline

        Returns:
            What the function raised or what failed on the way; None if the call succeeded.

        Raises:
            TimeoutError: no answer within `timeout`
        """
        try:
            self.wait(timeout)
        except BaseException:
            if self._exception is None:
                raise
        return self._exception

    def cancel(self) -> bool:
        """Cancels the call, unless it has ended, and notifies the peer's function.

        Returns:
            Whether the call ended with CancelledError by this.
        """
        if self._call.finished:
            return False
        self._call.cancel()
        return self._call.wait(_FOREVER_S) and self._call.cancelled

    def cancelled(self) -> bool:
        """Returns whether the call ended with CancelledError."""
        return self._call.finished and isinstance(self.exception(), CancelledError)

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        """Calls a function with this future when it is done.

        The callback runs on the runtime's thread, or at once on this thread if the future is already done. Exceptions
        that it raises on the runtime's thread are logged.

        Args:
            callback: a function that takes the future; it must not block
        """
        if not self._when_done(partial(callback, self), None):
            callback(self)

    def torch_future(self) -> torch.futures.Future[Any]:
        """Returns a `torch.futures.Future` that completes with the same value or exception."""
        future: torch.futures.Future[Any] = torch.futures.Future()

        def copy(done: Future) -> None:
            exception = done.exception()
            if exception is None:
                future.set_result(done.result())
            else:
                future.set_exception(exception)

        self.add_done_callback(copy)
        return future

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._call.finished:
            loop = asyncio.get_running_loop()
            wakeups = _wakeups.of(loop)
            if not (self._peer._runtime._drives and wakeups.has_arrived_at_once(self._call)):
                arrived = loop.create_future()
                if self._when_done(partial(_wakeups.tell, loop, arrived), wakeups):
                    try:
                        yield from arrived
                    except asyncio.CancelledError:
                        self.cancel()
                        raise
        return self._outcome()

    def _when_done(self, callback: Callable[[], object], queue: _wakeups.Wakeups | None) -> bool:
        """Adds a callback. Returns False, and does not call it, if the future is already done."""
        with _watching:
            if self._is_told:
                return False
            others = self._callbacks
            first = others is None
            self._callbacks = [callback] if others is None else [*others, callback]
            if first and queue is not None:
                watched = self._call.watch(queue.completions, self)
                if watched:
                    self._loop_wakeups = queue
                    queue.expect(self._peer._runtime._drives)
            elif first or not self._is_served:  # the first watcher may be a loop that closes before the call ends
                self._is_served = True
                watched = (first or self._leave_loop()) and self._call.watch_served(self._peer._runtime._core, self)
            else:
                watched = True
        if not watched:
            self._run_callbacks(but=callback)
        return watched

    def _leave_loop(self) -> bool:
        left = self._call.unwatch()
        if left and self._loop_wakeups is not None:
            self._loop_wakeups.forget()
        return left

    def _run_callbacks(self, but: Callable[[], object] | None = None) -> None:
        with _watching:
            self._is_told = True
            callbacks = self._callbacks or []
            self._callbacks = None
        for callback in callbacks:
            if callback is but:
                continue
            try:
                callback()
            except Exception:  # the other callbacks must still run
                _log.exception("a callback of a call to '%s' raised an exception", self._peer.name)

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"no answer from '{self._peer.name}' within {timeout} s of waiting")

    def _outcome(self) -> Any:
        if self._value is _UNSET and self._exception is None:
            self._take_once()
        if self._exception is not None:
            raise self._exception
        return self._value

    def _take_once(self) -> None:
        """Unpacks the answer on the first thread that asks for it.

        No lock is held, because unpacking may run arbitrary Python code, such as finalizers.
        """
        if self._call.claim_answer():
            self._taker = threading.get_ident()
            return self._take()
        until = monotonic() + _LONGEST_TAKING_S
        while self._value is _UNSET and self._exception is None:
            if self._taker == threading.get_ident() or monotonic() > until:
                raise RuntimeError(f"the answer of '{self._peer.name}' was lost: unpacking it was interrupted")
            sleep(_TAKING_INTERVAL_S)

    def _take(self) -> None:
        try:
            self._value = self._call.take_answer(self._policy.device)
        except Exception as exception:
            self._exception = exception.with_traceback(None)
        except BaseException as exception:  # from a signal handler; the answer is lost
            self._exception = RuntimeError(f"unpacking an answer was interrupted by {exception!r}")
            raise
