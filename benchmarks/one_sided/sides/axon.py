"""torch_axon.runtime: transfers of a peer. A thread waits for their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from cases import LISTS, MAKE, NOTIFICATION, PLANS, PREPARE, Case, CaseError
from ends import DEADLINE_S, End
from ends import Initiator as InitiatorEnd
from ends import Owner as OwnerEnd

from torch_axon.runtime import Blocks, Runtime, Transfer

SECRET = b"of this benchmark's two processes"


class _AxonEnd(End):
    """An end with a runtime, which allocates mapped memory."""

    runtime: Runtime

    def allocate(self, num_bytes: int) -> torch.Tensor:
        if self.kind == "mapped":
            mapped: torch.Tensor = self.runtime.empty(num_bytes, dtype=torch.uint8)
            return mapped
        return super().allocate(num_bytes)

    def close(self) -> None:
        self.runtime.close()


class Owner(_AxonEnd, OwnerEnd):
    def __init__(self, num_bytes: int, kind: str, host: str) -> None:
        self.runtime = Runtime("owner", secret=SECRET, timeout=DEADLINE_S)
        super().__init__(num_bytes, kind)
        self._region = self.runtime.expose(self.memory, "rw", name="benchmark")
        self.address = ((host, self.runtime.listen(host, 0)), self._region.handle())

    def serve(self, case: Case, num_windows: int) -> None:
        """Answers each notification by another one."""
        left = num_windows * case.in_flight if case.awaits_notification else 0
        while left > 0:
            arrived = self.runtime.notifications(timeout=DEADLINE_S)
            for peer, tag in arrived:
                peer.notify(tag)
            left -= len(arrived)


class Initiator(_AxonEnd, InitiatorEnd):
    def __init__(self, num_bytes: int, kind: str, owner: Any) -> None:
        self.runtime = Runtime("initiator", secret=SECRET, timeout=DEADLINE_S)
        super().__init__(num_bytes, kind)
        address, handle = owner
        self.peer = self.runtime.connect(tuple(address), wait=DEADLINE_S)
        self.remote = self.peer.open(handle)
        self.path = self.remote.path

    def finish(self, transfer: Transfer) -> None:
        transfer.result()

    def await_notification(self) -> None:
        if not self.runtime.notifications(timeout=DEADLINE_S):
            raise TimeoutError(f"no notification has arrived in {DEADLINE_S} s")

    def prepare(self, case: Case) -> Callable[[], None]:
        if case.op in (PREPARE, MAKE, *LISTS, *PLANS):
            return self._prepare_blocks(case)
        if case.op == NOTIFICATION:
            return self._notify
        if case.awaits_notification:
            return lambda: self._write_and_notify(self.remote[: case.num_bytes])
        parts = [self.remote[i * case.num_bytes : (i + 1) * case.num_bytes] for i in range(case.in_flight)]
        post = self.peer.read if case.is_read else self.peer.write

        def run() -> None:
            for transfer in [post(part, buffer) for part, buffer in zip(parts, self.buffers, strict=True)]:
                self.finish(transfer)

        return run

    def _notify(self) -> None:
        self.peer.notify(b"there")
        self.await_notification()

    def _write_and_notify(self, part: Any) -> None:
        self.peer.write(part, self.buffers[0], notify=b"there")
        self.await_notification()

    def _prepare_blocks(self, case: Case) -> Callable[[], None]:
        size, count = case.block_bytes, case.num_blocks
        verb = "read" if case.is_read else "write"
        blocks = Blocks(self.buffers[0], size), Blocks(self.remote, size, count=count)
        ids = numpy.random.default_rng(count).permutation(count).astype(numpy.int32)
        if case.op == PREPARE:
            return lambda: _drop(self.peer.plan(verb, *blocks))
        if case.op in PLANS:
            plan = self.peer.plan(verb, *blocks)
            return lambda: self.finish(plan.post(ids, ids))
        if case.op == MAKE:
            raise CaseError("a plan is posted without a request that is made before")
        there = [self.remote[i * size : (i + 1) * size] for i in ids]
        here = [self.buffers[0][i * size : (i + 1) * size] for i in ids]
        post = self.peer.readv if case.is_read else self.peer.writev
        return lambda: self.finish(post(there, here))


def _drop(_plan: object) -> None:
    """Ends the life of a plan within the time that is measured."""
