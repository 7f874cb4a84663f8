"""Compatibility patches: functions of torch.distributed that support only Gloo and NCCL learn to support axon's groups.

The patches are applied when the backend is registered. AXON_COMPAT=0 turns them off; the functions then behave as for
any other third-party backend.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

_Function = TypeVar("_Function", bound=Callable[..., Any])


def apply() -> None:
    """Applies all patches, unless AXON_COMPAT is 0."""
    if os.environ.get("AXON_COMPAT", "1") == "0":
        return
    _patch_shrink_group()
    if is_before(torch.__version__, "2.14"):
        _patch_monitored_barrier()
    _patch_set_pg_timeout()
    _patch_coalescing_manager()
    _patch_groups_by_device()
    _patch_nan_check()


def is_before(version: str, release: str) -> bool:
    """Returns whether a version precedes a release and all its pre-releases, by the rules of PEP 440."""
    return bool(TorchVersion(version) < f"{release}.dev0")


def _replace(name: str, function: _Function) -> None:
    """Replaces a function in all modules of torch.distributed that export it."""
    for module in (dist.distributed_c10d, dist, dist.device_mesh):
        if hasattr(module, name):
            setattr(module, name, function)


def _backends_of(group: Any) -> list[Any]:
    """Returns the axon backends of a group; none for the placeholder of a group without this rank."""
    if not isinstance(group, dist.ProcessGroup):
        return []
    backends = {group._get_backend(device) for device in group._device_types}
    return [backend for backend in backends if backend.name() == "axon"]


def _patch_monitored_barrier() -> None:
    """Up to torch 2.13, the function accepts only Gloo's groups."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        of: Any = group or dist.group.WORLD
        if not _backends_of(of):
            original(group, timeout, wait_all_ranks)
        elif timeout is None:
            of.monitored_barrier(wait_all_ranks=wait_all_ranks)
        else:
            of.monitored_barrier(timeout, wait_all_ranks)

    _replace("monitored_barrier", monitored_barrier)


def _patch_set_pg_timeout() -> None:
    """The function warns for other backends and does not change their timeout."""
    original = dist.distributed_c10d._set_pg_timeout

    @functools.wraps(original)
    def set_pg_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        backends = _backends_of(group or dist.group.WORLD)
        for backend in backends:
            backend._set_default_timeout(timeout)
        if not backends:
            original(timeout, group)

    _replace("_set_pg_timeout", set_pg_timeout)


def _patch_coalescing_manager() -> None:
    """After an exception in its block, the group keeps gathering calls: all later calls return without any effect."""
    c10d = dist.distributed_c10d
    original = c10d._coalescing_manager

    @contextlib.contextmanager
    @functools.wraps(original)
    def coalescing_manager(
        group: dist.ProcessGroup | None = None, device: torch.device | None = None, async_ops: bool = False
    ) -> Iterator[Any]:
        with original(group, device, async_ops) as manager:
            try:
                yield manager
            except BaseException:
                of: Any = group or dist.group.WORLD
                if _backends_of(of):
                    c10d._world.pg_coalesce_state.pop(of, None)
                    if device:
                        of._start_coalescing(device)  # drops the gathered calls
                        of._end_coalescing(device)
                raise

    _replace("_coalescing_manager", coalescing_manager)


def _patch_groups_by_device() -> None:
    """For "cpu:axon,cuda:gloo", torch looks plug-ins up by their names in capitals, so hooks find no backend."""
    c10d = dist.distributed_c10d
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def new_group(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        group, store = original(*arguments, **keywords)
        if _backends_of(group) and group.name() == "undefined":
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        return group, store

    c10d._new_process_group_helper = new_group


def _patch_nan_check() -> None:
    """With TORCH_DIST_NAN_CHECK=1, since torch 2.14: its error names neither the call nor the rank. The backend's own
    checks do."""
    hook: Any = getattr(dist.distributed_c10d, "NanCheckHook", None)
    if hook is None:
        return

    class NanCheckHook:
        """Takes the place of torch's."""

        @staticmethod
        def attach(group: dist.ProcessGroup) -> Any:
            backends = [group._get_backend(device) for device in group._device_types]
            return None if all(backend.name() == "axon" for backend in backends) else hook.attach(group)

    dist.distributed_c10d.NanCheckHook = NanCheckHook  # type: ignore[attr-defined]


def _patch_shrink_group() -> None:
    """Corrects three errors of shrink_group for other backends.

    It registers the result of a backend's shrink() as Gloo's or NCCL's, for one type of device. DDP then treats ours as
    an object of Gloo's class. And it interprets the ranks that leave, which are ranks of the group, as ranks of the
    job. The ranks of a smaller default group are the job's from then on. And failures of the new group are not looked
    for.
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
        for device in ("cpu", "cuda"):
            group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        if hasattr(c10d, "HealthCheckHook"):  # since torch 2.15
            c10d.HealthCheckHook.attach(group)
        return group

    c10d._create_shrunk_process_group = create_as_ours  # type: ignore[assignment]
