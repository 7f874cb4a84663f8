"""Endpoints: a runtime that serves one event loop, and the channels that it carries."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch_axon.dask._channel import CLOSE, CLOSED, DELIVER, RESUME, Channel
from torch_axon.runtime import Peer, Runtime, _loops, current_call

if TYPE_CHECKING:
    from torch import Tensor

OPEN = "open"

_MOST_CONNECTIONS = 65_536  # of a scheduler; file descriptors are the limit before
_MOST_MESSAGE_BYTES = 1 << 40  # of one call; memory is the limit before
_DRAIN_S = 5.0  # how long the runtime may wait for notices that it sends when it is closed

# Takes a channel that a peer has opened, and the address that the peer states for its end.
Accept = Callable[[Channel, str], None]


class Endpoint:
    """A runtime and its channels, which belong to one loop. It ends with that loop, or before.

    Args:
        name: what peers call the runtime in their errors
        secret: the secret of the runtime; None: AXON_SECRET, if it is set
        accept: is given the channels that peers open; without it, none can be opened from outside
    """

    def __init__(self, name: str, secret: bytes | str | None, accept: Accept | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._accept = accept
        self._channels: dict[tuple[Peer, int], Channel] = {}
        self._numbers = itertools.count()
        self._is_closing = False
        self.runtime = Runtime(
            name, secret=secret, max_connections=_MOST_CONNECTIONS, max_message_bytes=_MOST_MESSAGE_BYTES
        )
        self.runtime.register(DELIVER)(self._deliver)
        self.runtime.register(RESUME)(self._resume)
        self.runtime.register(CLOSE)(self._close_channel)
        if accept is not None:
            self.runtime.register(OPEN)(self._open_channel)
        self.runtime.on_peer_lost(self._on_peer_lost)
        _loops.watch(self._loop, self)

    async def open(self, peer: Peer, address: str) -> Channel:
        """Opens a channel to a peer.

        Args:
            peer: an endpoint that accepts channels
            address: the address of this end, for the peer

        Raises:
            ConnectionError: the peer is gone, or accepts no channels any more
        """
        channel = self._add(peer, next(self._numbers))
        try:
            if not await peer.invoke(OPEN, channel.number, address):
                raise ConnectionRefusedError(f"'{peer.name}' has stopped listening")
        except BaseException:
            channel.abort()
            raise
        return channel

    def close_when_idle(self) -> None:
        """Closes the runtime as soon as it has no channel."""
        self._is_closing = True
        self._close_if_idle()

    def loop_closed(self) -> None:
        """Closes the runtime with its loop."""
        self._is_closing = False  # this closes it
        for channel in list(self._channels.values()):
            channel.abort()
        self.runtime.close(drain=False)

    def _close_if_idle(self) -> None:
        if self._is_closing and not self._channels:
            name = f"axon-close {self.runtime.name}"
            threading.Thread(target=self.runtime.close, args=(True, _DRAIN_S), name=name, daemon=True).start()

    def _add(self, peer: Peer, number: int) -> Channel:
        channel = self._channels[peer, number] = Channel(peer, number, self._forget)
        return channel

    def _forget(self, channel: Channel) -> None:
        self._channels.pop((channel.peer, channel.number), None)
        self._close_if_idle()

    # ---- Functions that peers call. Plain ones run on the runtime's thread, which saves two iterations of the loop.

    async def _open_channel(self, number: int, address: str) -> bool:
        assert self._accept is not None
        if self._is_closing:
            return False
        self._accept(self._add(_caller(), number), address)
        return True

    def _deliver(self, number: int, frames: list[Tensor] | bytes, lengths: list[int] | None, is_last: bool) -> int:
        channel = self._channels.get((_caller(), number))
        return CLOSED if channel is None else channel.deliver(frames, lengths, is_last)

    def _resume(self, number: int) -> None:
        channel = self._channels.get((_caller(), number))
        if channel is not None:
            _loops.call_soon(self._loop, channel.resume)

    def _close_channel(self, number: int) -> None:
        channel = self._channels.get((_caller(), number))
        if channel is not None:
            _loops.call_soon(self._loop, channel.end, f"'{channel.peer.name}' has closed the comm")

    # ---- Lost peers

    def _on_peer_lost(self, peer: Peer, error: Exception) -> None:
        _loops.call_soon(self._loop, self._lose, peer, str(error))

    def _lose(self, peer: Peer, reason: str) -> None:
        for channel in [each for each in self._channels.values() if each.peer is peer]:
            channel.end(reason)


def _caller() -> Peer:
    call = current_call()
    assert call is not None
    return call.peer
