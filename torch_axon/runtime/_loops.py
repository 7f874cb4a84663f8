"""Callbacks on event loops from other threads, and notification when a loop is closed.

asyncio has no event for the end of a loop. However, a closed loop drops its timers, so we schedule a timer that is
never due. Its callback is destroyed within `loop.close()`, and its finalizer notifies us.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Callable
from typing import Protocol

_NEVER_S = 10 * 365 * 24 * 3600.0


class Listener(Protocol):
    def loop_closed(self) -> None: ...


class _Sentinel:
    """The callback of the timer that is never due."""

    def __init__(self) -> None:
        self.listeners: weakref.WeakSet[Listener] = weakref.WeakSet()

    def __call__(self) -> None:
        """Does nothing; the timer is due in ten years."""

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            return
        for listener in list(self.listeners):
            listener.loop_closed()


_sentinels: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Sentinel]] = weakref.WeakKeyDictionary()


def watch(loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
    """Calls `listener.loop_closed()` when the loop is closed, if the listener still exists.

    This must be called on the loop's thread.
    """
    reference = _sentinels.get(loop)
    sentinel = None if reference is None else reference()
    if sentinel is None:
        sentinel = _Sentinel()
        loop.call_later(_NEVER_S, sentinel)
        _sentinels[loop] = weakref.ref(sentinel)
    sentinel.listeners.add(listener)


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> bool:
    """Schedules a callback on a loop, from any thread. Returns False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True
