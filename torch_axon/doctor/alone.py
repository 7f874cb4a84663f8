"""Starts the doctor's ranks on this machine if no launcher did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from torch._C._distributed_c10d import TCPStore

# How long the other ranks may take to exit after rank 0, since they have nothing left to do then.
_GRACE_S = 10.0


def run_alone(num_ranks: int, command_line: Sequence[str]) -> int:
    """Starts the ranks and returns the exit status of rank 0, which prints the report.

    Args:
        num_ranks: how many ranks to start
        command_line: arguments for each of them
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [_start(rank, num_ranks, store.port, command_line) for rank in range(num_ranks)]
    try:
        ranks[0].wait()
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
            time.sleep(0.01)
        for number, rank in enumerate(ranks):
            _report_unusual_exit(number, rank.returncode)
    finally:
        for rank in ranks:
            rank.kill()
    return 1 if ranks[0].returncode < 0 else ranks[0].returncode


def _report_unusual_exit(rank: int, code: int | None) -> None:
    if code is None:
        print(f"rank {rank} does not exit and is killed", file=sys.stderr)
    elif code < 0:
        print(f"rank {rank} was killed by {signal.Signals(-code).name}", file=sys.stderr)


def _start(rank: int, num_ranks: int, port: int, command_line: Sequence[str]) -> subprocess.Popen[bytes]:
    launch = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_ranks,
        "LOCAL_WORLD_SIZE": num_ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # this process hosts the store
    }
    environment = os.environ | {name: str(value) for name, value in launch.items()}
    return subprocess.Popen([sys.executable, "-m", "torch_axon.doctor", *command_line], env=environment)
