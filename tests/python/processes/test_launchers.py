"""Common launchers: torchrun and torch.multiprocessing.spawn."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from support.processes import HERE, output_of


def test_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    output = output_of([*command, str(HERE / "launched_programs.py"), "runs_under_a_launcher"], timeout_s=90)
    assert {f"rank {rank} of 3: sum 3" for rank in range(3)} <= set(output.splitlines())


def _rendezvous(kind: str) -> list[str]:
    if kind == "c10d":
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return ["--master-addr", "127.0.0.1", "--master-port", str(listener.getsockname()[1])]


@pytest.mark.parametrize(
    ("rendezvous", "has_own_store", "dies_in"),
    [("static", "0", "init"), ("static", "0", "new"), ("c10d", "0", "init"), ("c10d", "1", "new")],
)
def test_torchrun_restarts_ranks_of_which_one_has_died_while_others_waited(
    rendezvous: str, has_own_store: str, dies_in: str
) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", *_rendezvous(rendezvous)]
    command += [str(HERE / "launched_programs.py"), "dies_in_its_first_attempt", dies_in]
    output = output_of(command, timeout_s=150, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=has_own_store)
    assert output.splitlines().count("attempt 1: sum 2") == 2


def test_spawn(tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "launched_programs.py"), "spawns", "0", "2"]
    output_of([*program, str(tmp_path / "store"), str(tmp_path / "result")], timeout_s=90)
    assert [(tmp_path / f"result{rank}").read_text() for rank in range(2)] == ["2", "2"]
