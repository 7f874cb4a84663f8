"""Options of one process group."""

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
    """The options of a group: what torch says of it, and what the user gave as `pg_options`.

    The `timeout=` of `init_process_group` and `new_group` wins over that of `pg_options`, unless it was left at torch's
    default.
    """
    if pg_options is None:
        return Options(timeout=group.timeout)
    if not isinstance(pg_options, Options):
        raise TypeError(f"pg_options is a {type(pg_options).__name__}; allowed: torch_axon.Options")
    timeout = pg_options._timeout if group.timeout == default_pg_timeout else group.timeout
    return Options(timeout=timeout)
