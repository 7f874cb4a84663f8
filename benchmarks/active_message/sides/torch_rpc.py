"""torch.distributed.rpc over TensorPipe: calls a function of this module with a tensor, and waits for it."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Thread
from typing import Any

import torch
from torch.distributed import rpc

from sides.axon import device_payload, payload, synchronize

WAITS = True

_NETWORK_CHANNELS = {"host": ["mpt_uv", "basic"], "cuda": ["mpt_uv", "basic", "cuda_basic"]}

__all__ = ["connected", "device_payload", "payload", "serving", "synchronize"]


def echo(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@asynccontextmanager
async def serving(host: str, memory: str) -> AsyncIterator[Any]:
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    joining = Thread(target=_join, args=("server", 0, memory, host, port))  # returns when the client has arrived
    joining.start()
    yield (host, port)
    joining.join()
    rpc.shutdown(graceful=False)


@asynccontextmanager
async def connected(address: Any, memory: str) -> AsyncIterator[Callable[[torch.Tensor], Any]]:
    _join("client", 1, memory, *address)
    yield lambda tensor: rpc.rpc_async("server", echo, args=(tensor,))
    rpc.shutdown(graceful=False)


def _join(name: str, rank: int, memory: str, host: str, port: int) -> None:
    one_host = host.startswith("127.")
    for library in ("TP", "GLOO"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo" if one_host else "eth0")
    # Its channels take two namespaces for one host: they would read each other's memory.
    network = {} if one_host else {"_transports": ["uv"], "_channels": _NETWORK_CHANNELS[memory]}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{host}:{port}", rpc_timeout=60, **network)
    if memory == "cuda":
        options.set_device_map("client" if name == "server" else "server", {0: 0})
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
