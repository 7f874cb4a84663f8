"""NIXL's wheel: agents with its UCX backend. Its API has no waiting call, so the program polls."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy
import torch
from cases import LISTS, MAKE, NOTIFICATION, PLANS, PREPARE, REUSED, Case
from ends import CUDA, DEADLINE_S
from ends import Initiator as InitiatorEnd
from ends import Owner as OwnerEnd

MODULE = "nixl_cu13"
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")


def await_notification(agent: Any) -> None:
    until = time.monotonic() + DEADLINE_S
    while not agent.get_new_notifs():
        if time.monotonic() > until:
            raise TimeoutError(f"no notification has arrived in {DEADLINE_S} s")


def agent_of(module: str, name: str) -> Any:
    return importlib.import_module(f"{module}._api").nixl_agent(name)


def location_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns address and device."""
    return tensor.data_ptr(), max(tensor.get_device(), 0)


class Owner(OwnerEnd):
    module = MODULE

    def __init__(self, num_bytes: int, kind: str, host: str) -> None:
        super().__init__(num_bytes, kind)
        self._agent = agent_of(self.module, "owner")
        self._agent.register_memory(self.memory)
        self.address = (self._agent.get_agent_metadata(), location_of(self.memory))

    def meet(self, control: Connection) -> None:
        self._initiator = self._agent.add_remote_agent(control.recv()).decode()

    def serve(self, case: Case, num_windows: int) -> None:
        for _ in range(num_windows if case.awaits_notification else 0):
            await_notification(self._agent)
            self._agent.send_notif(self._initiator, b"back")


class Initiator(InitiatorEnd):
    module = MODULE

    def __init__(self, num_bytes: int, kind: str, owner: Any) -> None:
        super().__init__(num_bytes, kind)
        self._kind_of_memory = "VRAM" if kind == CUDA else "DRAM"
        self._agent = agent_of(self.module, "initiator")
        self._agent.register_memory(self.memory)
        metadata, self._there = owner
        self._owner = self._agent.add_remote_agent(metadata).decode()

    def meet(self, control: Connection) -> None:
        control.send(self._agent.get_agent_metadata())

    def prepare(self, case: Case) -> Callable[[], None]:
        if case.op in (PREPARE, MAKE, *LISTS, *PLANS):
            return self._prepare_blocks(case)
        if case.op == NOTIFICATION:
            return self._notify
        if case.awaits_notification:
            handles = self._hold(self._handles(case, b"there"))
            return lambda: self._write_and_notify(handles)
        if case.buffers == REUSED:
            handles = self._hold(self._handles(case))
            return lambda: self._transfer(handles)
        return lambda: self._transfer_fresh(case)

    def _notify(self) -> None:
        self._agent.send_notif(self._owner, b"there")
        await_notification(self._agent)

    def _write_and_notify(self, handles: list[Any]) -> None:
        self._transfer(handles)
        await_notification(self._agent)

    def _hold(self, handles: list[Any]) -> list[Any]:
        for handle in handles:
            self.held.callback(self._agent.release_xfer_handle, handle)
        return handles

    def _transfer_fresh(self, case: Case) -> None:
        registered = [self._agent.register_memory(buffer) for buffer in self.buffers]
        handles = self._handles(case)
        self._transfer(handles)
        for handle in handles:
            self._agent.release_xfer_handle(handle)
        for each in registered:
            self._agent.deregister_memory(each)

    def _transfer(self, handles: list[Any]) -> None:
        """Starts transfers, and asks until all of them are done."""
        agent = self._agent
        states = [agent.transfer(handle) for handle in handles]
        until = time.monotonic() + DEADLINE_S
        for handle, state in zip(handles, states, strict=True):
            while state != "DONE":
                state = agent.check_xfer_state(handle)
                if state == "ERR" or time.monotonic() > until:
                    raise RuntimeError(f"a transfer ended with {state}")

    def _handles(self, case: Case, notification: bytes = b"") -> list[Any]:
        verb = "READ" if case.is_read else "WRITE"
        address, device = self._there
        found = []
        for index, buffer in enumerate(self.buffers):
            here, gpu = location_of(buffer)
            local = self._descriptors([(here, case.num_bytes, gpu)])
            remote = self._descriptors([(address + index * case.num_bytes, case.num_bytes, device)])
            found.append(self._agent.initialize_xfer(verb, local, remote, self._owner, notification))
        return found

    def _descriptors(self, rows: Any) -> Any:
        return self._agent.get_xfer_descs(rows, self._kind_of_memory)

    def _prepare_blocks(self, case: Case) -> Callable[[], None]:
        agent, count = self._agent, case.num_blocks
        verb = "READ" if case.is_read else "WRITE"
        ids = numpy.random.default_rng(count).permutation(count).astype(numpy.int64)
        here, there = (_rows(place, case) for place in (location_of(self.buffers[0]), self._there))
        if case.op == PREPARE:
            return lambda: agent.release_dlist_handle(agent.prep_xfer_dlist(self._owner, there, self._kind_of_memory))
        if case.op in LISTS:
            here, there = here[ids], there[ids]
            return lambda: self._transfer_once(
                agent.initialize_xfer(verb, self._descriptors(here), self._descriptors(there), self._owner)
            )
        sides = [
            agent.prep_xfer_dlist(name, rows, self._kind_of_memory) for name, rows in (("", here), (self._owner, there))
        ]
        for side in sides:
            self.held.callback(agent.release_dlist_handle, side)

        def make() -> Any:
            return agent.make_prepped_xfer(verb, sides[0], ids, sides[1], ids)

        return (lambda: agent.release_xfer_handle(make())) if case.op == MAKE else (lambda: self._transfer_once(make()))

    def _transfer_once(self, handle: Any) -> None:
        self._transfer([handle])
        self._agent.release_xfer_handle(handle)


def _rows(location: tuple[int, int], case: Case) -> numpy.ndarray[Any, Any]:
    """Returns address, bytes and device of each block."""
    rows = numpy.empty((case.num_blocks, 3), dtype=numpy.uint64)
    rows[:, 0] = location[0] + numpy.arange(case.num_blocks) * case.block_bytes
    rows[:, 1], rows[:, 2] = case.block_bytes, location[1]
    return rows
