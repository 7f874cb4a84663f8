"""NIXL's Python module over this engine: programs that use `nixl` run unchanged.

    python -m torch_axon.nixl PROGRAM …         # PROGRAM, and the processes that it starts, import this as `nixl`

    import torch_axon.nixl                      # or within a process, before it imports nixl
    torch_axon.nixl.install()

Nothing is replaced unless one of these is used, and an installed `nixl` is not changed. All agents that exchange
metadata must use the same module. docs/nixl.md has the details.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from torch_axon.nixl._api import nixl_agent as nixl_agent
from torch_axon.nixl._api import nixl_agent_config as nixl_agent_config
from torch_axon.nixl._api import nixl_prepped_dlist_handle as nixl_prepped_dlist_handle
from torch_axon.nixl._api import nixl_thread_sync_t as nixl_thread_sync_t
from torch_axon.nixl._api import nixl_xfer_handle as nixl_xfer_handle

__all__ = [
    "install",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]

_MODULES = {"_api": "_api", "_bindings": "_bindings", "_utils": "_utils", "logging": "_logging"}


def path() -> Path:
    """Returns the folder that has a package `nixl` of this module."""
    return Path(__file__).parent / "path"


def install() -> None:
    """Lets `import nixl` give this module in this process, and in those that multiprocessing starts from it.

    Raises:
        RuntimeError: another `nixl` has been imported already
    """
    imported = sys.modules.get("nixl")
    if imported is not None and not _is_ours(imported):
        raise RuntimeError(
            f"install: nixl was imported already, from {imported.__file__}; allowed: before the first import of nixl"
        )
    if str(path()) not in sys.path:
        sys.path.insert(0, str(path()))
    importlib.invalidate_caches()
    importlib.import_module("nixl")


def _is_ours(module: ModuleType) -> bool:
    return module.__file__ is not None and Path(module.__file__).is_relative_to(path())


def fill(package: ModuleType) -> None:
    """Gives the package `nixl` its modules and names; it calls this when it is imported."""
    for name, ours in _MODULES.items():
        module = importlib.import_module(f"{__name__}.{ours}")
        sys.modules[f"{package.__name__}.{name}"] = module
        for public in vars(module):
            if not public.startswith("_"):
                setattr(package, public, getattr(module, public))
    for name in _MODULES:
        setattr(package, name, sys.modules[f"{package.__name__}.{name}"])
