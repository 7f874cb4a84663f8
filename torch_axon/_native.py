"""Loads the extension `torch_axon._C` and its UCX on first use, and checks the version of torch."""

from __future__ import annotations

import atexit
import os
from functools import cache
from typing import TYPE_CHECKING

import torch

from torch_axon import _build

if TYPE_CHECKING:
    from types import ModuleType


def mismatch() -> str | None:
    """Returns why this torch does not fit this build and what to install, or None if it fits."""
    built_for = _minor(_build.TORCH_VERSION)
    if _minor(torch.__version__) == built_for:
        return None
    return (
        f"torch_axon {_build.VERSION} was built for torch {built_for}.*, but this is torch {torch.__version__}. "
        f"Install the torch it was built for (pip install 'torch=={built_for}.*') or build torch_axon for this one "
        f"(pip install --no-build-isolation --force-reinstall --no-deps torch_axon from its sources)."
    )


@cache
def load() -> ModuleType:
    """Returns the extension module, loading it on the first call.

    Raises:
        ImportError: the extension was built for another version of torch
        OSError: UCX cannot be loaded
    """
    if reason := mismatch():
        raise ImportError(reason)
    if _build.UCX_ROOT is None:
        _load_ucx()
    from torch_axon import _C

    # Runs before the interpreter and torch destroy objects that the engine's thread may still use. Handlers that are
    # registered later run first, so the handlers of users can still communicate.
    atexit.register(_C.shut_down)
    os.register_at_fork(before=_C.end_unused_engine)  # so that the child can start its own
    return _C


# Variables that UCX reads while it is being loaded. Values set by the user take precedence.
_UCX_DEFAULTS = {
    # Do not patch the process's memory functions. The patches keep caches of registered memory valid, but no transport
    # of the wheel has such a cache, and installing the patches takes 0.4 s.
    "UCX_MEM_EVENTS": "n",
    # Keep UCX's errors off stdout, such as one about a peer that exited before its segment was attached. Our own errors
    # name the peer.
    "UCX_LOG_LEVEL": "fatal",
}


def _load_ucx() -> None:
    """Loads the wheel's UCX with our defaults. A UCX that another package has already loaded keeps its settings."""
    import libucx  # type: ignore[import-untyped]

    ours = [name for name in _UCX_DEFAULTS if name not in os.environ]
    os.environ.update({name: _UCX_DEFAULTS[name] for name in ours})
    try:
        libucx.load_library()
    finally:
        for name in ours:
            del os.environ[name]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
