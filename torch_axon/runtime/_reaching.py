"""Lets runtimes reach each other that know no more than what the other one sends: all addresses of its host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from torch_axon import _native
from torch_axon.runtime._hosts import LOOPBACK

if TYPE_CHECKING:
    from torch_axon.runtime._peer import Peer
    from torch_axon.runtime._runtime import Runtime

_LONGEST_ATTEMPT_S = 5.0  # to connect to one of several addresses


def listen(runtime: Runtime, *, within_host: bool = False) -> list[bytes]:
    """Lets the runtime listen.

    Args:
        runtime: a runtime with a secret
        within_host: listen on loopback alone; otherwise on all addresses of the host, or on loopback if it has none

    Returns:
        Addresses of the runtime for others, those that are tried first in front.
    """
    found = [] if within_host else _native.load().own_addresses()
    hosts = [each for each in found if ":" not in each] or [each for each in found if not each.startswith("fe80:")]
    if not hosts:
        runtime.listen(LOOPBACK)
        return [runtime.address_at(LOOPBACK)]
    runtime.listen("::" if ":" in hosts[0] else "0.0.0.0")
    return [runtime.address_at(host) for host in hosts]


def left_until(deadline: float) -> float:
    """Returns the seconds until then, as a timeout: never 0."""
    return max(deadline - time.monotonic(), 0.001)


def connect_to_any(runtime: Runtime, addresses: Sequence[bytes], deadline: float) -> Peer:
    """Connects to the first of these addresses that answers.

    Args:
        runtime: connects
        addresses: what `listen` returned at the other end
        deadline: when to give up, as `time.monotonic()` counts. An address that others follow has at most 5 seconds.

    Raises:
        ConnectionError, TimeoutError: that of the last address
    """
    *others, last = addresses
    for address in others:
        with suppress(ConnectionError, TimeoutError):
            return runtime.connect(address, timeout=min(left_until(deadline), _LONGEST_ATTEMPT_S))
    return runtime.connect(last, timeout=left_until(deadline))
