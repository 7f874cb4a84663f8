"""Starts the doctor's ranks on this machine where no launcher has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from torch._C._distributed_c10d import TCPStore

# The others have nothing left to do once rank 0 has reported.
_GRACE_S = 10.0


def run_alone(num_ranks: int, command_line: Sequence[str]) -> int:
    """Rank 0's exit status; it prints the report."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [_start(rank, num_ranks, store.port, command_line) for rank in range(num_ranks)]
    try:
        ranks[0].wait()
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
            time.sleep(0.01)
        for number, rank in enumerate(ranks):
            _tell_of_an_unusual_end(number, rank.returncode)
    finally:
        for rank in ranks:
            rank.kill()
    return 1 if ranks[0].returncode < 0 else ranks[0].returncode


def _tell_of_an_unusual_end(rank: int, code: int | None) -> None:
    if code is None:
        print(f"rank {rank} hangs, and is killed", file=sys.stderr)
    elif code < 0:
        print(f"rank {rank} was killed by {signal.Signals(-code).name}", file=sys.stderr)


def _start(rank: int, num_ranks: int, port: int, command_line: Sequence[str]) -> subprocess.Popen[bytes]:
    meeting = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_ranks,
        "LOCAL_WORLD_SIZE": num_ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the store is this process's
    }
    environment = os.environ | {name: str(value) for name, value in meeting.items()}
    return subprocess.Popen([sys.executable, "-m", "torch_axon.doctor", *command_line], env=environment)
