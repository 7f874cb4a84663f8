"""Trains on scikit-learn's digits over axon and over Gloo: runs `digits_ddp.py` under torchrun and returns its status.

All arguments are passed on: ``python examples/demo.py --epochs 2``. ``--help`` lists them.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NUM_PROCESSES = 2


def main(command_line: Sequence[str]) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_PROCESSES}"]
    script = Path(__file__).with_name("digits_ddp.py")
    # Each process uses one thread: the processes share the cores, and one order of summation makes runs repeat exactly.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.run([*command, str(script), *command_line], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
