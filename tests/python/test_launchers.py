"""The launchers that people use: torchrun and torch.multiprocessing.spawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from processes import HERE, environment


def test_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    ended = subprocess.run(
        [*command, str(HERE / "programs.py"), "runs_under_a_launcher"],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment(),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert {f"rank {rank} of 3: sum 3" for rank in range(3)} <= set(ended.stdout.splitlines())


def test_spawn(tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "programs.py"), "spawns", "0", "2"]
    ended = subprocess.run(
        [*program, str(tmp_path / "store"), str(tmp_path / "result")],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment(),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert [(tmp_path / f"result{rank}").read_text() for rank in range(2)] == ["2", "2"]
