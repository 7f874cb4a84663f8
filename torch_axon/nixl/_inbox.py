"""Notifications of an agent, in both directions."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress

from torch_axon.nixl._logging import get_logger
from torch_axon.runtime import Peer, Runtime, RuntimeClosedError, Transfer

# Programs may leave notifications unread. So many are kept here, beyond those that wait in the runtime. Then their
# senders get errors.
_MOST, _MOST_BYTES = 1 << 20, 256 << 20
_COLLECT_INTERVAL_S = 0.5

_log = get_logger(__name__)


class Inbox:
    """Sends notifications, and keeps what has arrived. Any thread.

    Args:
        runtime: the runtime of the agent
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._arrived: deque[tuple[str, bytes]] = deque()
        self._num_bytes = 0  # of what has arrived
        self._sent: deque[Transfer] = deque()  # that may fail yet
        self._is_closed = threading.Event()
        threading.Thread(
            target=_keep_collecting, args=(weakref.ref(self), self._is_closed), name="axon-nixl-inbox", daemon=True
        ).start()

    def close(self) -> None:
        self._is_closed.set()

    def collect(self) -> None:
        """Makes room in the runtime, for agents that do not ask for their notifications."""
        with self._lock:
            self._log_failures()
            if len(self._arrived) < _MOST and self._num_bytes < _MOST_BYTES:
                self._take_new()

    def take(self) -> list[tuple[str, bytes]]:
        """Takes all that has arrived: pairs of the sender's name and the message."""
        with self._lock:
            self._take_new()
            taken = list(self._arrived)
            self._arrived.clear()
            self._num_bytes = 0
            return taken

    def _take_new(self) -> None:
        with suppress(RuntimeClosedError):
            new = [(peer.name, message) for peer, message in self._runtime.notifications()]
            self._arrived += new
            self._num_bytes += sum(len(message) for _, message in new)

    def send(self, peer: Peer, message: bytes) -> None:
        """Sends a notification. A later failure is logged: no thread waits for it."""
        sent = peer.notify(message)
        with self._lock:
            self._sent.append(sent)
            self._log_failures()

    def _log_failures(self) -> None:
        # Callbacks would wake the runtime's thread for each notification, which then competes for Python's lock.
        while self._sent and self._sent[0].done():
            if (error := self._sent.popleft().exception()) is not None:
                _log.error("a notification was not delivered: %s", error)


def _keep_collecting(inbox: weakref.ref[Inbox], is_closed: threading.Event) -> None:
    while not is_closed.wait(_COLLECT_INTERVAL_S):
        if (found := inbox()) is None:
            return
        found.collect()
        del found  # must not keep it alive while this waits
