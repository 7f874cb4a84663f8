"""Connects to listeners."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
from typing import Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Connector, FatalCommClosedError
from distributed.utils import get_ip

from torch_axon.dask import _same_host
from torch_axon.dask._access import PREFIX, configured_secret, needs_secret, refuse_encryption
from torch_axon.dask._comm import AxonComm
from torch_axon.dask._endpoint import Endpoint
from torch_axon.runtime import VersionMismatchError, WrongSecretError

# The endpoint that connects, for each loop and secret.
_endpoints: dict[tuple[asyncio.AbstractEventLoop, bytes | str | None], Endpoint] = {}
_numbers = itertools.count(1)  # of the comms that this process has opened


class AxonConnector(Connector):
    """Opens comms to listeners. Without a secret of the user, it reaches those of the user's processes on this host."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> AxonComm:
        """Opens a comm.

        Args:
            address: host and port of the listener
            deserialize: whether the comm returns objects
            connection_args: `require_encryption` is refused; others are ignored

        Raises:
            FatalCommClosedError: trying again is useless: the secrets or versions differ, or a secret is missing
            OSError: no listener can be reached there
            ValueError: the address is malformed
            RuntimeError: encryption is required
        """
        refuse_encryption(address, connection_args)
        host, port = parse_host_port(address)
        secret = configured_secret()
        endpoint = _endpoint_of_loop(secret)
        ip = await _resolve(host)
        local_ip = get_ip(ip)
        target: bytes | tuple[str, int] = (ip, port)
        if secret is None:
            if local_ip != ip and not ipaddress.ip_address(ip).is_loopback:
                raise FatalCommClosedError(needs_secret(address))
            target = await _same_host.look_up(port)
        try:
            peer = await endpoint.runtime.aconnect(target)
        except (WrongSecretError, VersionMismatchError) as error:
            raise FatalCommClosedError(f"{PREFIX}{address}: {error}") from error
        local_address = f"{PREFIX}{unparse_host_port(local_ip)}/{os.getpid()}/{next(_numbers)}"
        return AxonComm(await endpoint.open(peer, local_address), local_address, PREFIX + address, deserialize)


def _endpoint_of_loop(secret: bytes | str | None) -> Endpoint:
    for key in [key for key in _endpoints if key[0].is_closed()]:
        del _endpoints[key]
    key = asyncio.get_running_loop(), secret
    if key not in _endpoints:
        _endpoints[key] = Endpoint(f"Dask process {os.getpid()}", secret)
    return _endpoints[key]


async def _resolve(host: str) -> str:
    found = await asyncio.get_running_loop().getaddrinfo(host, None)
    return str(found[0][4][0])
