"""Finds the functions of a source file and their lengths in lines, for check_sizes.py. C++ must be clang-formatted.

Splits C++ into statements at braces and semicolons, for classes.py as well.
"""

import ast
import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

# Text that may hide or imitate braces: raw strings first, since they may contain quotes and comment signs.
RAW_STRING = r'R"(?P<fence>\w*)\(.*?\)(?P=fence)"'
COMMENT = r"//[^\n]*|/\*.*?\*/"
LITERAL = r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'"""
DIRECTIVE = r"^[ \t]*#(?:\\\n|[^\n])*"
HIDDEN = re.compile("|".join([RAW_STRING, COMMENT, LITERAL, DIRECTIVE]), re.DOTALL | re.MULTILINE)
# The text from the last statement to a brace that opens a function's body, and text that only looks like it.
BODY = re.compile(r"\(.*[\s)]$", re.DOTALL)
NOT_A_BODY = re.compile(r"\b(?:class|struct|union|enum|namespace)\b[^()]*(?:\([^()]*\)[^()]*\w\s*)?$")
NAME = re.compile(r"(operator\W+?|[~\w:]+)\s*\(")


class Scope(Enum):
    BODY = auto()
    VALUE = auto()  # `member_{1}`, `= {1}` or `f({1})`: its statement continues
    OTHER = auto()


class Function(NamedTuple):
    name: str
    line: int
    num_lines: int


class Sign(NamedTuple):
    """A brace or a semicolon of C++, with the part of its statement that comes before it."""

    head: str
    start: int  # of the head, without leading space
    end: int
    opened: Scope | None
    closed: Scope | None


def cpp_functions(text: str) -> Iterator[Function]:
    """Yields outermost functions only: a lambda counts with the function that contains it."""
    text = without_hidden(text)
    for sign in cpp_signs(text):
        if sign.opened is Scope.BODY:
            name = found.group(1) if (found := NAME.search(sign.head)) else "?"
            first_line = text.count("\n", 0, sign.start) + 1
        if sign.closed is Scope.BODY:
            yield Function(name, first_line, text.count("\n", 0, sign.end) + 2 - first_line)


def without_hidden(text: str) -> str:
    return HIDDEN.sub(lambda hidden: re.sub(r"[^\n]", " ", hidden.group()), text)


def cpp_signs(text: str) -> Iterator[Sign]:
    """Yields the signs of a text without hidden parts."""
    statement = 0  # where the current statement starts
    scopes: list[Scope] = []
    for brace in re.finditer(r"[{};]", text):
        head = text[statement : brace.start()]
        opened = scope_of(head, in_body=Scope.BODY in scopes) if brace.group() == "{" else None
        closed = scopes.pop() if brace.group() == "}" else None
        yield Sign(head.lstrip(), brace.start() - len(head.lstrip()), brace.end(), opened, closed)
        if opened:
            scopes.append(opened)
        if Scope.VALUE not in (closed, *scopes):
            statement = brace.end()


def scope_of(head: str, in_body: bool) -> Scope:
    """Returns what a brace opens, from the text between the last statement and the brace."""
    if re.search(r"[\w>(]$|[=,]\s*$", head):
        return Scope.VALUE
    is_body = BODY.search(head) and not NOT_A_BODY.search(head) and not in_body
    return Scope.BODY if is_body else Scope.OTHER


def python_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function(node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)
