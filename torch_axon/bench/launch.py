"""Starts the benchmark's ranks: runs torchrun for each number of ranks in turn."""

import argparse
import subprocess
import sys
from collections.abc import Sequence

MOST_RANKS = 64


def ranks_wanted(command_line: Sequence[str]) -> "tuple[tuple[int, ...], list[str]]":
    """Returns the numbers of ranks from --ranks (empty if it is not given) and the other arguments."""
    parser = argparse.ArgumentParser(prog="python -m torch_axon.bench", add_help=False, allow_abbrev=False)
    parser.add_argument("--ranks", type=_numbers, default=())
    given, others = parser.parse_known_args(command_line)
    if len(given.ranks) > 1 and any(each.split("=")[0] == "--plot" for each in others):
        parser.error("argument --plot: of one number of --ranks only")
    return given.ranks, others


def run_each(ranks: Sequence[int], arguments: Sequence[str]) -> int:
    """Runs all of them, also after a failure. Returns 1 if any of them failed."""
    status = False
    for number in ranks:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
        done = subprocess.run([*launcher, "-m", "torch_axon.bench", *arguments], check=False)
        status |= done.returncode != 0
    return int(status)


def _numbers(text: str) -> "tuple[int, ...]":
    numbers = text.split(",")
    if not all(each.isdigit() and 1 <= int(each) <= MOST_RANKS for each in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1 to {MOST_RANKS}, such as 2,3,4,8")
    return tuple(dict.fromkeys(map(int, numbers)))
