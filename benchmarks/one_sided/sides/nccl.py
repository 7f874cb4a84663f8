"""NCCL's send and recv between two GPUs, through torch.distributed: the owner's program takes part in each transfer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from cases import READ, WRITE, Case, CaseError
from ends import CUDA
from ends import Initiator as InitiatorEnd
from ends import Owner as OwnerEnd

_OWNER, _INITIATOR = 0, 1


def _check(kind: str) -> None:
    if kind != CUDA:
        raise ValueError(f"the memory is {kind}; allowed: {CUDA}, since NCCL sends tensors of GPUs")


def _join(rank: int, address: tuple[str, int]) -> None:
    host, port = address
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo" if host.startswith("127.") else "eth0")
    dist.init_process_group("nccl", init_method=f"tcp://{host}:{port}", rank=rank, world_size=2)


def _run(call: Callable[..., Any], tensors: list[torch.Tensor], peer: int) -> None:
    for work in dist.batch_isend_irecv([dist.P2POp(call, tensor, peer) for tensor in tensors]):
        work.wait()
    torch.cuda.current_stream().synchronize()


class Owner(OwnerEnd):
    def __init__(self, num_bytes: int, kind: str, host: str) -> None:
        _check(kind)
        super().__init__(num_bytes, kind)
        with socket.create_server((host, 0)) as free:
            self.address = (host, free.getsockname()[1])

    def meet(self, control: Connection) -> None:
        _join(_OWNER, self.address)

    def serve(self, case: Case, num_windows: int) -> None:
        if case.op not in (WRITE, READ):
            return
        parts = self.parts_of(case)
        for _ in range(num_windows):
            _run(dist.isend if case.is_read else dist.irecv, parts, _INITIATOR)

    def close(self) -> None:
        dist.destroy_process_group()


class Initiator(InitiatorEnd):
    def __init__(self, num_bytes: int, kind: str, owner: Any) -> None:
        _check(kind)
        super().__init__(num_bytes, kind)
        _join(_INITIATOR, owner)

    def prepare(self, case: Case) -> Callable[[], None]:
        if case.op not in (WRITE, READ):
            raise CaseError("send and recv carry one block, without notifications")
        return lambda: _run(dist.irecv if case.is_read else dist.isend, self.buffers, _OWNER)

    def close(self) -> None:
        dist.destroy_process_group()
