"""Reports the sizes of files, functions and classes, the ratio of tests to code, and the frequency of shared ownership.

Fails for a file of more than 500 lines, a function of more than 70, or a class of more than 30 methods; the rest is a
report. A class may have more methods if its docstring, or the comment directly above it, says why, in this form:

    // More than 30 methods: c10d declares most of them.

The methods of a class are the functions that its body declares, public and private, each overload and each property.
Not counted are constructors, destructors, what is `= default` or `= delete`, operators (Python's `__names__`), friends,
and the methods of its bases and of classes nested in it.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from classes import Class, cpp_classes, python_classes
from functions import Function, cpp_functions, python_functions

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_METHODS = 30
REASON = re.compile(rf"\bMore than {MAX_METHODS} methods: \w.*\.", re.DOTALL)
NUM_LONGEST = 5

CODE = ["csrc", "torch_axon", "tools", "setup.py"]
TESTS = ["tests"]
OTHER = ["benchmarks", "examples"]
SUFFIXES = {".hpp", ".cpp", ".cuh", ".cu", ".py", ".pyi"}


class Source(NamedTuple):
    path: Path
    text: str

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_python(self) -> bool:
        return self.path.suffix.startswith(".py")

    def functions(self) -> list[Function]:
        return list((python_functions if self.is_python else cpp_functions)(self.text))

    def classes(self) -> list[Class]:
        return list((python_classes if self.is_python else cpp_classes)(self.text))


def sources(root: Path, names: list[str]) -> list[Source]:
    def paths() -> Iterator[Path]:
        for name in names:
            top = root / name
            yield from [top] if top.is_file() else sorted(top.rglob("*"))

    return [Source(path.relative_to(root), path.read_text()) for path in paths() if path.suffix in SUFFIXES]


def total(files: list[Source]) -> int:
    return sum(file.num_lines for file in files)


def report(files: list[Source], code: list[Source], tests: list[Source]) -> str:
    sizes = sorted(file.num_lines for file in files)
    longest = sorted(((f.num_lines, file.path, f) for file in files for f in file.functions()), reverse=True)
    largest = sorted(((c.num_methods, file.path, c) for file in files for c in file.classes()), reverse=True)
    cpp = [file for file in code if file.path.suffix in (".cpp", ".hpp")]
    num_shared = sum(len(re.findall(r"\bshared_ptr\b", file.text)) for file in cpp)
    lines = [
        f"files: {len(sizes)}, lines median {median(sizes):.0f}, p90 {quantiles(sizes, n=10)[-1]:.0f}, max {sizes[-1]}",
        f"tests to code: {total(tests)} / {total(code)} lines = {total(tests) / max(total(code), 1):.2f}",
        f"shared_ptr per 1,000 lines of C++: {1000 * num_shared / max(total(cpp), 1):.1f}",
        "longest functions:",
        *(f"  {num_lines:3} {path}:{f.line} {f.name}" for num_lines, path, f in longest[:NUM_LONGEST]),
        "classes with the most methods:",
        *(f"  {num_methods:3} {path}:{c.line} {c.name}" for num_methods, path, c in largest[:NUM_LONGEST]),
    ]
    return "\n".join(lines)


def too_big(files: list[Source]) -> Iterator[str]:
    for file in files:
        if file.num_lines > MAX_FILE_LINES:
            yield f"{file.path}: {file.num_lines} lines, at most {MAX_FILE_LINES} allowed"
        for function in file.functions():
            if function.num_lines > MAX_FUNCTION_LINES:
                place = f"{file.path}:{function.line}: {function.name}"
                yield f"{place} has {function.num_lines} lines, at most {MAX_FUNCTION_LINES} allowed"
        for each in file.classes():
            if each.num_methods > MAX_METHODS and not REASON.search(each.comment):
                place = f"{file.path}:{each.line}: {each.name}"
                yield (
                    f"{place} has {each.num_methods} methods, at most {MAX_METHODS} allowed: move some into a class of "
                    f"their own, or write directly above it: More than {MAX_METHODS} methods: <reason>."
                )


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    code, tests = sources(root, CODE), sources(root, TESTS)
    files = code + tests + sources(root, OTHER)
    print(report(files, code, tests))
    found = list(too_big(files))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
