"""Functions of torch.distributed that know no backends but Gloo and NCCL, made to know axon's groups, too."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

_Function = TypeVar("_Function", bound=Callable[..., Any])


def apply() -> None:
    _mend_shrink_group()
    _mend_monitored_barrier()
    _mend_set_pg_timeout()
    _mend_coalescing_manager()
    _mend_groups_by_device()


def _replace(name: str, function: _Function) -> None:
    """Of torch.distributed, wherever it is found by this name."""
    for module in (dist.distributed_c10d, dist):
        if hasattr(module, name):
            setattr(module, name, function)


def _backends_of(group: Any) -> list[Any]:
    """Axon's; none for what stands for a group that this rank is no member of."""
    if not isinstance(group, dist.ProcessGroup):
        return []
    backends = {group._get_backend(device) for device in group._device_types}
    return [backend for backend in backends if backend.name() == "axon"]


def _mend_monitored_barrier() -> None:
    """Up to 2.13 it lets only Gloo's groups through."""
    if torch.__version__ >= "2.14":
        return
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


def _mend_set_pg_timeout() -> None:
    """It warns, and leaves every other backend's timeout as it was."""
    original = dist.distributed_c10d._set_pg_timeout

    @functools.wraps(original)
    def set_pg_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        backends = _backends_of(group or dist.group.WORLD)
        for backend in backends:
            backend._set_default_timeout(timeout)
        if not backends:
            original(timeout, group)

    _replace("_set_pg_timeout", set_pg_timeout)


def _mend_coalescing_manager() -> None:
    """An exception within it leaves its group gathering calls: all that follow return at once, with nothing done."""
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
                        of._start_coalescing(device)  # what has been gathered is forgotten
                        of._end_coalescing(device)
                raise

    _replace("_coalescing_manager", coalescing_manager)


def _mend_groups_by_device() -> None:
    """Of "cpu:axon,cuda:gloo" torch looks for plug-ins by their names in capitals: hooks find no backend then."""
    c10d = dist.distributed_c10d
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def new_group(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        group, store = original(*arguments, **keywords)
        if _backends_of(group) and group.name() == "undefined":
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        return group, store

    c10d._new_process_group_helper = new_group


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
        for device in ("cpu", "cuda"):
            group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        return group

    c10d._create_shrunk_process_group = create_as_ours  # type: ignore[assignment]
