"""Runs all of upstream's tests, writes torch-VERSION.jsonl, and compares with the lists.

    python tests/upstream/report.py
    python tests/upstream/report.py --gpus 2 --jobs 4 --results results     # on a GPU host

Exit code 1 if a test does not pass that has to, or passes that is said not to.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lists
import torch
from tqdm import tqdm


def _run_share(share: str, arguments: argparse.Namespace, progress: tqdm[object]) -> list[dict[str, object]]:
    command = [sys.executable, str(lists.HERE / "run.py"), "--share", share, "--gpus", str(arguments.gpus)]
    command += ["--limit", str(arguments.limit)]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            rows.append(json.loads(line))
            progress.update()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode} after {len(rows)} tests")
    return rows


def _run_all(arguments: argparse.Namespace) -> list[dict[str, object]]:
    with ThreadPoolExecutor(arguments.jobs) as pool, tqdm(unit=" tests") as progress:
        shares = [f"{job + 1}/{arguments.jobs}" for job in range(arguments.jobs)]
        rows = [row for each in pool.map(lambda share: _run_share(share, arguments, progress), shares) for row in each]
    return sorted(rows, key=lambda row: str(row["name"]))


def _summary(row: dict[str, object]) -> dict[str, object]:
    """Without times and addresses, which differ from run to run. Of a traceback, the rank's own last exception."""
    lines = str(row["detail"]).strip().splitlines() if row["outcome"] != "passed" else []
    exceptions = [line for line in lines if re.match(r"\w*(Error|Exception): ", line)]
    why = "".join((exceptions or lines)[-1:])
    return {"name": row["name"], "outcome": row["outcome"], "why": re.sub(r"0x[0-9a-f]+", "0x…", why)[:160]}


def _complaints(rows: list[dict[str, object]], expected: lists.Expected) -> Iterator[str]:
    passed = {str(row["name"]) for row in rows if row["outcome"] == "passed"}
    failed = {str(row["name"]) for row in rows if row["outcome"] == "failed"}
    not_run = {str(row["name"]) for row in rows if row["outcome"] == "not run"}
    if len(not_run) == len(rows):
        yield "no test has run"
    for name in sorted(expected.to_pass - passed - not_run):
        yield f"{name}: has to pass, and does not"
    for name in sorted(failed - expected.to_pass - set(expected.not_to_pass)):
        yield f"{name}: fails, and no list says why"
    for name in sorted(passed & set(expected.not_to_pass)):
        yield f"{name}: passes by now, though listed as: {expected.not_to_pass[name]}"
    if expected.is_complete:
        yield from (f"{name}: passes, and is in no list" for name in sorted(passed - expected.to_pass))


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs all of upstream's tests and compares with the lists.")
    parser.add_argument("--gpus", type=int, default=0, help="ranks, with a GPU each; 0: four ranks on CPUs")
    parser.add_argument("--jobs", type=int, default=1, help="how many tests run at a time")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds, after which no test begins")
    parser.add_argument("--results", type=Path, default=lists.RESULTS, help="folder for torch-VERSION.jsonl")
    arguments = parser.parse_args()
    expected = lists.expected(arguments.gpus)
    found = _run_all(arguments)
    for row in found:
        if row["outcome"] == "failed" and row["name"] not in expected.not_to_pass:
            print(f"=== {row['name']} after {row['seconds']} s", str(row["detail"])[-3000:], sep="\n")
    rows = [_summary(row) for row in found]
    arguments.results.mkdir(parents=True, exist_ok=True)
    results = arguments.results / lists.results_name(torch.__version__, arguments.gpus)
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    complaints = list(_complaints(rows, expected))
    print(*complaints, results, dict(Counter(row["outcome"] for row in rows)), sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
