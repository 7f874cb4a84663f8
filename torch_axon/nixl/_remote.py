"""An agent of another process, or this one: its registered memory, and the connection to it."""

from __future__ import annotations

import threading

from torch_axon.nixl._enums import nixl_mem_t
from torch_axon.nixl._errors import as_nixl, nixlBackendError, nixlNotFoundError, nixlRemoteDisconnectError
from torch_axon.nixl._memory import Key, MemoryMap
from torch_axon.nixl._metadata import KINDS, Metadata
from torch_axon.runtime import Peer, Remote, Runtime

# An address that nothing answers, such as one of a bridge that the other host does not share, costs this time once.
_LONGEST_ATTEMPT_S = 3.0


class Registered:
    """Memory that the agent has registered. It is opened at its first use.

    Attributes:
        handle: of its region
        state: of the metadata that named it last
        remote: the opened memory
    """

    def __init__(self, handle: bytes, state: int) -> None:
        self.handle = handle
        self.state = state
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
        self._memory: dict[nixl_mem_t, MemoryMap[Registered]] = {
            kind: MemoryMap(f"agent '{self.name}'") for kind in KINDS
        }
        self._connecting = threading.Lock()
        self._adding = threading.Lock()
        self._complete_state = -1  # of the newest complete metadata
        self._peer: Peer | None = None
        self.add(metadata)

    def add(self, metadata: Metadata) -> None:
        """Learns of registered memory. Newer metadata count, and complete ones say what is not registered any more."""
        with self._adding:
            if metadata.state < self._complete_state:
                return
            named = self._named(metadata)
            for kind, memory in self._memory.items():
                known = dict(memory.items())
                if metadata.is_complete:
                    newer = {key: each for key, each in known.items() if each.state > metadata.state}
                    memory.replace({**named[kind], **newer})
                else:
                    memory.replace({**known, **named[kind]})
            if metadata.is_complete:
                self._complete_state = metadata.state

    def _named(self, metadata: Metadata) -> dict[nixl_mem_t, dict[Key, Registered]]:
        """Returns the memory that metadata name, but for what newer ones have named."""
        found: dict[nixl_mem_t, dict[Key, Registered]] = {kind: {} for kind in KINDS}
        for row in metadata.registrations:
            kind, key = KINDS[int(row["kind"])], (int(row["address"]), int(row["nbytes"]), int(row["device"]))
            known = self._memory[kind].get(key)
            handle = row["handle"].tobytes()
            if known is not None and known.handle == handle:
                known.state = max(known.state, metadata.state)
                found[kind][key] = known
            elif known is None or known.state <= metadata.state:
                found[kind][key] = Registered(handle, metadata.state)
        return found

    def peer(self) -> Peer:
        """Returns the connection, and connects if necessary.

        Raises:
            nixlRemoteDisconnectError: the agent has ended, or cannot be reached
            nixlNotFoundError: it was removed
        """
        with self._connecting:
            if self.is_removed:
                raise nixlNotFoundError(f"agent '{self.name}' was removed")
            peer = self._peer
            if peer is None:
                peer = self._peer = self._connected()
        if self.is_removed:  # meanwhile
            self.remove()
            raise nixlNotFoundError(f"agent '{self.name}' was removed")
        self.check_alive()
        return peer

    def check_alive(self) -> None:
        """Checks the connection, if there is one.

        Raises:
            nixlRemoteDisconnectError: it has ended
        """
        peer = self._peer
        if peer is not None and (failure := peer.failure) is not None:
            raise nixlRemoteDisconnectError(f"agent '{self.name}': {failure}")

    def _connected(self) -> Peer:
        failures = []
        for address in self._addresses:
            try:
                return self._runtime.connect(address, timeout=min(_LONGEST_ATTEMPT_S, self._runtime.timeout))
            except (ConnectionError, TimeoutError, ValueError) as error:
                failures.append(str(error))
            except BufferError as error:
                raise nixlBackendError(str(error)) from error
        raise nixlRemoteDisconnectError(f"agent '{self.name}' cannot be reached: {'; '.join(failures)}")

    def memory(self, kind: nixl_mem_t) -> MemoryMap[Registered]:
        """Returns its registered memory of a kind.

        Raises:
            nixlNotFoundError: there is none of this kind
        """
        if kind not in self._memory or not self._memory[kind].items():
            raise nixlNotFoundError(f"agent '{self.name}' has registered no memory of kind {kind.name}")
        return self._memory[kind]

    def open(self, memories: list[Registered]) -> list[Remote]:
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
        """Ends the connection. A thread that is connecting does that itself, by calling this once more."""
        self.is_removed = True
        if self._connecting.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._connecting.release()

    def _end(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close(drain=False)
