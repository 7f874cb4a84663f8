"""Notifies event loops of finished calls.

While answers arrive soon, a loop polls for them: immediately if a single call is awaited, otherwise once per iteration.
If not, it sleeps, and one descriptor wakes it for all calls that have finished.
"""

from __future__ import annotations

import asyncio
import weakref
from time import perf_counter_ns
from typing import TYPE_CHECKING

from torch_axon import _native
from torch_axon.runtime import _loops

if TYPE_CHECKING:
    from torch_axon._C import RuntimeCallLike
    from torch_axon.runtime._future import Future

_AT_ONCE_S = 10e-6  # shorter than one iteration of a loop with a wake-up
_LONGEST_STAY_NS = 200_000  # before the loop runs its other tasks


class Wakeups:
    """A loop's queue of finished calls, which the loop reads until it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.completions = _native.load().CompletionQueue()
        loop.add_reader(self.completions.fileno(), self._on_finished)
        _loops.watch(loop, self)

        self._loop = weakref.ref(loop)
        self._num_awaited = 0
        self._drives = False
        self._comes_at_once = True  # whether the latest answer did
        self._stays_since = 0

    def has_arrived_at_once(self, call: RuntimeCallLike) -> bool:
        """Polls briefly for a call that is awaited alone, instead of returning to the loop. On the loop's thread."""
        if self._num_awaited > 0 or not self._comes_at_once:
            return False
        now = perf_counter_ns()
        if self._stays_since == 0:
            self._stays_since = now
        elif now - self._stays_since > _LONGEST_STAY_NS:
            self._stays_since = 0
            return False
        self._comes_at_once = call.wait(_AT_ONCE_S)
        return self._comes_at_once

    def expect(self, drives: bool) -> None:
        """Notes that a call is awaited on this loop. On the loop's thread."""
        self._num_awaited += 1
        if drives and not self._drives:
            self._drives = True
            self.completions.begin_driving()
            self._drive_soon()

    def forget(self) -> None:
        """Notes that a call is no longer awaited on this loop. On any thread."""
        loop = self._loop()
        if loop is not None:
            _loops.call_soon(loop, self._forget)

    def loop_closed(self) -> None:
        """Closes the descriptor. Calls that finish later are dropped, because a closed loop cannot receive them."""
        for future in self.completions.close():
            future._run_callbacks()  # this releases the loop

    def _forget(self) -> None:
        self._num_awaited -= 1

    def _drive_soon(self) -> None:
        loop = self._loop()
        if loop is not None:
            loop.call_soon(self._drive)

    def _drive(self) -> None:
        self._drives = False
        try:
            futures: list[Future] | None = self.completions.drive()
            if futures:
                self._comes_at_once = True
                self._tell(futures)  # their callbacks may await other calls
            if futures is not None and self._num_awaited > 0 and not self._drives:
                self._drives = True
                self._drive_soon()
        finally:  # KeyboardInterrupt may be raised anywhere above
            if not self._drives:
                self.completions.stop_driving()

    def _on_finished(self) -> None:
        self._tell(self.completions.take())

    def _tell(self, futures: list[Future]) -> None:
        self._num_awaited -= len(futures)
        for future in futures:
            future._run_callbacks()


_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Wakeups] = weakref.WeakKeyDictionary()
_latest: weakref.ref[Wakeups] | None = None  # a process with one loop always needs the same object


def of(loop: asyncio.AbstractEventLoop) -> Wakeups:
    """Returns the queue of a loop, creating it if necessary. On the loop's thread."""
    global _latest
    wakeups = None if _latest is None else _latest()
    if wakeups is None or wakeups._loop() is not loop:
        wakeups = _of_loop.get(loop)
        if wakeups is None:
            wakeups = _of_loop[loop] = Wakeups(loop)
        _latest = weakref.ref(wakeups)
    return wakeups


def tell(loop: asyncio.AbstractEventLoop, arrived: asyncio.Future[None]) -> None:
    """Wakes the task that awaits a call, from its own loop, another loop or the runtime's thread."""
    if asyncio._get_running_loop() is loop:
        _set(arrived)
    else:
        _loops.call_soon(loop, _set, arrived)


def _set(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
