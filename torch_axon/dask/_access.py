"""Which processes may connect to each other: those that have one secret, or those of one user on one host."""

from __future__ import annotations

from typing import Any

import dask

from torch_axon import _native

PREFIX = "axon://"
_SECRET_KEY = "distributed.comm.axon.secret"


def configured_secret() -> bytes | str | None:
    """Returns the secret of the user, from Dask's configuration or AXON_SECRET; None if there is none."""
    secret: str | None = dask.config.get(_SECRET_KEY, None)
    return secret or _native.load().RuntimeCore.known_secret() or None


def needs_secret(address: str) -> str:
    """Returns what to do to reach an address of another host."""
    return (
        f"{PREFIX}{address} is on another host: set AXON_SECRET, or {_SECRET_KEY} in Dask's configuration, to the same "
        "text of at least 16 bytes in all processes"
    )


def refuse_encryption(address: str, connection_args: dict[str, Any]) -> None:
    """Refuses an address if encryption is required, since messages are not encrypted.

    Raises:
        RuntimeError: encryption is required
    """
    if connection_args.get("require_encryption"):
        raise RuntimeError(f"{PREFIX}{address} is not encrypted, but require_encryption is set; allowed: tls://")
