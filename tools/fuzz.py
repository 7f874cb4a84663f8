"""Runs every fuzz target over its corpus and its earlier discoveries, and records the coverage.

    python tools/fuzz.py BUILD [--runs 1000000] [--targets message,peer_address] [--json FILE]

Ends at the first finding and leaves its input in BUILD/findings. It belongs in tests/fuzz/corpus, with the fix.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

CORPUS = pathlib.Path(__file__).parents[1] / "tests" / "fuzz" / "corpus"
LONGEST_INPUT = 512


def fuzz(binary: pathlib.Path, runs: int) -> "dict[str, object]":
    """Returns one target's line of the record; exits at a finding."""
    name = binary.name.removesuffix("_fuzz")
    grown = binary.parent / "grown" / name  # the fuzzer adds inputs here that reach new code
    findings = binary.parents[2] / "findings"
    for folder in (grown, findings):
        folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    process = subprocess.run(
        [
            str(binary),
            f"-runs={runs}",
            f"-max_len={LONGEST_INPUT}",
            f"-artifact_prefix={findings}/{name}-",
            "-print_final_stats=1",
            str(grown),
            str(CORPUS / name),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    if process.returncode != 0:
        sys.exit(f"{process.stderr[-4000:]}\n{name}: found something; the input is in {findings}")
    executed = re.search(r"number_of_executed_units: (\d+)", process.stderr)
    covered = re.findall(r"cov: (\d+)", process.stderr)
    assert executed
    return {
        "target": name,
        "executions": int(executed.group(1)),
        "seconds": round(time.monotonic() - began, 1),
        "edges": int(covered[-1]) if covered else 0,
        "findings": 0,
    }


def commit() -> str:
    return subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=CORPUS, text=True).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs the fuzz targets of a build with AXON_FUZZ.")
    parser.add_argument("build", type=pathlib.Path, help="the build's folder")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs per target")
    parser.add_argument("--targets", default="", help="several separated by commas; all of them by default")
    parser.add_argument("--json", type=pathlib.Path, help="file to append one line per target to")
    arguments = parser.parse_args()
    binaries = sorted((arguments.build / "tests" / "fuzz").resolve().glob("*_fuzz"))
    wanted = [f"{name}_fuzz" for name in arguments.targets.split(",") if name]
    missing = set(wanted) - {binary.name for binary in binaries}
    if missing or not binaries:
        sys.exit(f"no {', '.join(missing) or 'fuzz targets'} in {arguments.build}: cmake --preset fuzz, and build it")
    for binary in binaries:
        if wanted and binary.name not in wanted:
            continue
        line = {**fuzz(binary, arguments.runs), "commit": commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
        print(json.dumps(line), flush=True)
        if arguments.json:
            with arguments.json.open("a") as record:
                record.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
