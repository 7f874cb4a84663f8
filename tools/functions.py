"""Finds the functions of a source file and their lengths in lines, for check_sizes.py. C++ must be clang-formatted."""

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
NOT_A_BODY = re.compile(r"=\s*$|\b(?:class|struct|union|enum|namespace)\b[^()]*(?:\([^()]*\)[^()]*\w\s*)?$")
NAME = re.compile(r"(operator\W+?|[~\w:]+)\s*\(")


class Scope(Enum):
    BODY = auto()
    VALUE = auto()  # `member_{1}`: its statement continues
    OTHER = auto()


class Function(NamedTuple):
    name: str
    line: int
    num_lines: int


def cpp_functions(text: str) -> Iterator[Function]:
    """Yields outermost functions only: a lambda counts with the function that contains it."""
    text = HIDDEN.sub(lambda hidden: re.sub(r"[^\n]", " ", hidden.group()), text)
    statement = 0  # where the current statement starts
    scopes: list[Scope] = []
    for brace in re.finditer(r"[{};]", text):
        head = text[statement : brace.start()]
        if brace.group() == "{":
            scopes.append(scope_of(head, in_body=Scope.BODY in scopes))
            if scopes[-1] is Scope.BODY:
                name = found.group(1) if (found := NAME.search(head)) else "?"
                first_line = text.count("\n", 0, brace.start() - len(head.lstrip())) + 1
        closed = scopes.pop() if brace.group() == "}" else None
        if closed is Scope.BODY:
            yield Function(name, first_line, text.count("\n", 0, brace.end()) + 2 - first_line)
        if Scope.VALUE not in (closed, *scopes):
            statement = brace.end()


def scope_of(head: str, in_body: bool) -> Scope:
    """Returns what a brace opens, from the text between the last statement and the brace."""
    if re.search(r"\w$", head):
        return Scope.VALUE
    is_body = BODY.search(head) and not NOT_A_BODY.search(head) and not in_body
    return Scope.BODY if is_body else Scope.OTHER


def python_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function(node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)
