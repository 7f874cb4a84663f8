"""Listens for comms."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, Comm, CommClosedError
from distributed.comm.utils import ensure_concrete_host

from torch_axon.dask import _same_host
from torch_axon.dask._access import PREFIX, configured_secret, refuse_encryption
from torch_axon.dask._channel import Channel
from torch_axon.dask._comm import AxonComm
from torch_axon.dask._endpoint import Endpoint
from torch_axon.runtime._hosts import LOOPBACK

_WILDCARDS = ("0.0.0.0", "::")
_MOST_PORT = 65_535

_log = logging.getLogger(__name__)


class AxonListener(BaseListener):
    """Accepts comms at a host and port, and hands them to a function.

    Args:
        address: host and port; "" is all addresses, and port 0, which may be left out, any port
        handle: is awaited with each comm
        deserialize: whether the comms return objects
        allow_offload: whether other threads may serialise large messages
        default_host: the host to be contacted if the listener listens on all addresses
        default_port: the port if `address` has none
        connection_args: `require_encryption` is refused; others are ignored

    Raises:
        ValueError: the address is malformed
        RuntimeError: encryption is required
    """

    prefix = PREFIX  # workers read it

    def __init__(
        self,
        address: str,
        handle: Callable[[Comm], Awaitable[object]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        refuse_encryption(address, connection_args)
        host, self._port = parse_host_port(address, default_port)
        if not 0 <= self._port <= _MOST_PORT:
            raise ValueError(f"{PREFIX}{address} has port {self._port}; allowed: 0 to {_MOST_PORT}")
        self._host = host or _WILDCARDS[0]
        self._handle = handle
        self._deserialize = deserialize
        self._allow_offload = allow_offload
        self._default_host = default_host
        self._endpoint: Endpoint | None = None
        self._published: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            OSError: the port is in use, or the host is not one of this machine
        """
        if self._port != 0:
            _check_free(self._host, self._port)
        secret = configured_secret()
        endpoint = Endpoint(f"Dask listener {os.getpid()}", secret or secrets.token_bytes(32), self._accept)
        self._endpoint = endpoint
        try:
            self._port = endpoint.runtime.listen(self._host, self._port)
            if secret is None:
                address = endpoint.runtime.address_at(LOOPBACK if self._host in _WILDCARDS else self._host)
                self._published = await _same_host.publish(self._port, address)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Accepts no more comms. Those that are open go on; the port is free once they are closed."""
        published, self._published = self._published, None
        if published is not None:
            published.close()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close_when_idle()

    @property
    def listen_address(self) -> str:
        """Where this listens."""
        self._check_started()
        return PREFIX + unparse_host_port(self._host, self._port)

    @property
    def contact_address(self) -> str:
        """Where others can connect: another address than that of `listen_address` if this listens on all."""
        self._check_started()
        return PREFIX + unparse_host_port(ensure_concrete_host(self._host, self._default_host), self._port)

    def _check_started(self) -> None:
        if self._endpoint is None:
            raise ValueError("the listener is not started, or has been stopped")

    def _accept(self, channel: Channel, peer_address: str) -> None:
        comm = AxonComm(channel, self.contact_address, peer_address, self._deserialize)
        comm.allow_offload = self._allow_offload
        task = asyncio.get_running_loop().create_task(self._serve(comm))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, comm: AxonComm) -> None:
        try:
            await self.on_connection(comm)
        except CommClosedError:
            _log.info("%s was closed before its handshake", comm)
            return
        await self._handle(comm)


def _check_free(host: str, port: int) -> None:
    """Raises what the system raises if a port cannot be listened on, which tells workers whether to try another one.

    Raises:
        OSError: the port is in use, or the host is not one of this machine
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()
