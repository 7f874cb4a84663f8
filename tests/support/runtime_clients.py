"""What runtime tests do to the other process, and to their own runtime."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.processes import environment
from torch_axon.runtime import Runtime

PROGRAMS = Path(__file__).with_name("runtime_servers.py")


class Server:
    """A process that serves until its input ends."""

    def __init__(self, *prefix: str, **settings: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(PROGRAMS), "serves"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment() | settings,
        )
        assert self.process.stdout is not None
        self.address = bytes.fromhex(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate(timeout=60)


def check_that_it_ends(program: str) -> None:
    """Runs a program of runtime_servers.py, which must print only "ready" and exit."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAMS), program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "ready\n"
    assert not ended.stderr


async def give_up_connecting(client: Runtime, address: bytes) -> None:
    """Begins to connect, cancels that, and waits for the end of its thread."""
    connecting = asyncio.create_task(client.aconnect(address))
    await asyncio.sleep(0)  # its thread runs from here on
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    for thread in threading.enumerate():
        if thread.name == f"axon-connect {client.name}":
            while thread.is_alive():
                await asyncio.sleep(0)
