"""Makes the name "axon" known to torch.distributed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from torch_axon import _compat, _native

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from torch_axon._C import AxonBackend

DEVICES = ("cpu", "cuda")


def register() -> None:
    """Registers the backend "axon" with torch.distributed.

    Raises:
        ImportError: this build of torch_axon needs another version of torch. The text says what to install. While torch
            itself is being imported, this is a warning instead.
    """
    if reason := _native.mismatch():
        # During the import of torch itself, an error would make torch unusable, even for users who do not need axon.
        if not getattr(torch.__spec__, "_initializing", False):
            raise ImportError(reason)
        warnings.warn(reason, stacklevel=2)
    if dist.is_available() and not hasattr(dist.Backend, "AXON"):
        dist.Backend.register_backend("axon", _create, extended_api=True, devices=list(DEVICES))
        _compat.apply()


def make_default(devices: Iterable[str] = ("cpu",)) -> None:
    """Makes axon the backend that `init_process_group()` selects when no backend is named.

    Args:
        devices: the device types for which axon becomes the default: "cpu", "cuda" or both

    Raises:
        ValueError: a device is neither "cpu" nor "cuda"
    """
    for device in devices:
        if device not in DEVICES:
            raise ValueError(f"make_default: device is {device!r}; allowed: {', '.join(DEVICES)}")
        dist.Backend.default_device_backend_map[device] = "axon"


def _create(group: _DistributedBackendOptions, pg_options: object | None) -> AxonBackend:
    from torch_axon.options import resolve

    backend: AxonBackend = _native.load().create(group, resolve(group, pg_options))
    return backend
