"""GPU memory in which the two ends of a request tell each other how far they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from torch_axon import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_axon.prepared._handshake import Handshake


@dataclass
class Records:
    """The records of one rank's requests to a peer, of one direction and tag, by their order of preparation.

    The peer may write to a record as long as its own end is open. So a record is not freed. A later request takes it
    over once both ends of the former have ended: they are closed, and none of their kernels is queued. Each rank tells
    the other how many of its ends have, when it prepares.
    """

    _orphans: ClassVar[list[Tensor]] = []  # of groups that are gone, while peers may write to them

    num_prepared: int = 0
    num_ended: int = 0  # of this rank, up to the first one that has not
    num_ended_there: int = 0
    _closed: dict[int, Callable[[], bool]] = field(default_factory=dict)  # whether its kernels have run
    _memory: dict[int, Tensor] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @staticmethod
    def of(handshake: Handshake, is_sender: bool) -> Records:
        of_group = _records.setdefault(handshake.group, _OfGroup())
        if of_group.membership != handshake.membership:  # the group has other members now
            of_group = _records[handshake.group] = _OfGroup(handshake.membership)
        return of_group.records[handshake.peer, is_sender, handshake.tag]

    def take(self, num_bytes: int, device: torch.device) -> Tensor:
        """Returns zeroed memory, of at least this size, for the next request.

        The smallest that fits: otherwise records for many partitions would serve requests that need few flags, and the
        next request for many partitions would allocate another one.
        """
        with self._lock:
            self._look()
            memory = self._pop_smallest(num_bytes)
        return _zeroed(memory, num_bytes, device)

    def add(self, memory: Tensor | None) -> int:
        """Counts a request, and keeps its memory. Returns its number."""
        with self._lock:
            self._look()
            number = self.num_prepared
            self.num_prepared += 1
            if memory is not None:
                self._memory[number] = memory
            return number

    def close(self, number: int, has_ended: Callable[[], bool] = lambda: True) -> None:
        """Notes that a request is closed. `has_ended` says whether its kernels have run, too."""
        with self._lock:
            self._closed[number] = has_ended

    def _pop_smallest(self, num_bytes: int) -> Tensor | None:
        """Removes and returns the smallest memory of this size or more that no end uses, or None."""
        free = min(self.num_ended, self.num_ended_there)
        fitting = [number for number, memory in self._memory.items() if number < free and memory.nbytes >= num_bytes]
        if not fitting:
            return None
        return self._memory.pop(min(fitting, key=lambda number: self._memory[number].nbytes))

    def _look(self) -> None:
        while self.num_ended in self._closed and self._closed[self.num_ended]():
            del self._closed[self.num_ended]
            self.num_ended += 1

    def __del__(self) -> None:
        self._orphans.extend(memory for number, memory in self._memory.items() if number >= self.num_ended_there)


@dataclass
class _OfGroup:
    membership: int = 0
    records: defaultdict[tuple[int, bool, int], Records] = field(default_factory=lambda: defaultdict(Records))


_records: WeakKeyDictionary[dist.ProcessGroup, _OfGroup] = WeakKeyDictionary()


def _zeroed(memory: Tensor | None, num_bytes: int, device: torch.device) -> Tensor:
    """Zeroes memory, or makes some. On a stream of its own, since the current one may wait for a peer."""
    with torch.inference_mode(False):
        if device.type != "cuda":
            return torch.zeros(num_bytes, dtype=torch.uint8) if memory is None else memory.zero_()
        external: Any = torch.cuda.ExternalStream  # untyped in torch
        stream = external(_native.load().PreparedTransfer.memory_stream(device.index), device)
        with torch.cuda.stream(stream):
            memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device) if memory is None else memory.zero_()
        stream.synchronize()
    return memory
