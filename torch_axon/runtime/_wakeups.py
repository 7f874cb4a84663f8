"""How event loops hear of calls that are finished: one descriptor a loop, one wake-up for all that have come."""

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

    def _on_finished(self) -> None:
        futures: list[Future] = self.completions.take()
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
