"""GPU memory in which the two ends of a request tell each other how far they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass
class Records:
    """The records of one rank's requests to a peer, of one direction and tag, by their order of preparation.

    The peer may write to a record as long as its own end is open. So a record is not freed, and a later request takes
    it over once both ends of the former are closed. Each rank tells the other how many it has closed when it prepares.
    """

    num_prepared: int = 0
    num_closed: int = 0  # by this rank, up to the first one that is open
    num_closed_there: int = 0
    _closed: set[int] = field(default_factory=set)  # after an open one
    _memory: dict[int, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(group: dist.ProcessGroup, peer: int, is_sender: bool, tag: int) -> Records:
        return _records.setdefault(group, defaultdict(Records))[peer, is_sender, tag]

    def add(self, num_bytes: int, device: torch.device) -> tuple[int, Tensor]:
        """Returns the number of a new request, and memory for it."""
        number = self.num_prepared
        self.num_prepared += 1
        free = min(self.num_closed, self.num_closed_there)
        former = next(
            (each for each, memory in self._memory.items() if each < free and memory.nbytes >= num_bytes), None
        )
        if former is None:
            self._memory[number] = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        else:
            self._memory[number] = self._memory.pop(former)
        return number, self._memory[number]

    def note_closed(self, number: int) -> None:
        self._closed.add(number)
        while self.num_closed in self._closed:
            self._closed.remove(self.num_closed)
            self.num_closed += 1


_records: WeakKeyDictionary[dist.ProcessGroup, defaultdict[tuple[int, bool, int], Records]] = WeakKeyDictionary()
