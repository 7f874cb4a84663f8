"""Notifications of an agent, in both directions."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from torch_axon import _native
from torch_axon.nixl._logging import get_logger
from torch_axon.runtime import Peer, Runtime, Transfer
from torch_axon.runtime._one_sided import FAILED, UNDER_WAY

if TYPE_CHECKING:
    from torch_axon._C import RuntimeTransfer

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
        self._sent: deque[tuple[Peer, RuntimeTransfer]] = deque()  # that may fail yet
        self._native = _native.load()
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
        # Without the runtime's objects: programs ask all the time.
        for connection, message in self._native.take_notifications(self._runtime._core, None):
            self._arrived.append((connection.name, message))
            self._num_bytes += len(message)

    def send(self, peer: Peer, message: bytes) -> None:
        """Sends a notification. A later failure is logged: no thread waits for it."""
        sent = self._native.post_notification(peer._connection, message, self._runtime.timeout)
        with self._lock:
            self._sent.append((peer, sent))
            self._log_failures()

    def _log_failures(self) -> None:
        # Callbacks would wake the runtime's thread for each notification, which then competes for Python's lock.
        while self._sent and (state := self._sent[0][1].poll()) != UNDER_WAY:
            ended = self._sent.popleft()
            if state == FAILED:
                _log.error("a notification was not delivered: %s", Transfer(*ended).exception())


def _keep_collecting(inbox: weakref.ref[Inbox], is_closed: threading.Event) -> None:
    while not is_closed.wait(_COLLECT_INTERVAL_S):
        if (found := inbox()) is None:
            return
        found.collect()
        del found  # must not keep it alive while this waits
