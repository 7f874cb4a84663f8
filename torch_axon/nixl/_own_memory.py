"""The memory that an agent has registered."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
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
class _Registration:
    """Memory that is registered once or more often.

    Attributes:
        region: exposes it
        owners: what keeps the memory; the region keeps this list
        times: how often it is registered
    """

    region: Region
    owners: list[object]
    times: int = 1


class OwnMemory:
    """Memory by kind and descriptor. What is registered several times stays registered as often. Any thread.

    Args:
        runtime: the runtime that exposes it
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._registrations: dict[tuple[nixl_mem_t, Key], _Registration] = {}
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
        return not self._registrations

    def register(self, descs: nixlRegDList) -> None:
        """Registers memory: all of it, or none.

        Raises:
            nixlBackendError: it cannot be registered, or there is none
            nixlNotFoundError: its kind cannot be registered
        """
        self.of_kind(descs.getType())
        if descs.isEmpty():
            raise nixlBackendError("there are no descriptors to register; allowed: one or more")
        kind, added = descs.getType(), list[Key]()
        with self._lock:
            try:
                for i, row in enumerate(descs.rows()):
                    self._add(kind, key_of(row), descs.owner(i))
                    added.append(key_of(row))
                return
            except (RuntimeError, ValueError) as error:
                failure = nixlBackendError(str(error))
                closed = [self._remove(kind, key) for key in added]
        _close(closed)
        raise failure

    def deregister(self, descs: nixlRegDList) -> None:
        """Ends registrations: all of them, or none. Peers cannot touch the memory any more when this returns.

        Raises:
            nixlNotFoundError: a descriptor is not registered as often as it is given
            nixlBackendError: peers still use it. The registrations have ended, and peers can begin nothing new.
        """
        self.of_kind(descs.getType())
        kind, keys = descs.getType(), [key_of(row) for row in descs.rows()]
        with self._lock:
            for key, times in Counter(keys).items():
                registration = self._registrations.get((kind, key))
                if registration is None or registration.times < times:
                    raise nixlNotFoundError(f"the descriptor {key} is not registered")
            closed = [self._remove(kind, key) for key in keys]
        _close(closed)

    def _add(self, kind: nixl_mem_t, key: Key, owner: object) -> None:
        if (registration := self._registrations.get((kind, key))) is not None:
            registration.times += 1
            registration.owners.append(owner)
            return
        address, nbytes, device = key
        place = "cpu" if kind == nixl_mem_t.DRAM_SEG else f"cuda:{device}"
        name = f"{nbytes} bytes at {address:#x}"
        owners = [owner]
        region = self._runtime.expose_pointer(address, nbytes, place, access="rw", name=name, keepalive=owners)
        self._registrations[kind, key] = _Registration(region, owners)
        self._by_kind[kind].set(key, region)
        self._state += 1

    def _remove(self, kind: nixl_mem_t, key: Key) -> Region | None:
        """Returns the region to be closed, if the memory is registered no more."""
        registration = self._registrations[kind, key]
        registration.times -= 1
        if registration.times > 0:
            return None
        del self._registrations[kind, key]
        self._by_kind[kind].remove(key)
        self._state += 1
        return registration.region

    def table(self, descs: nixlRegDList | None = None) -> tuple[int, npt.NDArray[np.void]]:
        """Returns the state, and some or all of the memory, for metadata.

        Raises:
            nixlNotFoundError: a descriptor is not registered
        """
        with self._lock:
            keys = (
                list(self._registrations) if descs is None else [(descs.getType(), key_of(row)) for row in descs.rows()]
            )
            table = np.empty(len(keys), REGISTRATION)
            for i, key in enumerate(keys):
                if key not in self._registrations:
                    raise nixlNotFoundError(f"the descriptor {key[1]} is not registered")
                handle = np.frombuffer(self._registrations[key].region.handle(), np.uint8)
                table[i] = (*key[1], int(key[0]), handle)
            return self._state, table


def _close(regions: Iterable[Region | None]) -> None:
    """Closes regions, without any lock, and waits until peers cannot touch them.

    Raises:
        nixlBackendError: peers still use one of them
    """
    closed = [region for region in regions if region is not None]
    for region in closed:
        region.close(0)  # revokes it at once
    deadline = time.monotonic() + _LONGEST_DEREGISTRATION_S
    held = [region for region in closed if not region.close(max(0.0, deadline - time.monotonic()))]
    if held:
        holders = sorted({holder for region in held for holder in region.holders}) or ["this agent"]
        raise nixlBackendError(
            f"the memory of {', '.join(region.name for region in held)} is still being used by {', '.join(holders)}"
        )
