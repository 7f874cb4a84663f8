"""Loads the extension `torch_axon._C` on first use, and checks the version of torch."""

from __future__ import annotations

import atexit
import os
from functools import cache
from importlib.util import find_spec
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
    """
    if reason := mismatch():
        raise ImportError(reason)
    from torch_axon import _C

    if _build.UCX_ROOT is None and (folder := _folder_of_ucx()):
        _C.use_ucx_of_wheel(folder)
    # Runs before the interpreter and torch destroy objects that the engine's thread may still use. Handlers that are
    # registered later run first, so the handlers of users can still communicate.
    atexit.register(_C.shut_down)
    os.register_at_fork(before=_C.end_unused_engine)  # so that the child can start its own
    return _C


def _folder_of_ucx() -> str | None:
    """Returns the folder of the wheel's UCX, which the engine loads on first use. The package itself is not imported:
    that would take 2 ms."""
    package = find_spec("libucx")
    folders = package.submodule_search_locations if package else None
    return os.path.join(folders[0], "lib") if folders else None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
