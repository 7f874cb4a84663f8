"""Lets runtimes reach each other that know no more than what the other one sends: all addresses of its host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from torch_axon import _native

if TYPE_CHECKING:
    from torch_axon.runtime._peer import Peer
    from torch_axon.runtime._runtime import Runtime

_LOOPBACK = "127.0.0.1"
_LONGEST_ATTEMPT_S = 5.0  # to connect to one of several addresses


def listen(runtime: Runtime, *, within_host: bool = False) -> list[bytes]:
    """Lets the runtime listen.

    Args:
        runtime: a runtime with a secret
        within_host: listen on loopback alone; otherwise on all IPv4 addresses

    Returns:
        Addresses of the runtime for others, those that are tried first in front.
    """
    found = [] if within_host else [each for each in _native.load().own_addresses() if ":" not in each]
    runtime.listen("0.0.0.0" if found else _LOOPBACK)
    return [runtime.address_at(host) for host in found or [_LOOPBACK]]


def connect_to_any(runtime: Runtime, addresses: Sequence[bytes], timeout: float) -> Peer:
    """Connects to the first of these addresses that answers.

    Args:
        runtime: connects
        addresses: what `listen` returned at the other end
        timeout: seconds for the last address; others have at most 5

    Raises:
        ConnectionError, TimeoutError: that of the last address
    """
    *others, last = addresses
    for address in others:
        with suppress(ConnectionError, TimeoutError):
            return runtime.connect(address, timeout=min(timeout, _LONGEST_ATTEMPT_S))
    return runtime.connect(last, timeout=timeout)
