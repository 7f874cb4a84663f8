"""Closes all runtimes before the interpreter shuts down."""

from __future__ import annotations

import atexit
import os
import weakref
from functools import cache
from typing import TYPE_CHECKING

from torch_axon import _native

if TYPE_CHECKING:
    from torch_axon.runtime._runtime import Runtime

_open: weakref.WeakSet[Runtime] = weakref.WeakSet()


def close(runtime: Runtime) -> None:
    """Closes the runtime at exit, if it still exists then."""
    _open.add(runtime)
    _register()


@cache
def _register() -> None:
    """Registers our exit handler once, after the extension has registered its own, so that ours runs first."""
    atexit.register(_close_all)


def _close_all() -> None:
    """Closes all runtimes at exit without draining, because their threads need the interpreter's lock.

    Daemon threads that wait for a runtime are not woken: they would continue to run while the interpreter shuts down.
    """
    _native.load().note_end_of_runtimes()
    for runtime in list(_open):
        runtime._closed = True
        if runtime._pid == os.getpid():
            runtime._end()  # even if another thread is closing it; that thread stays blocked
