"""Makes the name "axon" known to torch.distributed."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_axon import _native

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
        _mend_shrink_group()


def make_default(devices: Iterable[str] = ("cpu",)) -> None:
    """Makes axon what `init_process_group()` without a backend's name takes for tensors on these devices."""
    for device in devices:
        if device not in DEVICES:
            raise ValueError(f"make_default: device is {device!r}; allowed: {', '.join(DEVICES)}")
        dist.Backend.default_device_backend_map[device] = "axon"


def _mend_shrink_group() -> None:
    """torch.distributed.shrink_group registers what a backend's shrink() returns as Gloo's or NCCL's, for one type of
    device only, so that DDP takes ours for an object of Gloo's class; and it takes the ranks that leave, which are the
    group's, for the job's. Both are put right while the smaller group is made. Ranks of a smaller default group are
    the job's from then on.
    """
    c10d = dist.distributed_c10d
    create = getattr(c10d, "_create_shrunk_process_group", None)
    if create is None:
        return

    @functools.wraps(create)
    def create_as_ours(backend: Any, ranks: list[int], of: dict[Any, Any], is_default: bool) -> dist.ProcessGroup:
        if backend.name() == "axon":
            ranks[:] = range(backend.size()) if is_default else backend.options.global_ranks_in_group
        group: dist.ProcessGroup = create(backend, ranks, of, is_default)
        if backend.name() != "axon":
            return group
        for device in DEVICES:
            group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        return group

    c10d._create_shrunk_process_group = create_as_ours  # type: ignore[assignment]


def _create(group: _DistributedBackendOptions, pg_options: object | None) -> AxonBackend:
    from torch_axon.options import resolve

    backend: AxonBackend = _native.load().create(group, resolve(group, pg_options))
    return backend
