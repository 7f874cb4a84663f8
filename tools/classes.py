"""Finds the classes of a source file and their numbers of methods, for check_sizes.py. C++ must be clang-formatted."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from functions import Scope, cpp_signs, without_hidden

# Text whose brackets do not enclose a method's parameters. Templates' arguments nest: it is removed repeatedly.
ASIDE = re.compile(
    r"<[^<>]*>|\[\[.*?\]\]|\b(?:alignas|__attribute__|decltype|explicit|requires)\s*\((?:[^()]|\([^()]*\))*\)",
    re.DOTALL,
)
LABEL = re.compile(r"(?:(?:public|protected|private):\s*)*")
CLASS = re.compile(r"(?:template\b.*?\s)?(?:class|struct|union)\b\s*([\w:]*)", re.DOTALL)
METHOD = re.compile(r"[^=(){}[\]]*?(~?\w+)\((?!\*)")
NOT_A_METHOD = re.compile(
    r"(?:friend|using|typedef|static_assert)\b|[^(]*\boperator\b|.*=\s*(?:default|delete)$", re.DOTALL
)


class Class(NamedTuple):
    name: str
    line: int
    num_methods: int
    comment: str  # directly above the class, and its docstring


def cpp_classes(text: str) -> Iterator[Class]:
    """Yields classes at their ends, so nested ones come first."""
    visible, lines = without_hidden(text), text.splitlines()
    scopes: list[Class | None] = []  # those that are open; None for other scopes than classes
    for sign in cpp_signs(visible):
        head = LABEL.sub("", sign.head, count=1)
        plain = without_asides(head)
        if sign.closed:
            if found := scopes.pop():
                yield found
        elif sign.opened is not Scope.VALUE and scopes and (owner := scopes[-1]):
            scopes[-1] = owner._replace(num_methods=owner.num_methods + is_method(plain, owner.name))
        if sign.opened:
            named = None if sign.opened is Scope.VALUE else CLASS.match(plain)
            line = visible.count("\n", 0, sign.start + len(sign.head) - len(head)) + 1
            scopes.append(Class(named[1], line, 0, comment_above(lines, line, "//")) if named else None)


def without_asides(head: str) -> str:
    while head != (head := ASIDE.sub("", head)):
        pass
    return head


def is_method(head: str, class_name: str) -> bool:
    name = METHOD.match(head)
    constructor = class_name.rpartition(":")[2]
    return bool(name and name[1] not in (constructor, f"~{constructor}") and not NOT_A_METHOD.match(head))


def comment_above(lines: list[str], line: int, sign: str) -> str:
    """Returns the text of the comment that ends directly above a line, which counts from 1."""
    first = line - 1
    while first > 0 and lines[first - 1].lstrip().startswith(sign):
        first -= 1
    return " ".join(each.strip().lstrip(sign).strip() for each in lines[first : line - 1])


def python_classes(text: str) -> Iterator[Class]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            names = [each.name for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
            num_methods = sum(not (name.startswith("__") and name.endswith("__")) for name in names)
            first_line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            comment = f"{comment_above(lines, first_line, '#')} {ast.get_docstring(node) or ''}"
            yield Class(node.name, node.lineno, num_methods, comment)
