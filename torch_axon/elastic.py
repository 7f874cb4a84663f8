"""Groups whose members change while the program runs: processes join, leave and replace others.

    import torch_axon

    handle = torch_axon.reconfigure_handle()          # a line of text: give it to the other processes
    torch_axon.reconfigure(uuid, handles)             # on all new members, with the same arguments

The group's object stays, so modules and optimizers that hold it go on. From torch 2.14 on, these functions do what
`ProcessGroup.get_reconfigure_handle()` and `ProcessGroup.reconfigure()` do; they exist for all versions of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from torch_axon import _native

if TYPE_CHECKING:
    from torch_axon._C import AxonBackend


def reconfigure_handle(group: dist.ProcessGroup | None = None) -> str:
    """Returns the text by which this process joins groups on other processes.

    It holds this process's addresses and keys in about 500 bytes, and stays the same for the life of the group. A
    process that has it can send messages to the group, so pass it on as you would a password.

    Args:
        group: a group of the backend axon; None means the default one

    Raises:
        ValueError: the group has other backends
    """
    return _backend_of(_resolve(group), "reconfigure_handle")._reconfigure_handle()


def reconfigure(
    uuid: int,
    handles: Sequence[str] | AbstractSet[str],
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
) -> None:
    """Gives a group other members, in place, and returns once all of them have called this.

    The group's rank and size change; its object stays. Any of the former members may be missing, dead or alive, and any
    process with a group may be new. No store is used. Operations that are in flight on CPU tensors fail; those enqueued
    on a GPU end first, so call the group's `abort()` before, if they cannot end. No other call of the group may run at
    the same time. CUDA graphs, prepared requests and `DeviceMesh`es that hold the group must be made again.

    Args:
        uuid: a number that this group has not been given before, the same on all members
        handles: what `reconfigure_handle()` has returned on each member. A sequence is in the order of the new ranks; a
            set is ordered by the ranks that the members had when they made their handles.
        group: a group of the backend axon; None means the default one
        timeout: for the other members to come; None means the group's timeout

    Raises:
        ValueError: an argument is not valid. Nothing has changed.
        torch.distributed.DistBackendError: a member did not come in time, has ended, or was given other handles. The
            text names it. The group fails until another `reconfigure()`, with another uuid. If an address cannot be
            used at all, the group stays as it was.
    """
    resolved = _resolve(group)
    backend = _backend_of(resolved, "reconfigure")
    texts = sorted(handles) if isinstance(handles, AbstractSet) else list(handles)
    try:
        backend._reconfigure(uuid, texts, timeout)
    finally:
        _follow(resolved, backend)


def _resolve(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    return group or dist.distributed_c10d._get_default_group()


def _backend_of(group: dist.ProcessGroup, caller: str) -> AxonBackend:
    backends = {group._get_backend(device) for device in group._device_types}
    names = sorted({backend.name() for backend in backends})
    if names != ["axon"]:
        raise ValueError(f"{caller}: argument 'group' has the backends {', '.join(names)}; allowed: axon alone")
    (backend,) = backends
    return backend  # type: ignore[return-value]


def _follow(group: dist.ProcessGroup, backend: AxonBackend) -> None:
    """Tells torch.distributed of the group's new rank, size and members."""
    if not hasattr(group, "reconfigure"):
        _native.load().follow_reconfiguration(group, backend)
    ranks = backend.options.global_ranks_in_group or range(backend.size())
    dist.distributed_c10d._world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks)}
