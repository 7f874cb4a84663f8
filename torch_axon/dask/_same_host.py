"""Tells processes of the same user on the same host the address of a runtime that has no secret of the user's.

The address contains a key. It is passed through an abstract Unix socket, whose two ends check by `SO_PEERCRED` that
they belong to one user. The socket ends with its process, and other network namespaces cannot reach it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user and group


async def publish(port: int, address: bytes) -> asyncio.Server:
    """Serves the address of the runtime that listens on a TCP port until the returned server is closed.

    Raises:
        OSError: another process does so
    """

    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if _is_own(writer):
            writer.write(address)
        writer.close()

    return await asyncio.start_unix_server(answer, _name(port))


async def look_up(port: int) -> bytes:
    """Returns the address of the runtime that listens on a TCP port of this host.

    Raises:
        ConnectionError: no runtime of this user has published one
    """
    try:
        reader, writer = await asyncio.open_unix_connection(_name(port))
    except ConnectionRefusedError:
        raise ConnectionRefusedError(
            f"no process of this user listens on port {port} without a secret; allowed: the secret of that process, in "
            "AXON_SECRET or in Dask's configuration"
        ) from None
    try:
        address = await reader.read() if _is_own(writer) else b""
    finally:
        writer.close()
    if not address:
        raise ConnectionRefusedError(f"the process that listens on port {port} belongs to another user")
    return address


def _name(port: int) -> str:
    return f"\0torch_axon.dask/{os.getuid()}/{port}"


def _is_own(writer: asyncio.StreamWriter) -> bool:
    end: socket.socket = writer.get_extra_info("socket")
    _, user, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user) == os.getuid()
