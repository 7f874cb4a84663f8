"""Counts the instructions of an 8-byte all_reduce between two ranks, from call to return, by where they are.

    python tools/count_instructions.py BUILD [--json benchmarks/results/instructions.jsonl]

Needs valgrind, and a release build of benchmarks/cpp/all_reduce_path.cpp. Counts, unlike times, repeat to a thousandth
however busy the machine is, so that a change that costs shows: it is told against the last line of the file.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable

NUM_CALLS = 1020
NUM_WARM = 20  # as in all_reduce_path.cpp: these are not counted


def run_callgrind(binary: pathlib.Path, profile: pathlib.Path) -> None:
    options = ["--toggle-collect=counted_call", "--compress-strings=no", "--compress-pos=no"]
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", *options, str(binary), str(NUM_CALLS)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "UCX_MEM_EVENTS": "n"},  # UCX would patch code that valgrind runs
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(done.args)} ended with {done.returncode}:\n{done.stderr}")


def place_of(library: str, file: str) -> str:
    folder = re.search(r"/csrc/(\w+)/", file)
    if folder:
        return f"axon {folder[1]}"
    return "UCX" if re.match(r"libuc[pst]\b", os.path.basename(library)) else "libraries"


def instructions_by_place(profile: Iterable[str]) -> "Counter[str]":
    """Of callgrind's file: costs of lines, each under the object, file and function that were named last."""
    found: Counter[str] = Counter()
    library = file = function_file = ""
    is_call = False
    for line in profile:
        name, equals, value = line.strip().partition("=")
        if equals and name == "ob":
            library = value
        elif equals and name in ("fl", "fi", "fe"):
            file = value
        elif equals and name == "fn":  # what is inlined into it counts there
            function_file = file
        elif equals and name == "calls":
            is_call = True
        elif re.fullmatch(r"[+-]?\d+ \d+|\* \d+", line.strip()):
            if not is_call:  # else what the called function takes, which is counted there
                found[place_of(library, function_file)] += int(line.split()[1])
            is_call = False
    return found


def previous(record: "pathlib.Path | None") -> "dict[str, int]":
    if record is None or not record.exists():
        return {}
    last: dict[str, dict[str, int]] = json.loads(record.read_text().splitlines()[-1])
    return last["instructions"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the instructions of an 8-byte all_reduce between two ranks.")
    parser.add_argument("build", type=pathlib.Path, help="the folder of a release build")
    parser.add_argument("--json", type=pathlib.Path, help="file to append the counts to, and to compare them with")
    arguments = parser.parse_args()
    binary = arguments.build / "benchmarks" / "all_reduce_path"
    if shutil.which("valgrind") is None or not binary.exists():
        sys.exit(f"needs valgrind (Debian: valgrind) and {binary}")
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "profile"
        run_callgrind(binary, profile)
        with profile.open() as lines:
            totals = instructions_by_place(lines)
    counts = {place: round(total / (NUM_CALLS - NUM_WARM)) for place, total in sorted(totals.items())}
    counts["all"] = round(totals.total() / (NUM_CALLS - NUM_WARM))
    before = previous(arguments.json)
    for place, count in counts.items():
        change = f"  ({count - before[place]:+})" if place in before else ""
        print(f"{place:20}{count:6}{change}")
    if arguments.json:
        commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True).strip()
        compiler = subprocess.check_output([os.environ.get("CXX", "g++"), "--version"], text=True).splitlines()[0]
        line = {"instructions": counts, "compiler": compiler, "commit": commit, "date": time.strftime("%Y-%m-%d")}
        with arguments.json.open("a") as record:
            record.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
