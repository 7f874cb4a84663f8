"""Measures the arithmetic of reductions on one core, next to STREAM's copy and addition, for every type and reduction.

    python benchmarks/arithmetic.py BUILD [--sizes 262144,22369600] [--all-kernels] [--json FILE]

BUILD contains benchmarks/arithmetic_bandwidth. GB/s are of the bytes that are read and written, by the thread's own
clock. Sizes are of each operand: one fits in the second-level cache, the other is 64 MiB in all, beyond a core's
caches. The kernels are the processor's fastest; with `--all-kernels` they are those of each instruction set.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from torch_axon.bench.record import append_lines, describe_machine


@dataclass(frozen=True)
class Line:
    """One type at a size; GB/s."""

    kernels: str
    dtype: str
    num_bytes: int
    copy: float
    add: float
    reductions: dict[str, float]
    machine: dict[str, object]

    def __str__(self) -> str:
        speeds = "  ".join(f"{name} {speed:.1f}" for name, speed in self.reductions.items())
        stream = f"copy {self.copy:5.1f}  add {self.add:5.1f}"
        return f"{self.kernels:6} {self.num_bytes:9} B  {stream}  {self.dtype:10} {speeds}"


def parse(text: Iterable[str], machine: dict[str, object]) -> Iterator[Line]:
    for line in text:
        yield Line(**json.loads(line), machine=machine)


def commit_of(build: Path) -> str | None:
    """Returns the facts about a build from its sources, which may differ from those of the package in use."""
    command = ["git", "-C", str(build), "describe", "--always", "--dirty", "--tags"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description="Times reductions beside STREAM's copy and addition.")
    parser.add_argument("build", type=Path, help="the folder of a release build")
    parser.add_argument("--sizes", default="", help="of each operand, in bytes")
    parser.add_argument(
        "--all-kernels", action="store_true", help="measure every instruction set, not only the fastest"
    )
    parser.add_argument("--json", type=Path, help="file to append one line per type and size to")
    arguments = parser.parse_args()
    binary = arguments.build / "benchmarks" / "arithmetic_bandwidth"
    if not binary.exists():
        parser.error(f"argument build: there is no {binary}")
    command = " ".join(["arithmetic.py", "BUILD", *sys.argv[2:]])
    machine = asdict(describe_machine(commit=commit_of(arguments.build))) | {"command": command}
    sizes = arguments.sizes.split(",") if arguments.sizes else []
    fastest = None
    with subprocess.Popen([str(binary), *sizes], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in parse(process.stdout, machine):
            fastest = fastest or line.kernels
            if not arguments.all_kernels and line.kernels != fastest:
                continue
            print(line, flush=True)
            if arguments.json:
                append_lines(arguments.json, [line])
    if process.returncode != 0:
        sys.exit(f"{binary} ended with {process.returncode}")


if __name__ == "__main__":
    main()
