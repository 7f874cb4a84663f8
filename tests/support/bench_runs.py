"""Runs the benchmark under torchrun with the backend under test."""

from __future__ import annotations

import os
import subprocess
import sys

from support.pool import BACKEND


def run_bench(*arguments: str, num_ranks: int = 2) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    return subprocess.run(
        [*launcher, "-m", "torch_axon.bench", "--backend", BACKEND, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
