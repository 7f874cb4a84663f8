"""Refuses a type that two headers of csrc/ define under one qualified name: linked into one library, that is undefined.

    python tools/check_names.py [CSRC]

Prints each name with the places that define it, and exits 1 if there is one. It reads what stands at the left margin of
a namespace, where the formatter puts all declarations; types within types have names of their own.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HEADERS = {".hpp", ".cuh"}
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


def main() -> int:
    found = list(duplicates(Path(sys.argv[1] if len(sys.argv) > 1 else "csrc")))
    print("\n".join(found) if found else "names: every type is defined once")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
