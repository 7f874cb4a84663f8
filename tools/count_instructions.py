"""Counts the instructions of an 8-byte all_reduce between two ranks, from call to return, by place in the code.

    python tools/count_instructions.py BUILD [--path rings|ucx] [--history FILE [--record]]

Needs valgrind, and a release build of benchmarks/cpp/all_reduce_path.cpp. Unlike times, counts repeat to some
thousandths on a busy machine, so that they show the cost of a change. More than 2 % above the last line of the history
with the same path, compiler and vectors is an error, unless it is recorded. (Other compilers generate other
instructions, and on a processor with other vectors the core and libc choose other code.)
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
from typing import Any

NUM_CALLS = 1020
NUM_WARM = 20  # as in all_reduce_path.cpp: these are not counted
NUM_RUNS = 5  # the smallest counts: single runs differ by a hundredth on a busy machine
MOST_PERCENT = 2  # growth that passes
VECTORS = {  # the widest first, by the requirements of csrc/collectives/arithmetic/kernels.cpp
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "f16c"},
    "avx2": {"avx2", "f16c"},
    "sse2": set(),
}


def run_callgrind(binary: pathlib.Path, path: str, profile: pathlib.Path) -> None:
    options = ["--toggle-collect=counted_call", "--compress-strings=no", "--compress-pos=no"]
    command = [str(binary), path, str(NUM_CALLS)]
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", *options, *command],
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
    """Sums callgrind's costs of lines, each under the last object, file and function before it."""
    found: Counter[str] = Counter()
    library = file = function_file = ""
    is_call = False
    for line in profile:
        name, equals, value = line.strip().partition("=")
        if equals and name == "ob":
            library = value
        elif equals and name in ("fl", "fi", "fe"):
            file = value
        elif equals and name == "fn":  # inlined code counts there
            function_file = file
        elif equals and name == "calls":
            is_call = True
        elif re.fullmatch(r"[+-]?\d+ \d+|\* \d+", line.strip()):
            if not is_call:  # otherwise the cost of the called function, which is counted there
                found[place_of(library, function_file)] += int(line.split()[1])
            is_call = False
    return found


def compiler_of(build: pathlib.Path) -> str:
    """Returns the compiler's name for itself, with its version. g++ uses the name that it was called by."""
    cache = (build / "CMakeCache.txt").read_text()
    compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", cache, re.MULTILINE)
    if compiler is None:
        sys.exit(f"{build}/CMakeCache.txt names no CMAKE_CXX_COMPILER")
    title = subprocess.check_output([compiler[1], "--version"], text=True).splitlines()[0]
    return re.sub(r"^\S*[cg]\+\+\S* ", "g++ ", title)


def vectors_of(cpuinfo: str) -> str:
    """Returns the widest vectors of the processor in that /proc/cpuinfo."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    found = set(flags[1].split()) if flags else set()
    return next(name for name, needed in VECTORS.items() if needed <= found)


def last_of(kind: "dict[str, str]", history: Iterable[str]) -> "dict[str, Any] | None":
    """Returns the last line of that path, compiler and vectors. The first lines, of UCX without rings, lack some of
    these.
    """
    lines = [json.loads(line) for line in history]
    return next((line for line in reversed(lines) if kind.items() <= line.items()), None)


def growth_error(counts: "dict[str, int]", before: "dict[str, Any]") -> "str | None":
    """Returns the error if the instructions of a call have grown by more than MOST_PERCENT."""
    last = before["instructions"]["all"]
    if 100 * counts["all"] <= (100 + MOST_PERCENT) * last:
        return None
    return (
        f"{counts['all'] / last - 1:.1%} more instructions than at {before['commit']}, where {MOST_PERCENT} % pass: "
        "make instructions RECORD=1 records them, if that is what they are worth"
    )


def table(counts: "dict[str, int]", before: "dict[str, int]") -> str:
    changes = {place: f"  ({count - before[place]:+})" for place, count in counts.items() if place in before}
    return "\n".join(f"{place:20}{count:6}{changes.get(place, '')}" for place, count in counts.items())


def count(binary: pathlib.Path, path: str) -> "dict[str, int]":
    """Counts the run with the fewest instructions, per call: by place, and in all."""
    return min((count_once(binary, path) for _ in range(NUM_RUNS)), key=lambda counts: counts["all"])


def count_once(binary: pathlib.Path, path: str) -> "dict[str, int]":
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "profile"
        run_callgrind(binary, path, profile)
        with profile.open() as lines:
            totals = instructions_by_place(lines)
    counts = {place: round(total / (NUM_CALLS - NUM_WARM)) for place, total in sorted(totals.items())}
    return {**counts, "all": round(totals.total() / (NUM_CALLS - NUM_WARM))}


def record(history: pathlib.Path, counted: "dict[str, Any]") -> None:
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True).strip()
    with history.open("a") as file:
        file.write(json.dumps({**counted, "commit": commit, "date": time.strftime("%Y-%m-%d")}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the instructions of an 8-byte all_reduce between two ranks.")
    parser.add_argument("build", type=pathlib.Path, help="the folder of a release build")
    parser.add_argument("--path", choices=("rings", "ucx"), default="rings", help="between the two ranks")
    parser.add_argument("--history", type=pathlib.Path, help="earlier counts, to compare with")
    parser.add_argument("--record", action="store_true", help="append these counts to the history")
    arguments = parser.parse_args()
    if arguments.record and arguments.history is None:
        parser.error("argument --record: needs a --history to append to")
    binary = arguments.build / "benchmarks" / "all_reduce_path"
    if shutil.which("valgrind") is None or not binary.exists():
        sys.exit(f"needs valgrind (Debian: valgrind) and {binary}")
    kind = {
        "path": arguments.path,
        "compiler": compiler_of(arguments.build),
        "vectors": vectors_of(pathlib.Path("/proc/cpuinfo").read_text()),
    }
    history = arguments.history.read_text().splitlines() if arguments.history and arguments.history.exists() else []
    before = last_of(kind, history)
    counts = count(binary, arguments.path)
    print(table(counts, before["instructions"] if before else {}))
    print(f"against {before['commit']} of {before['date']}" if before else f"the first of {', '.join(kind.values())}")
    if arguments.record:
        record(arguments.history, {"instructions": counts, **kind})
    elif before and (error := growth_error(counts, before)):
        sys.exit(error)


if __name__ == "__main__":
    main()
