"""The answer to a call, now or later."""

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
    from torch_axon._C import RuntimeCall
    from torch_axon.runtime._peer import Peer

_FOREVER_S = 365 * 24 * 3600.0
_UNSET: Any = object()
_watching = threading.RLock()  # guards who watches any future; what is collected within it may close a runtime
# How soon a thread hears that another one has unpacked an answer, and how long that may take.
_TAKING_INTERVAL_S, _LONGEST_TAKING_S = 0.0005, 60.0
_log = logging.getLogger("torch_axon.runtime")


class Future:
    """What `Peer.invoke` returns: to be awaited, or waited for, from any thread and with or without a loop.

    Waiting drives the engine, and so does a loop while it awaits answers that come soon; else the engine's thread does,
    and one wake-up of the loop serves all calls that have been answered by then.
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

    def __init__(self, peer: Peer, call: RuntimeCall, policy: Policy) -> None:
        self._peer = peer
        self._call = call
        self._policy = policy
        self._value = _UNSET
        self._exception: BaseException | None = None
        self._taker: int | None = None  # the thread that unpacks the answer
        self._callbacks: list[Callable[[], object]] | None = None  # None: nobody watches
        self._is_told = False
        self._loop_wakeups: _wakeups.Wakeups | None = None  # that hear of it
        self._is_served = False  # by the runtime's thread, which outlives any loop

    def done(self) -> bool:
        """Whether there is an answer, or an error in its place."""
        return self._call.finished

    def wait(self, timeout: float | None = None) -> Any:
        """The answer; raises what the function has raised, or TimeoutError after `timeout` seconds of waiting.

        The call itself goes on then, until its own deadline.
        """
        if self._policy.where is not None and not self._call.finished and self._peer._runtime._is_own_thread():
            raise RuntimeError(
                f"'{self._peer.name}' is waited for on the runtime's thread, which has to say where its answer goes: "
                "give the function that waits an executor, or make it asynchronous"
            )
        if not self._call.finished and not self._call.wait(_FOREVER_S if timeout is None else timeout):
            raise TimeoutError(f"no answer from '{self._peer.name}' within the {timeout} s that were waited")
        return self._outcome()

    result = wait

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the function has raised, or what went wrong on the way; None for an answer."""
        try:
            self.wait(timeout)
        except BaseException:
            if self._exception is None:
                raise
        return self._exception

    def cancel(self) -> bool:
        """Ends the call with CancelledError, unless it has ended; the function is told. Returns whether it did."""
        if self._call.finished:
            return False
        self._call.cancel()
        return self._call.wait(_FOREVER_S) and self._call.cancelled

    def cancelled(self) -> bool:
        return self._call.finished and isinstance(self.exception(), CancelledError)

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        """Calls it with this future once it is done: on the runtime's thread, or at once."""
        if not self._when_done(partial(callback, self), None):
            callback(self)

    def torch_future(self) -> torch.futures.Future[Any]:
        """The same as a future of torch's."""
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
            if not (self._peer._runtime._drives and wakeups.has_come_at_once(self._call)):
                arrived = loop.create_future()
                if self._when_done(partial(_wakeups.tell, loop, arrived), wakeups):
                    try:
                        yield from arrived
                    except asyncio.CancelledError:
                        self.cancel()
                        raise
        return self._outcome()

    def _when_done(self, callback: Callable[[], object], queue: _wakeups.Wakeups | None) -> bool:
        """False: it is done already, and this callback is not called."""
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
            elif first or not self._is_served:  # whoever comes first may be a loop that ends before the call
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
            except Exception:  # the others are to hear all the same
                _log.exception("a callback of a call to '%s' has raised", self._peer.name)

    def _outcome(self) -> Any:
        if self._value is _UNSET and self._exception is None:
            self._take_once()
        if self._exception is not None:
            raise self._exception
        return self._value

    def _take_once(self) -> None:
        """By the first thread, without a lock: what is unpacked may run any code of Python's, by finalizers say."""
        if self._call.claim_answer():
            self._taker = threading.get_ident()
            return self._take()
        until = monotonic() + _LONGEST_TAKING_S
        while self._value is _UNSET and self._exception is None:
            if self._taker == threading.get_ident() or monotonic() > until:
                raise RuntimeError(f"the answer of '{self._peer.name}' has not been unpacked: that was interrupted")
            sleep(_TAKING_INTERVAL_S)

    def _take(self) -> None:
        try:
            self._value = self._call.take_answer(self._policy.device)
        except Exception as exception:
            self._exception = exception.with_traceback(None)
        except BaseException as exception:  # of a signal handler; the answer is gone with it
            self._exception = RuntimeError(f"the unpacking of an answer was interrupted by {exception!r}")
            raise
