"""Examples do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from processes import environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_llama_block_agrees_with_one_process_under_both_plans() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "llama_block.py")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    distances = re.findall(r"^(\w+): output within (\S+), gradients within (\S+) of", done.stdout, re.MULTILINE)
    assert [plan for plan, *_ in distances] == ["fused", "torch"]
    assert all(float(distance) < 1e-3 for _, *both in distances for distance in both), done.stdout
