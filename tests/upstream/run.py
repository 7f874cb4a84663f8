"""Runs tests of upstream's suite and prints one JSON line each: {"name", "outcome", "seconds", "detail"}.

Tests are named, chosen by their share of all, or read from standard input:

    python tests/upstream/run.py test_broadcast test_barrier
    python tests/upstream/run.py --share 1/1        # all; 2/3: the second third of them
    python tests/upstream/run.py -                  # names from standard input, one per line, answered one by one
    python tests/upstream/run.py --gpus 2 …         # over two ranks with a GPU each, not four ranks on CPUs
    python tests/upstream/run.py --limit 300 …      # the outcome of those that have not begun by then is "not run"
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import unittest
from collections.abc import Iterable
from types import ModuleType


def _import_suite(num_gpus: int) -> ModuleType:
    if num_gpus:
        os.environ.update(BACKEND="nccl", WORLD_SIZE=str(num_gpus))
    import suite
    from torch.testing._internal import common_distributed

    # Upstream allows 300 s, for ranks that import torch first.
    common_distributed.TIMEOUT_DEFAULT = 60
    common_distributed.TIMEOUT_OVERRIDE = {}
    return suite


def run(suite: ModuleType, name: str) -> dict[str, object]:
    result = unittest.TestResult()
    started = time.monotonic()
    unittest.TestSuite([suite.make(name)]).run(result)
    return {
        "name": name,
        "outcome": _outcome(result),
        "seconds": round(time.monotonic() - started, 1),
        "detail": "\n".join(text for _, text in (*result.errors, *result.failures, *result.skipped)),
    }


def _not_run(name: str) -> dict[str, object]:
    return {"name": name, "outcome": "not run", "seconds": 0, "detail": ""}


def _outcome(result: unittest.TestResult) -> str:
    if result.errors or result.failures:
        return "failed"
    return "skipped" if result.skipped else "passed"


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs tests of upstream's suite.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--share", help="K/N: every Nth test, from the Kth on")
    parser.add_argument("--gpus", type=int, default=0, help="ranks, with a GPU each; 0: four ranks on CPUs")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds, after which no test begins")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.limit
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the ranks' prints out of the results
    suite = _import_suite(arguments.gpus)
    names: Iterable[str] = arguments.names
    if arguments.share:
        first, step = map(int, arguments.share.split("/"))
        names = suite.all_names()[first - 1 :: step]
    elif names == ["-"]:
        names = iter(sys.stdin.readline, "")
    for name in map(str.strip, names):
        row = run(suite, name) if time.monotonic() < deadline else _not_run(name)
        print(json.dumps(row), file=answers, flush=True)


if __name__ == "__main__":
    main()
