"""The memory that an agent has registered."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_axon.nixl._enums import nixl_mem_t
from torch_axon.nixl._errors import nixlBackendError, nixlNotFoundError
from torch_axon.nixl._lists import nixlRegDList
from torch_axon.nixl._memory import Key, MemoryMap, key_of
from torch_axon.nixl._metadata import KINDS, REGISTRATION
from torch_axon.runtime import Region, Runtime

# How long deregistering waits for the copies of peers that are under way.
_LONGEST_DEREGISTRATION_S = 5.0


@dataclass
class _Count:
    """How often memory is registered."""

    region: Region
    times: int = 1


class OwnMemory:
    """Memory by kind and descriptor. What is registered several times stays registered as often. Any thread.

    Args:
        runtime: the runtime that exposes it
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._counts: dict[tuple[nixl_mem_t, Key], _Count] = {}
        self._by_kind: dict[nixl_mem_t, MemoryMap[Region]] = {kind: MemoryMap("this agent") for kind in KINDS}
        self._state = 0  # counts changes

    def of_kind(self, kind: nixl_mem_t) -> MemoryMap[Region]:
        """Returns the memory of a kind.

        Raises:
            nixlNotFoundError: memory of this kind cannot be registered
        """
        if kind not in self._by_kind:
            raise nixlNotFoundError(f"memory is of kind {kind.name}; allowed: DRAM_SEG and VRAM_SEG")
        return self._by_kind[kind]

    def is_empty(self) -> bool:
        return not self._counts

    def register(self, descs: nixlRegDList) -> None:
        """Registers memory: all of it, or none.

        Raises:
            nixlBackendError: it cannot be registered, or there is none
            nixlNotFoundError: its kind cannot be registered
        """
        self.of_kind(descs.getType())
        if descs.isEmpty():
            raise nixlBackendError("there are no descriptors to register; allowed: one or more")
        added: list[Key] = []
        with self._lock:
            try:
                for row in descs.rows():
                    self._add(descs.getType(), key_of(row), descs._owners)
                    added.append(key_of(row))
            except (RuntimeError, ValueError) as error:
                for key in added:
                    self._remove(descs.getType(), key)
                raise nixlBackendError(str(error)) from error

    def deregister(self, descs: nixlRegDList) -> None:
        """Ends registrations. Peers cannot touch the memory any more when this returns.

        Raises:
            nixlNotFoundError: a descriptor is not registered
            nixlBackendError: peers still use it
        """
        self.of_kind(descs.getType())
        with self._lock:
            for row in descs.rows():
                if (descs.getType(), key_of(row)) not in self._counts:
                    raise nixlNotFoundError(f"the descriptor {key_of(row)} is not registered")
                self._remove(descs.getType(), key_of(row))

    def _add(self, kind: nixl_mem_t, key: Key, owners: object) -> None:
        if (kind, key) in self._counts:
            self._counts[kind, key].times += 1
            return
        address, nbytes, device = key
        place = "cpu" if kind == nixl_mem_t.DRAM_SEG else f"cuda:{device}"
        name = f"{nbytes} bytes at {address:#x}"
        region = self._runtime.expose_pointer(address, nbytes, place, access="rw", name=name, keepalive=owners)
        self._counts[kind, key] = _Count(region)
        self._by_kind[kind].set(key, region)
        self._state += 1

    def _remove(self, kind: nixl_mem_t, key: Key) -> None:
        count = self._counts[kind, key]
        count.times -= 1
        if count.times > 0:
            return
        del self._counts[kind, key]
        self._by_kind[kind].remove(key)
        self._state += 1
        if not count.region.close(_LONGEST_DEREGISTRATION_S):
            holders = ", ".join(count.region.holders) or "this agent"
            raise nixlBackendError(f"the memory of {count.region.name} is still being used by {holders}")

    def table(self, descs: nixlRegDList | None = None) -> tuple[int, npt.NDArray[np.void]]:
        """Returns the state, and some or all of the memory, for metadata.

        Raises:
            nixlNotFoundError: a descriptor is not registered
        """
        with self._lock:
            keys = list(self._counts) if descs is None else [(descs.getType(), key_of(row)) for row in descs.rows()]
            table = np.empty(len(keys), REGISTRATION)
            for i, key in enumerate(keys):
                if key not in self._counts:
                    raise nixlNotFoundError(f"the descriptor {key[1]} is not registered")
                handle = np.frombuffer(self._counts[key].region.handle(), np.uint8)
                table[i] = (*key[1], int(key[0]), handle)
            return self._state, table
