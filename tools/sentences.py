"""Finds the sentences of comments, docstrings and pages, and counts their words, for check_prose.py.

A comment is read as a page is: the end of a paragraph or a list item ends a sentence. Code blocks, tables, headings and
indented text outside of lists have no sentences.
"""

import ast
import io
import re
import tokenize
from bisect import bisect
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

Line = tuple[int, str]  # its number in the file, and its text, indented within the block
Block = list[Line]

CPP = {".hpp", ".cpp", ".cuh", ".cu"}
PYTHON = {".py", ".pyi"}
HASH_COMMENTS = {".cmake", ".sh", ".toml", ".yml"}
TEXT = {".md"}

STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# This sign replaces each character of code, of links' targets and of URLs, so that points in them end no sentence.
MASK = "\ue000"
MASKED = re.compile(r"`[^`]+`|(?<=\])\([^)\s]+\)|https?://[^\s)>]*[^\s)>.,;]")
NAMES = re.compile(rf"{MASK}+(?:(?:,| and| or|, and|, or) {MASK}+)+")
END = re.compile(r"(?<!\.\.)[.!?][)\]\"'”*]*(?=\s|$)")
ABBREVIATIONS = ("e.g.", "i.e.", "cf.", "vs.", "approx.")
ITEM = re.compile(r"(?:[-*]|\d+[.)]|@\w+)\s+")
NO_PROSE = re.compile(r"$|\||#|<|!\[|[-=]{3,}$|clang-format |NOLINT|noqa|type: ignore")
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
ARGUMENT = re.compile(r"\*{0,2}\w[\w.]*(?:, \*{0,2}\w[\w.]*)*: ")


class Sentence(NamedTuple):
    line: int
    text: str
    num_words: int


def comments(found: Iterable[tuple[int, int, str, bool]]) -> Iterator[Block]:
    """Joins comments of adjacent lines and one column. `found` has line, column, text and whether code precedes it."""
    block: Block = []
    end = (0, 0)
    for number, column, text, follows_code in found:
        if block and (follows_code or end != (number - 1, column)):
            yield block
            block = []
        block.append((number, text))
        end = (number, column)
    if block:
        yield block


def split_cpp(line: str) -> tuple[str, str]:
    """Returns the code of a line and its comment, which begins with its slashes; empty where there is none."""
    masked = STRING.sub(lambda literal: '"' + " " * len(literal[1]) + '"', line)
    column = len(masked.partition("//")[0])
    return line[:column], line[column:]


def cpp_blocks(text: str) -> Iterator[Block]:
    def found() -> Iterator[tuple[int, int, str, bool]]:
        for number, line in enumerate(text.splitlines(), start=1):
            code, comment = split_cpp(line)
            if comment:
                yield number, len(code), comment.lstrip("/").removeprefix(" "), bool(code.strip())

    yield from comments(found())


def hash_blocks(text: str) -> Iterator[Block]:
    def found() -> Iterator[tuple[int, int, str, bool]]:
        for number, line in enumerate(text.splitlines(), start=1):
            if comment := re.search(r"(?:^|(?<=\s))#(?!!)", line):
                column = comment.start()
                yield number, column, line[comment.end() :].removeprefix(" "), bool(line[:column].strip())

    yield from comments(found())


def python_blocks(text: str) -> Iterator[Block]:
    yield from comments(
        (token.start[0], token.start[1], token.string[1:].removeprefix(" "), bool(token.line[: token.start[1]].strip()))
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    )
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            first = lines[node.lineno - 1][node.col_offset :]
            rest = [line[node.col_offset :] for line in lines[node.lineno : node.end_lineno]]
            unquoted = [first.lstrip("rR").lstrip('"'), *rest]
            unquoted[-1] = unquoted[-1].rstrip('" ')
            yield list(sections_as_items(enumerate(unquoted, start=node.lineno)))


def sections_as_items(lines: Iterable[Line]) -> Iterator[Line]:
    """Turns the entries of a docstring's sections, such as Args, into list items."""
    in_section = False
    for number, line in lines:
        is_indented = line.startswith("    ")
        if SECTION.match(line):
            in_section = True
            yield number, ""
        elif in_section and is_indented:
            yield number, ("- " if ARGUMENT.match(line[4:]) else "") + line[4:]
        else:
            in_section = in_section and not line.strip()
            yield number, line


def paragraphs(block: Iterable[Line]) -> Iterator[Block]:
    """Yields the paragraphs and the list items of a block that are prose, without the marks of the items."""
    current: Block = []
    in_code = False
    item_indent: int | None = None  # of the list item that the current line may continue
    for number, line in block:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        is_fence = text.startswith("```")
        in_code ^= is_fence
        # As in Markdown, a number that a line happens to begin with is no item in the middle of a paragraph.
        may_be_item = not current or item_indent is not None or not text[:1].isdigit() or text.startswith(("1.", "1)"))
        item = ITEM.match(text) if may_be_item else None
        ends_list = item_indent is not None and bool(text) and indent <= item_indent
        if ends_list:
            item_indent = None
        is_indented = indent >= 2 and item_indent is None and not item
        is_prose = not (in_code or is_fence or is_indented or NO_PROSE.match(text))
        if current and (item or ends_list or not is_prose):
            yield current
            current = []
        if item and is_prose:
            item_indent = -1 if text.startswith("@") else indent  # Doxygen's commands continue without an indent
        if is_prose:
            current.append((number, text[item.end() :] if item else text))
    if current:
        yield current


def sentences(block: Iterable[Line]) -> Iterator[Sentence]:
    for paragraph in paragraphs(block):
        text = " ".join(line for _, line in paragraph)
        masked = MASKED.sub(lambda found: MASK * len(found[0]), text)
        # Where each line begins in the text.
        starts = [0, *accumulate(len(line) + 1 for _, line in paragraph)]
        begin = 0
        for end in ends_of(masked):
            if sentence := text[begin:end].strip():
                number, _ = paragraph[bisect(starts, text.index(sentence, begin)) - 1]
                yield Sentence(number, sentence, num_words(masked[begin:end]))
            begin = end


def ends_of(masked: str) -> Iterator[int]:
    """Yields where the sentences of a paragraph end, the last of them perhaps without a full stop."""
    for end in END.finditer(masked):
        last_word = masked[: end.end()].rsplit(maxsplit=1)[-1]
        if last_word.lstrip("(").lower() not in ABBREVIATIONS:
            yield end.end()
    yield len(masked)


def num_words(masked: str) -> int:
    """Counts words. Code and a list of names in code are one each, and signs alone are none."""
    return sum(bool(re.search(rf"\w|{MASK}", word)) for word in NAMES.sub(MASK, masked).split())


def blocks_of(path: Path) -> Iterator[Block]:
    """Yields a page as one block, and each comment and docstring of code as one."""
    text = path.read_text(errors="replace")
    if path.suffix in CPP:
        yield from cpp_blocks(text)
    elif path.suffix in PYTHON:
        yield from python_blocks(text)
    elif path.suffix in TEXT:
        yield list(enumerate(text.splitlines(), start=1))
    elif has_hash_comments(path):
        yield from hash_blocks(text)


def has_hash_comments(path: Path) -> bool:
    return path.suffix in HASH_COMMENTS or path.name in ("Makefile", "CMakeLists.txt")
