"""Runs all of upstream's tests, writes torch-VERSION.jsonl, and compares with the lists.

    python tests/upstream/report.py
    python tests/upstream/report.py --gpus 2 --jobs 4 --results results     # on a GPU host
    python tests/upstream/report.py --gpus 2 --rest …    # only tests that the committed results lack, beside their rows

The exit code is 1 if a test differs from its list (lists.py), or is in no list.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lists
from check_results import Row, complaints
from tqdm import tqdm


def _run(names: list[str], arguments: argparse.Namespace, progress: tqdm[object]) -> list[Row]:
    command = [sys.executable, str(lists.HERE / "run.py"), *names, "--gpus", str(arguments.gpus)]
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


def _shares(arguments: argparse.Namespace, rest: list[str]) -> list[list[str]]:
    """Returns the arguments of each job: the names, or --share, which takes its names from the suite."""
    if arguments.rest:
        return [share for job in range(arguments.jobs) if (share := rest[job :: arguments.jobs])]
    return [["--share", f"{job + 1}/{arguments.jobs}"] for job in range(arguments.jobs)]


def _run_all(arguments: argparse.Namespace, rest: list[str]) -> list[Row]:
    shares = _shares(arguments, rest)
    with ThreadPoolExecutor(arguments.jobs) as pool, tqdm(unit=" tests") as progress:
        return [row for each in pool.map(lambda share: _run(share, arguments, progress), shares) for row in each]


def _summary(row: Row) -> Row:
    """Returns a row without times and addresses, which differ between runs. Of a traceback, keeps the rank's last
    exception."""
    lines = str(row["detail"]).strip().splitlines() if row["outcome"] != "passed" else []
    exceptions = [line for line in lines if re.match(r"\w*(Error|Exception): ", line)]
    why = "".join((exceptions or lines)[-1:])
    return {"name": row["name"], "outcome": row["outcome"], "why": re.sub(r"0x[0-9a-f]+", "0x…", why)[:160]}


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs all of upstream's tests and compares with the lists.")
    parser.add_argument("--gpus", type=int, default=0, help="ranks, with a GPU each; 0: four ranks on CPUs")
    parser.add_argument("--jobs", type=int, default=1, help="how many tests run at a time")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds, after which no test begins")
    parser.add_argument("--rest", action="store_true", help="keep the committed results, and run what they say has not")
    parser.add_argument("--results", type=Path, default=lists.RESULTS, help="folder for torch-VERSION.jsonl")
    arguments = parser.parse_args()
    host = lists.Host(num_gpus=arguments.gpus)
    expected = lists.expected(host)
    committed = lists.committed(host) if arguments.rest else []
    kept = [row for row in committed if row["outcome"] != "not run"]
    found = _run_all(arguments, [row["name"] for row in committed if row not in kept])
    for row in found:
        if row["outcome"] == "failed" and row["name"] not in expected.not_to_pass:
            print(f"=== {row['name']} after {row['seconds']} s", str(row["detail"])[-3000:], sep="\n")
    rows = sorted((*kept, *map(_summary, found)), key=lambda row: str(row["name"]))
    arguments.results.mkdir(parents=True, exist_ok=True)
    results = arguments.results / host.results.name
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wrong = list(complaints(rows, expected))
    print(*wrong, results, dict(Counter(row["outcome"] for row in rows)), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
