"""The include rules of csrc/: a folder includes only folders to its left, and outsiders have one door each.

    base → cuda → memory → transport → collectives → comm → stream → c10d
                                                     comm → runtime → runtime_python
                                                            runtime → axon, the C++ library
                                                     python → c10d, runtime_python

Prints every breach as file:line and exits 1 if there is one.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LAYERS = ["base", "cuda", "memory", "transport", "collectives", "comm", "stream", "c10d"]
RUNTIME = ["runtime", "runtime_python", "axon"]
SUFFIXES = {".hpp", ".cpp", ".cuh", ".cu"}
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")

# Foreign headers, and the folders whose files may include them.
DOORS = [
    (re.compile(r"(torch|c10|c10d|ATen|pybind11)/|Python\.h$"), ("python/", "c10d/", "runtime_python/")),
    (re.compile(r"uc[pst]/"), ("transport/ucx/",)),
]


def may_include(file: str, target: str) -> bool:
    """Whether `file` may include `target`, both relative to csrc/."""
    folder, target_folder = file.split("/")[0], target.split("/")[0]
    if target.endswith(".cuh") and not file.endswith((".cu", ".cuh")):
        return False
    if file.endswith(".cuh"):
        return target_folder == "device" or target == "cuda/device_types.hpp"
    if folder == "device":  # what launches kernels stands beside the host's CUDA code
        return target_folder in ("device", "base", "cuda")
    if folder == "stream" and target_folder == "device":  # what it launches
        return True
    if file == "c10d/module.cpp" and target == "runtime_python/bindings.hpp":  # one extension holds both doors
        return True
    if target_folder == "python":  # what the doors to it share
        return folder in ("python", "c10d", "runtime_python")
    if file.startswith("runtime_python/cuda/") and target_folder == "stream":  # what it lends by
        return True
    if target_folder in RUNTIME:  # doors beside c10d: they do not know each other
        return folder in RUNTIME and target_folder in ("runtime", folder)
    if folder in RUNTIME:
        folder = "comm"
    if target_folder not in LAYERS:
        return False
    return LAYERS.index(target_folder) <= LAYERS.index(folder)


def check_line(file: str, line: str) -> str | None:
    """What is wrong with a line of `file`, if anything."""
    if GETENV.search(line.split("//")[0]) and not file.startswith("base/config"):
        return "only base/config calls getenv"
    include = INCLUDE.match(line)
    if include is None:
        return None
    quote, target = include.groups()
    for pattern, doors in DOORS:
        if pattern.match(target) and not file.startswith(doors):
            return f"only {' and '.join(doors)} includes <{target}>"
    if quote == '"' and not may_include(file, target):
        return f'{file.split("/")[0]} may not include "{target}"'
    return None


def breaches(csrc: Path) -> Iterator[str]:
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in SUFFIXES):
        file = path.relative_to(csrc).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if problem := check_line(file, line):
                yield f"{path}:{number}: {problem}"


def main() -> int:
    found = list(breaches(Path(sys.argv[1] if len(sys.argv) > 1 else "csrc")))
    print("\n".join(found) if found else "layers: every include points left")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
