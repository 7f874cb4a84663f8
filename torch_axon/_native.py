"""The extension `torch_axon._C`, loaded when it is first needed: with its UCX, on the torch it was built for."""

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
    """What is wrong with the torch at hand, and what to install. None: nothing."""
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
    """The extension module. Raises ImportError on another torch than the one it was built for."""
    if reason := mismatch():
        raise ImportError(reason)
    if _build.UCX_ROOT is None:
        _load_ucx()
    from torch_axon import _C

    # Before the interpreter and torch take down what the engine's thread may still call. Later-registered handlers run
    # first, so that users' own can still communicate.
    atexit.register(_C.shut_down)
    os.register_at_fork(before=_C.end_unused_engine)  # so that the child can start its own
    return _C


# What UCX reads while it is being loaded, unless the user has set it.
_UCX_DEFAULTS = {
    # No hooks patched into the process's memory calls: they keep caches of registered memory right, which none of the
    # wheel's transports has, and take 0.4 s to install.
    "UCX_MEM_EVENTS": "n",
    # No errors on stdout, for instance of a peer that left before its segment was attached: ours say who it was.
    "UCX_LOG_LEVEL": "fatal",
}


def _load_ucx() -> None:
    """Loads the wheel's UCX with our defaults. One that another package has loaded already stays as it is."""
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
