"""An agent of another process, or this one: its registered memory, and the connection to it."""

from __future__ import annotations

import threading

from torch_axon.nixl._enums import nixl_mem_t
from torch_axon.nixl._errors import as_nixl, nixlBackendError, nixlNotFoundError, nixlRemoteDisconnectError
from torch_axon.nixl._lists import Rows
from torch_axon.nixl._memory import Located, MemoryMap
from torch_axon.nixl._metadata import Metadata
from torch_axon.runtime import Peer, Remote, Runtime

# An address that nothing answers, such as one of a bridge that the other host does not share, costs this time once.
_LONGEST_ATTEMPT_S = 3.0


class _Registered:
    """Memory that the agent has registered. It is opened at its first use."""

    def __init__(self, handle: bytes) -> None:
        self.handle = handle
        self.remote: Remote | None = None


class RemoteAgent:
    """What an agent knows of another one. Connects at its first use. Any thread.

    Attributes:
        name: its name
        incarnation: the incarnation of its runtime
        is_removed: whether the user has removed it; what was prepared for it is invalid then
    """

    def __init__(self, metadata: Metadata, runtime: Runtime, own_host: str) -> None:
        self.name = metadata.name
        self.incarnation = metadata.incarnation
        self.is_removed = False
        self._runtime = runtime
        is_neighbour = metadata.host == own_host
        # Loopback is the last of its addresses, and the fastest one within a host.
        self._addresses = metadata.addresses[::-1] if is_neighbour else metadata.addresses
        self._memory: dict[nixl_mem_t, MemoryMap[_Registered]] = {}
        self._connecting = threading.Lock()
        self._peer: Peer | None = None
        self.add(metadata)

    def add(self, metadata: Metadata) -> None:
        """Adds the registered memory that is not known yet."""
        for row in metadata.registrations:
            key = (int(row["address"]), int(row["nbytes"]), int(row["device"]))
            kind = self._memory.setdefault(nixl_mem_t(int(row["kind"])), MemoryMap())
            handle = row["handle"].tobytes()
            known = kind.get(key)
            if known is None or known.handle != handle:
                kind.add(key, _Registered(handle))

    def peer(self) -> Peer:
        """Returns the connection, and connects if necessary.

        Raises:
            nixlRemoteDisconnectError: the agent has ended, or cannot be reached
            nixlNotFoundError: it was removed
        """
        with self._connecting:
            if self.is_removed:
                raise nixlNotFoundError(f"agent '{self.name}' was removed")
            if self._peer is None:
                self._peer = self._connected()
        if (failure := self._peer.failure) is not None:
            raise nixlRemoteDisconnectError(f"agent '{self.name}': {failure}")
        return self._peer

    def _connected(self) -> Peer:
        if not self._addresses:
            raise nixlNotFoundError(f"the metadata of agent '{self.name}' say nothing of how to connect to it")
        failures = []
        for address in self._addresses:
            try:
                return self._runtime.connect(address, timeout=min(_LONGEST_ATTEMPT_S, self._runtime.timeout))
            except (ConnectionError, TimeoutError) as error:
                failures.append(str(error))
            except BufferError as error:
                raise nixlBackendError(str(error)) from error
        raise nixlRemoteDisconnectError(f"agent '{self.name}' cannot be reached: {'; '.join(failures)}")

    def locate(self, kind: nixl_mem_t, rows: Rows) -> Located[_Registered]:
        """Finds the registered memory of each row.

        Raises:
            nixlNotFoundError: a row lies in no memory that is known of the agent
        """
        memory = self._memory.get(kind)
        if memory is None:
            raise nixlNotFoundError(f"agent '{self.name}' has registered no memory of kind {kind.name}")
        return memory.locate(rows, f"agent '{self.name}'")

    def open(self, memories: list[_Registered]) -> list[Remote]:
        """Opens registered memory, all that is new at the same time.

        Raises:
            nixlRemoteDisconnectError, nixlNotAllowedError, nixlBackendError: it cannot be opened
        """
        peer = self.peer()
        closed = [each for each in memories if each.remote is None]
        try:
            for each, remote in zip(closed, peer.open_all([each.handle for each in closed]), strict=True):
                each.remote = remote
        except (OSError, BufferError) as error:
            raise as_nixl(error) from error
        return [each.remote for each in memories if each.remote is not None]

    def remove(self) -> None:
        with self._connecting:
            self.is_removed = True
            peer, self._peer = self._peer, None
        if peer is not None:
            peer.close(drain=False)
