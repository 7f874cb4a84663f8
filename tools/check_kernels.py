"""Checks that every kernel waits for its stream first, since it may be launched before its predecessors have ended.

usage: python tools/check_kernels.py

Kernels of csrc/axon are launched by programs, and never so early.

docs/adr/0022-launch-kernels-before-their-predecessors-end.md
"""

import re
import sys
from pathlib import Path

KERNEL = re.compile(r"^__global__[^{;]*\{(?P<body>.*?)\n\}", re.DOTALL | re.MULTILINE)


def waits_first(body: str) -> bool:
    for statement in body.split(";"):
        if "await_stream()" in statement:
            return True
        if "__shared__" not in statement:
            return False
    return False


def main() -> int:
    kernels = [
        (path, match)
        for path in sorted(Path("csrc").rglob("*.cu*"))
        if path.parts[1] != "axon"
        for match in KERNEL.finditer(path.read_text())
    ]
    late = [f"{path}: {match[0].splitlines()[0]}" for path, match in kernels if not waits_first(match["body"])]
    for kernel in late:
        print(f"{kernel} …: does not begin with await_stream()", file=sys.stderr)
    if not kernels:
        print("csrc: no kernel found; run in the project's root", file=sys.stderr)
    return 1 if late or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
