"""Parses upstream's sources: which of its tests make a group, and which decorators each has.

    decorators_by_test()["RpcTest.test_deadlock"]       # {"dist_init"}
    names(on_gpus=True)                                 # of tests that make a group: those for ranks with a GPU each

This reads all of torch.testing._internal and imports none of it, so that it finds what a newer torch adds anywhere. A
test makes a group if its body does so, or if the body calls a function that does, in its file or another
(initialize_pg). A test also makes one if its class derives from a class of common_distributed.py, whose ranks may begin
with a group. Tests of distributed_test.py all get a group from their runner, and appear here by their own names alone.
For FSDP, DTensor, ShardedTensor, the multi-threaded and the fake group, the wheel has only the tests' base classes.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAKES_A_GROUP = "init_process_group"
_RANKS, _BY_RUNNER = "common_distributed", "_DistTestBase"


def _mentioned(node: ast.AST) -> set[str]:
    """Returns the names in a node: identifiers and attributes."""
    return {getattr(each, "attr", "") or getattr(each, "id", "") for each in ast.walk(node)} - {""}


@dataclass(frozen=True)
class _File:
    name: str
    tree: ast.Module

    @functools.cached_property
    def mentions(self) -> dict[str, set[str]]:
        """Returns each function of a file, nested ones included."""
        found: dict[str, set[str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, set()).update(_mentioned(node))
        return found

    @functools.cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    def reaches(self, name: str, makers: set[str]) -> bool:
        """Returns whether this file's function of that name makes a group, or calls one that does, directly or not."""
        seen, ahead = set(), [name]
        while ahead:
            name = ahead.pop()
            if name in makers:
                return True
            if name not in seen:
                seen.add(name)
                ahead += self.mentions.get(name, ())
        return False


def _functions_of(node: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (each for each in node.body if isinstance(each, ast.FunctionDef))


def _files() -> list[_File]:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    texts = {path: path.read_text() for path in Path(spec.origin).parent.glob("testing/_internal/**/*.py")}
    return [_File(path.stem, ast.parse(text)) for path, text in sorted(texts.items()) if "distributed" in text]


def _makers(files: list[_File]) -> set[str]:
    """Returns the functions of any file that make a group themselves."""
    shared = [each for file in files for each in _functions_of(file.tree)]
    return {_MAKES_A_GROUP} | {each.name for each in shared if _MAKES_A_GROUP in _mentioned(each)}


def _with_ranks(files: list[_File]) -> set[str]:
    """Returns the classes of common_distributed.py, and all that derive from them."""
    bases = {node.name: set().union(*map(_mentioned, node.bases)) for file in files for node in file.classes}
    found = {node.name for file in files if file.name == _RANKS for node in file.classes}
    while derived := {name for name, above in bases.items() if above & found} - found:
        found |= derived
    return found


@functools.cache
def decorators_by_test() -> dict[str, set[str]]:
    """Returns the decorators as ast.unparse writes them, by Class.test, or by the test's name alone."""
    files = _files()
    makers, with_ranks, found = _makers(files), _with_ranks(files), {}
    for file in files:
        for node in file.classes:
            for each in _functions_of(node):
                by_runner = node.name == _BY_RUNNER
                has_one = by_runner or node.name in with_ranks or file.reaches(each.name, makers)
                if each.name.startswith("test_") and has_one:
                    name = each.name if by_runner else f"{node.name}.{each.name}"
                    found[name] = {ast.unparse(decorator) for decorator in each.decorator_list}
    return found


def names(on_gpus: bool) -> list[str]:
    """On CPUs, this includes tests that require GPUs, which are skipped.

    On GPUs, these are all tests of distributed_test.py, and those of other files that require GPUs.
    """
    return [
        name
        for name, decorators in decorators_by_test().items()
        if not on_gpus or "." not in name or any(each.startswith("skip_if_lt_x_gpu(") for each in decorators)
    ]
