"""Mooncake's transfer engine over TCP. Its library needs libibverbs1 of the Linux distribution, even without RDMA."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import numpy
import torch
from cases import LISTS, READ, REUSED, WRITE, Case, CaseError
from ends import Initiator as InitiatorEnd
from ends import Owner as OwnerEnd

os.environ.setdefault("GLOG_minloglevel", "2")  # it logs each batch

from mooncake.engine import TransferEngine

_WITHOUT_METADATA_SERVER = "P2PHANDSHAKE"
_MOST_BLOCKS = 1024  # of a batch: those of 4,096 blocks and more fail over TCP


def _engine_of(host: str, memory: torch.Tensor) -> Any:
    engine = TransferEngine()
    _check(engine.initialize(host, _WITHOUT_METADATA_SERVER, "tcp", ""), "initialize")
    _check(engine.register_memory(memory.data_ptr(), memory.numel()), "register_memory")
    return engine


def _check(status: int, call: str) -> None:
    if status != 0:
        raise CaseError(f"{call} returned {status}")


def _own_address(host: str) -> str:
    """Returns this host's address on the way to another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))
        return str(probe.getsockname()[0])


class Owner(OwnerEnd):
    def __init__(self, num_bytes: int, kind: str, host: str) -> None:
        super().__init__(num_bytes, kind)
        self._engine = _engine_of(host, self.memory)
        self.address = (host, self._engine.get_rpc_port(), self.memory.data_ptr())


class Initiator(InitiatorEnd):
    def __init__(self, num_bytes: int, kind: str, owner: Any) -> None:
        super().__init__(num_bytes, kind)
        host, port, self._there = owner
        self._target = f"{host}:{port}"
        self._engine = _engine_of(_own_address(host), self.memory)

    def prepare(self, case: Case) -> Callable[[], None]:
        if case.op not in (WRITE, READ, *LISTS):
            raise CaseError("transfers name their blocks each time, and the answer to a notification is a transfer")
        if case.op in LISTS:
            return self._prepare_list(case)
        return (lambda: self._transfer(case)) if case.buffers == REUSED else (lambda: self._transfer_fresh(case))

    def _transfer(self, case: Case) -> None:
        engine, length = self._engine, case.num_bytes
        if case.in_flight == 1:
            transfer = engine.transfer_sync_read if case.is_read else engine.transfer_sync_write
            _check(transfer(self._target, self.buffers[0].data_ptr(), self._there, length), "transfer_sync")
            return
        start = engine.batch_transfer_async_read if case.is_read else engine.batch_transfer_async_write
        batches = [
            start(self._target, [buffer.data_ptr()], [self._there + index * length], [length])
            for index, buffer in enumerate(self.buffers)
        ]
        _check(engine.get_batch_transfer_status(batches), "get_batch_transfer_status")

    def _transfer_fresh(self, case: Case) -> None:
        for buffer in self.buffers:
            _check(self._engine.register_memory(buffer.data_ptr(), case.num_bytes), "register_memory")
        self._transfer(case)
        for buffer in self.buffers:
            _check(self._engine.unregister_memory(buffer.data_ptr()), "unregister_memory")

    def _prepare_list(self, case: Case) -> Callable[[], None]:
        offsets = numpy.random.default_rng(case.num_blocks).permutation(case.num_blocks) * case.block_bytes
        here, there = ((start + offsets).tolist() for start in (self.memory.data_ptr(), self._there))
        transfer = self._engine.batch_transfer_sync_read if case.is_read else self._engine.batch_transfer_sync_write
        batches = [slice(begin, begin + _MOST_BLOCKS) for begin in range(0, case.num_blocks, _MOST_BLOCKS)]
        lengths = [case.block_bytes] * case.num_blocks

        def run() -> None:
            for batch in batches:
                _check(transfer(self._target, here[batch], there[batch], lengths[batch]), "batch_transfer_sync")

        return run
