"""How event loops hear of calls that are finished.

While answers come soon a loop looks for them itself, each time around; otherwise it sleeps, and one descriptor wakes it
for all that have come.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from torch_axon import _native

if TYPE_CHECKING:
    from torch_axon.runtime._future import Future


class Wakeups:
    """A loop's queue of finished calls. The loop reads it for as long as it is not closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.completions = _native.load().CompletionQueue()
        loop.add_reader(self.completions.fileno(), self._on_finished)

        self._loop = weakref.ref(loop)
        self._num_awaited = 0
        self._drives = False

    def expect(self, drives: bool) -> None:
        """A call is awaited from here on. On the loop's thread."""
        self._num_awaited += 1
        if drives and not self._drives:
            self._drives = True
            self.completions.begin_driving()
            self._drive_soon()

    def _drive_soon(self) -> None:
        loop = self._loop()
        if loop is not None:
            loop.call_soon(self._drive)

    def _drive(self) -> None:
        self._drives = False
        try:
            futures: list[Future] | None = self.completions.drive()
            if futures:
                self._tell(futures)  # whose callbacks may await others
            if futures is not None and self._num_awaited > 0 and not self._drives:
                self._drives = True
                self._drive_soon()
        finally:  # Ctrl-C may come anywhere
            if not self._drives:
                self.completions.stop_driving()

    def _on_finished(self) -> None:
        self._tell(self.completions.take())

    def _tell(self, futures: list[Future]) -> None:
        self._num_awaited -= len(futures)
        for future in futures:
            future._run_callbacks()


_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Wakeups] = weakref.WeakKeyDictionary()


def of(loop: asyncio.AbstractEventLoop) -> Wakeups:
    wakeups = _of_loop.get(loop)
    if wakeups is None:
        wakeups = _of_loop[loop] = Wakeups(loop)
    return wakeups


def tell(loop: asyncio.AbstractEventLoop, arrived: asyncio.Future[None]) -> None:
    """From wherever a call is found finished: of this loop, of another one, or of the runtime's thread."""
    if asyncio._get_running_loop() is loop:
        _set(arrived)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(_set, arrived)


def _set(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
