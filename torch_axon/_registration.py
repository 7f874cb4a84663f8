"""Makes the name "axon" known to torch.distributed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from torch_axon import _mends, _native

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from torch_axon._C import AxonBackend

DEVICES = ("cpu", "cuda")


def register() -> None:
    """Registers the backend. On another torch than the one built for: ImportError, saying what to install."""
    if reason := _native.mismatch():
        # While torch itself is being imported, an error would take torch away from people who do not even use axon.
        if not getattr(torch.__spec__, "_initializing", False):
            raise ImportError(reason)
        warnings.warn(reason, stacklevel=2)
    if dist.is_available() and not hasattr(dist.Backend, "AXON"):
        dist.Backend.register_backend("axon", _create, extended_api=True, devices=list(DEVICES))
        _mends.apply()


def make_default(devices: Iterable[str] = ("cpu",)) -> None:
    """Makes axon what `init_process_group()` without a backend's name takes for tensors on these devices."""
    for device in devices:
        if device not in DEVICES:
            raise ValueError(f"make_default: device is {device!r}; allowed: {', '.join(DEVICES)}")
        dist.Backend.default_device_backend_map[device] = "axon"


def _create(group: _DistributedBackendOptions, pg_options: object | None) -> AxonBackend:
    from torch_axon.options import resolve

    backend: AxonBackend = _native.load().create(group, resolve(group, pg_options))
    return backend
