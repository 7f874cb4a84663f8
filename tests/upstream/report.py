"""Runs all of upstream's tests, writes results/torch-VERSION.jsonl, and compares with the lists.

    python tests/upstream/report.py

Exit code 1 if a listed test does not pass, or one that is not listed does.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter

import lists
import torch
from tqdm import tqdm


def _run_all() -> list[dict[str, object]]:
    command = [sys.executable, str(lists.HERE / "run.py"), "--all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        return [json.loads(line) for line in tqdm(process.stdout, unit=" tests")]


def _summary(row: dict[str, object]) -> dict[str, object]:
    """Without times and addresses, which differ from run to run. Of a traceback, the rank's own last exception."""
    lines = str(row["detail"]).strip().splitlines() if row["outcome"] != "passed" else []
    exceptions = [line for line in lines if re.match(r"\w*(Error|Exception): ", line)]
    why = "".join((exceptions or lines)[-1:])
    return {"name": row["name"], "outcome": row["outcome"], "why": re.sub(r"0x[0-9a-f]+", "0x…", why)[:160]}


def main() -> int:
    rows = [_summary(row) for row in _run_all()]
    minor = ".".join(torch.__version__.split(".")[:2])
    results = lists.HERE / "results" / f"torch-{minor}.jsonl"
    results.parent.mkdir(exist_ok=True)
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    passed = {row["name"] for row in rows if row["outcome"] == "passed"}
    listed, excused = set(lists.must_pass()), set(lists.cannot_pass())
    failed = {row["name"] for row in rows if row["outcome"] == "failed"}
    complaints = [
        *(f"{name}: listed, but does not pass" for name in sorted(listed - passed)),
        *(f"{name}: passes, but is in neither must_pass.txt nor gated.txt" for name in sorted(passed - listed)),
        *(f"{name}: fails, but cannot_pass.txt gives no reason" for name in sorted(failed - excused - listed)),
    ]
    print(*complaints, dict(Counter(row["outcome"] for row in rows)), results, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
