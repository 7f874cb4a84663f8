"""Runs tests of upstream's suite, one JSON line each: {"name", "outcome", "seconds", "detail"}.

python tests/upstream/run.py test_broadcast test_barrier
python tests/upstream/run.py --all
python tests/upstream/run.py -           # names from standard input, one a line, answered one by one
"""

from __future__ import annotations

import json
import os
import sys
import time
import unittest
from collections.abc import Iterable

import suite
from torch.testing._internal import common_distributed

# Upstream allows 300 s, for ranks that import torch first.
common_distributed.TIMEOUT_DEFAULT = 60
common_distributed.TIMEOUT_OVERRIDE = {}


def run(name: str) -> dict[str, object]:
    result = unittest.TestResult()
    started = time.monotonic()
    unittest.TestSuite([suite.TestAxon(name)]).run(result)
    return {
        "name": name,
        "outcome": _outcome(result),
        "seconds": round(time.monotonic() - started, 1),
        "detail": "\n".join(text for _, text in (*result.errors, *result.failures, *result.skipped)),
    }


def _outcome(result: unittest.TestResult) -> str:
    if result.errors or result.failures:
        return "failed"
    return "skipped" if result.skipped else "passed"


def main(arguments: list[str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the ranks print what they like
    names: Iterable[str] = arguments
    if arguments == ["--all"]:
        names = suite.all_names()
    elif arguments == ["-"]:
        names = iter(sys.stdin.readline, "")
    for name in names:
        print(json.dumps(run(name.strip())), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
