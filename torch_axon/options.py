"""Options of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.constants import default_pg_timeout

from torch_axon import _native

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from torch_axon._C import Options
else:
    Options = _native.load().Options

__all__ = ["Options"]


def resolve(group: _DistributedBackendOptions, pg_options: object | None) -> Options:
    """Returns the options of a group from torch's arguments and the user's `pg_options`.

    The `timeout=` of `init_process_group` and `new_group` takes precedence over the timeout of `pg_options`, unless it
    has torch's default value.

    Args:
        group: torch's description of the group that is being formed
        pg_options: the user's `torch_axon.Options`, or None

    Returns:
        New options; `pg_options` itself is not changed.

    Raises:
        TypeError: `pg_options` is neither None nor a `torch_axon.Options`
    """
    if pg_options is None:
        return Options(timeout=group.timeout)
    if not isinstance(pg_options, Options):
        raise TypeError(f"pg_options is a {type(pg_options).__name__}; allowed: torch_axon.Options")
    timeout = pg_options._timeout if group.timeout == default_pg_timeout else group.timeout
    return Options(timeout=timeout)
