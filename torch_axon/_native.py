"""The extension `torch_axon._C`, loaded when it is first needed: with its UCX, on the torch it was built for."""

from __future__ import annotations

import atexit
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
        import libucx  # type: ignore[import-untyped]

        libucx.load_library()
    from torch_axon import _C

    # Before the interpreter and torch take down what the engine's thread may still call. Later-registered handlers run
    # first, so that users' own can still communicate.
    atexit.register(_C.shut_down)
    return _C


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
