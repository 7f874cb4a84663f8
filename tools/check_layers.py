"""The include rules of csrc/: a file includes files of its own folder and of the folders that its layer is built on.

`LAYERS` is the whole rule. Foreign headers have one more: only the folders in `FOREIGN` include them. `--diagram`
prints the layers as docs/architecture.md shows them, which must be up to date.

Prints every breach as file:line and exits 1 if there is one.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Each layer, and the layers that it is built on directly. It may include what those are built on, too.
LAYERS: dict[str, list[str]] = {
    "base": [],
    "memory": ["base"],
    "codec": ["base"],
    "transport": ["memory", "codec"],
    "messaging": ["transport"],
    "collectives": ["messaging"],
    "engine": ["collectives"],
    "cuda": ["base"],
    "kernels": ["cuda"],
    "ipc": ["kernels", "memory"],
    "gpu_comm": ["ipc", "engine"],
    "python": ["memory"],
    "c10d": ["gpu_comm", "python"],
    "fused/matmul": ["cuda"],
    "fused": ["c10d", "fused/matmul"],
    "rpc/core": ["engine"],
    "rpc/python": ["rpc/core", "ipc", "python"],
    "axon": ["rpc/core"],
    "bindings": ["fused", "rpc/python"],
}

# Foreign headers, and the layers whose files may include them.
FOREIGN = [
    (re.compile(r"(torch|c10|c10d|ATen|pybind11)/|Python\.h$"), ("python", "c10d", "fused", "rpc/python", "bindings")),
    (re.compile(r"uc[pst]/"), ("transport/ucx",)),
]

DEVICE_CODE = (".cu", ".cuh")
SUFFIXES = {".hpp", ".cpp", *DEVICE_CODE}
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")
DIAGRAM_PAGE = Path("docs/architecture.md")


def layer_of(file: str) -> str | None:
    """Returns the layer of a file whose path is relative to csrc/: the deepest folder that is a layer."""
    folders = [folder.as_posix() for folder in Path(file).parents]
    return next((folder for folder in folders if folder in LAYERS), None)


@cache
def built_on(layer: str) -> frozenset[str]:
    """Returns `layer` and all layers that it is built on."""
    return frozenset({layer}).union(*(built_on(below) for below in LAYERS[layer]))


def may_include(file: str, target: str) -> bool:
    """Returns whether `file` may include `target`, both relative to csrc/."""
    if target.endswith(".cuh") and not file.endswith(DEVICE_CODE):
        return False
    layer, target_layer = layer_of(file), layer_of(target)
    return layer is not None and target_layer is not None and target_layer in built_on(layer)


def check_line(file: str, line: str) -> str | None:
    """Returns what is wrong with a line of `file`, or None."""
    if GETENV.search(line.split("//")[0]) and not file.startswith("base/config"):
        return "only base/config calls getenv"
    include = INCLUDE.match(line)
    if include is None:
        return None
    quote, target = include.groups()
    for pattern, folders in FOREIGN:
        if pattern.match(target) and not file.startswith(tuple(f"{folder}/" for folder in folders)):
            return f"only {', '.join(folders)} may include <{target}>"
    if quote == '"' and not may_include(file, target):
        return f'{layer_of(file) or file} may not include "{target}"'
    return None


def breaches(csrc: Path) -> Iterator[str]:
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in SUFFIXES):
        file = path.relative_to(csrc).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if problem := check_line(file, line):
                yield f"{path}:{number}: {problem}"


def diagram() -> str:
    """Returns the layers as text, the highest first: each with an arrow to those that it is built on directly."""
    width = max(map(len, LAYERS))
    lines = [f"{layer:{width}} → {', '.join(belows)}" if belows else layer for layer, belows in LAYERS.items()]
    return "\n".join(["```text", *reversed(lines), "```"])


def main() -> int:
    if sys.argv[1:] == ["--diagram"]:
        print(diagram())
        return 0
    found = list(breaches(Path("csrc")))
    if diagram() not in DIAGRAM_PAGE.read_text():
        found.append(f"{DIAGRAM_PAGE}: its picture is not what `tools/check_layers.py --diagram` prints")
    print("\n".join(found) if found else "layers: every include points down")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
