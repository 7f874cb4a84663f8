"""Comms of `axon://` for tests: between two processes, and within one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distributed.comm import Comm, connect, listen
from distributed.protocol import to_serialize

from support.processes import environment

PROGRAM = Path(__file__).with_name("dask_listener.py")


@contextmanager
def listener_process(*prefix: str, host: str = "127.0.0.1", **settings: str) -> Iterator[str]:
    """Runs dask_listener.py, and yields its address."""
    process = subprocess.Popen(
        [*prefix, sys.executable, str(PROGRAM), f"axon://{host}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(**settings),
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=60)


@asynccontextmanager
async def comm_to(address: str) -> AsyncIterator[Comm]:
    comm = await connect(address, timeout=30)
    try:
        yield comm
    finally:
        await comm.close()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Comm, Comm]]:
    """Yields both ends of a comm within this process: that which has connected, and that of the listener."""
    accepted: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()

    async def handle(comm: Comm) -> None:
        accepted.set_result(comm)

    async with listen("axon://127.0.0.1", handle) as listener:
        comm = await connect(listener.contact_address)
        other = await accepted
    try:
        yield comm, other
    finally:
        comm.abort()
        other.abort()


async def echo(comm: Comm, value: object) -> Any:
    await comm.write({"do": "echo", "value": to_serialize(value)})
    return (await comm.read())["value"]


def assert_same(came: object, sent: object) -> None:
    assert type(came) is type(sent)
    if isinstance(sent, dict):
        assert isinstance(came, dict)
        assert came.keys() == sent.keys()
        for key, value in sent.items():
            assert_same(came[key], value)
    elif isinstance(sent, torch.Tensor | np.ndarray):
        assert came.dtype == sent.dtype  # type: ignore[attr-defined]
        np.testing.assert_array_equal(came, sent)
    else:
        assert came == sent
