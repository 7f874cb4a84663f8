"""Callbacks for peers that connect, and for peers that are lost."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from torch_axon.runtime import _errors

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection
    from torch_axon.runtime._peer import Peer

_log = logging.getLogger("torch_axon.runtime")


class CallbackHandle:
    """A callback for peers, as `Runtime.on_peer_connected` and `Runtime.on_peer_lost` return it."""

    def __init__(self, callbacks: list[CallbackHandle], callback: Callable[..., object]) -> None:
        self._callbacks = callbacks
        self._callback = callback
        callbacks.append(self)

    def remove(self) -> None:
        """Removes the callback. One that has begun on the runtime's thread continues. Removing again does nothing."""
        with suppress(ValueError):
            self._callbacks.remove(self)


class PeerCallbacks(ABC):
    """What a runtime tells of its peers. `Runtime` sets the attributes."""

    name: str
    _connected_callbacks: list[CallbackHandle]
    _lost_callbacks: list[CallbackHandle]

    @abstractmethod
    def _peer_of(self, connection: RuntimeConnection) -> Peer: ...

    def on_peer_connected(self, callback: Callable[[Peer], object]) -> CallbackHandle:
        """Calls a function once for each peer that connects from now on, and for each one to which `connect` connects.

        The callback runs on the runtime's thread, before the first function that the peer calls. So it must not block,
        and no lock is held. It may run before or after `connect` returns the peer. Exceptions that it raises are
        logged. For an event loop, let it call `loop.call_soon_threadsafe`.

        Args:
            callback: a function that takes the peer

        Returns:
            A handle, whose `remove` removes the callback.
        """
        return CallbackHandle(self._connected_callbacks, callback)

    def on_peer_lost(self, callback: Callable[[Peer, Exception], object]) -> CallbackHandle:
        """Calls a function once for each peer whose connection ends, whichever side opened it, without a call to it.

        The callback runs on the runtime's thread, as that of `on_peer_connected` does, and after it. It is also called
        for peers that are closed here, and for those that are left when the runtime is closed.

        Args:
            callback: a function that takes the peer, and an exception that says why. It is a `RuntimeClosedError` if
                this process has closed the connection, and otherwise a `PeerLostError`.

        Returns:
            A handle, whose `remove` removes the callback.
        """
        return CallbackHandle(self._lost_callbacks, callback)

    def _on_connected(self, connection: RuntimeConnection) -> None:
        """Tells the callbacks of a new connection. The extension calls this on the runtime's thread."""
        self._tell(self._connected_callbacks, self._peer_of(connection))

    def _on_lost(self, connection: RuntimeConnection) -> None:
        """Tells the callbacks of a connection that has ended. The extension calls this, too."""
        failure = connection.failure()
        assert failure is not None
        self._tell(self._lost_callbacks, self._peer_of(connection), _errors.failure_of(*failure))

    def _tell(self, callbacks: list[CallbackHandle], peer: Peer, *reason: Exception) -> None:
        for handle in list(callbacks):
            if handle not in callbacks:  # an earlier one has removed it
                continue
            try:
                handle._callback(peer, *reason)
            except Exception:  # the other callbacks must still run
                _log.exception("a callback of runtime '%s' for peer '%s' raised an exception", self.name, peer.name)
