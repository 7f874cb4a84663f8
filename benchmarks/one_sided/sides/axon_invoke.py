"""torch_axon.runtime's calls with the same bytes: a function of the owner receives or returns its memory in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import READ, WRITE, Case, CaseError

from sides.axon import Initiator as TransferInitiator
from sides.axon import Owner as TransferOwner
from torch_axon.runtime import Coming


class Owner(TransferOwner):
    def __init__(self, num_bytes: int, kind: str, host: str) -> None:
        super().__init__(num_bytes, kind, host)
        memory = self.memory

        def into_memory(coming: Coming) -> list[torch.Tensor]:
            return [memory[: each.shape.numel()] for each in coming]

        self.runtime.register("load")(lambda size: memory[:size])
        self.runtime.register("store", memory=into_memory)(lambda tensor: None)


class Initiator(TransferInitiator):
    def __init__(self, num_bytes: int, kind: str, owner: Any) -> None:
        super().__init__(num_bytes, kind, owner)
        self.path = ""

    def prepare(self, case: Case) -> Callable[[], None]:
        if case.op not in (WRITE, READ) or case.in_flight > 1:
            raise CaseError("calls carry one block at a time here")
        return self._load if case.is_read else self._store

    def _load(self) -> None:
        self.buffers = [self.peer.invoke("load", self.buffers[0].numel()).result()]

    def _store(self) -> None:
        self.peer.invoke("store", self.buffers[0]).result()
