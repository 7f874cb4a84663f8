"""Refuses names that two files define: types of csrc/, and modules that tests import.

    python tools/check_names.py [ROOT]

Two types of one qualified name, linked into one library, are undefined behaviour. Of two modules of one name outside
packages, one pytest process imports only the first. Prints each name with the places that define it, and exits 1 if
there is one.

For types it reads what stands at the left margin of a namespace, where the formatter puts all declarations. Types
within types have names of their own.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HEADERS = {".hpp", ".cuh"}
MODULES = ("tests", "tools", "benchmarks", "examples")
IMPORTED = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
OPENED = re.compile(r"^(?:inline )?namespace ([\w:]*) ?\{")
CLOSED = re.compile(r"^\}  // namespace")
DEFINED = re.compile(
    r"^(?:class|struct|union|enum class|enum)(?: (?:alignas|__align__)\([^)]*\))?(?: \[\[\w+\]\])? (\w+)\b(?!::)[^;]*$"
    r"|^(?:class|struct|union|enum class|enum)(?: alignas\([^)]*\))? (\w+)\b.*\{.*\};"
    r"|^using (\w+) ="
)


def types_of(text: str) -> Iterator[tuple[int, str]]:
    """The line and the qualified name of every type that a header defines in a namespace."""
    namespaces: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if opened := OPENED.match(line):
            namespaces.append(opened[1])
        elif CLOSED.match(line):
            namespaces = namespaces[:-1]
        elif found := DEFINED.match(line):
            yield number, "::".join([*filter(None, namespaces), next(filter(None, found.groups()))])


def duplicates(csrc: Path) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in HEADERS):
        for number, name in types_of(path.read_text()):
            places[name].append(f"{path}:{number}")
    for name, found in sorted(places.items()):
        if len({place.rpartition(":")[0] for place in found}) > 1:
            yield f"{name} is defined in {' and '.join(found)}: give one of them another name or namespace"


def shadowed_modules(root: Path) -> Iterator[str]:
    """The modules outside packages that tests import by a name that another such file has, too."""
    files = sorted(path for folder in MODULES for path in (root / folder).rglob("*.py"))
    places: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        if not (path.parent / "__init__.py").exists():
            places[path.stem].append(path)
    tests = [path for path in files if path.is_relative_to(root / "tests")]
    imported = {name for path in tests for name in IMPORTED.findall(path.read_text())}
    for name in sorted(imported & places.keys()):
        if len(places[name]) > 1:
            yield f"module {name} is {' and '.join(map(str, places[name]))}, and tests import it: rename one of them"


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = [*duplicates(root / "csrc"), *shadowed_modules(root)]
    print("\n".join(found) if found else "names: every type and every module is defined once")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
