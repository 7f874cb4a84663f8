"""The backend that `distributed` looks up for `axon://`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Comm
from distributed.comm.tcp import BaseTCPBackend
from distributed.utils import ensure_ip

from torch_axon.dask._connector import AxonConnector
from torch_axon.dask._listener import AxonListener


class AxonBackend(BaseTCPBackend):
    """Makes connectors and listeners, whose addresses are "host:port" as those of `tcp://`.

    The end of a comm that has connected has no port. Its address is "host/process/number".
    """

    def get_connector(self) -> AxonConnector:
        """Returns a connector. See `Backend`."""
        return AxonConnector()

    def get_listener(
        self, loc: str, handle_comm: Callable[[Comm], Awaitable[object]], deserialize: bool, **connection_args: Any
    ) -> AxonListener:
        """Returns a listener. See `Backend`."""
        return AxonListener(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        """Returns the host of an address. See `Backend`."""
        return parse_host_port(loc.partition("/")[0], 0)[0]

    def resolve_address(self, loc: str) -> str:
        """Returns the address with an IP address for its host. See `Backend`."""
        if "/" in loc:
            return loc
        host, port = parse_host_port(loc)
        return str(unparse_host_port(ensure_ip(host), port))
