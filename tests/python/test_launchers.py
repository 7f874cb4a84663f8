"""The launchers that people use: torchrun and torch.multiprocessing.spawn."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import HERE, output_of


def test_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    output = output_of([*command, str(HERE / "programs.py"), "runs_under_a_launcher"], timeout_s=90)
    assert {f"rank {rank} of 3: sum 3" for rank in range(3)} <= set(output.splitlines())


def test_spawn(tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "programs.py"), "spawns", "0", "2"]
    output_of([*program, str(tmp_path / "store"), str(tmp_path / "result")], timeout_s=90)
    assert [(tmp_path / f"result{rank}").read_text() for rank in range(2)] == ["2", "2"]
