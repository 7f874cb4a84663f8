"""Makes the C++ reference, a page of the site, from the comments of the installed headers.

A hook of mkdocs; `python tools/cpp_reference.py` prints the page. The parser knows our own headers only: they are
clang-formatted, a comment precedes what it describes, and CMake names the installed headers (cmake/package.cmake).

A comment begins with `///`, and may have the lines `@param NAME TEXT`, `@return TEXT` and `@throws TYPE TEXT`, each
possibly continued. A header's first comment describes all of it; lines that are indented by two more are code.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = "reference/cpp.md"

_INTRODUCTION = """\
# C++ reference

This page is generated from the comments of the installed headers. Include `<axon/axon.hpp>`, which has all names in the
namespace `axon`. [Active messages](../runtime.md#c) describes threads and ownership.
"""
_SCOPE = re.compile(
    r"^(?:template <.*> *)?(class|struct|enum class|namespace) ?((?:\[\[nodiscard\]\] )?[\w:]*)[^;()=]*\{$"
)
# Not part of the reference: friends, forward declarations, names that are repeated, destructors and moves.
_HIDDEN = re.compile(
    r"^(?:friend |(?:class|struct) \w+$|using (?:\w+::)+\w+$|~|\w+\((?:\w+&&(?: \w+)?)\)|\w+& operator=)"
)
_CONSTRUCTOR = re.compile(r"^(?:explicit )?[A-Z]\w*\(")  # without a comment: for the library itself
_TAG = re.compile(r"@(param|return|throws)\b *(.*)")
_TITLES = {"param": "Parameters", "return": "Returns", "throws": "Throws"}


@dataclass
class Entity:
    """A class, a function or a field, with its comment and its members."""

    declaration: str
    comment: list[str]
    kind: str = ""  # class, struct or enum class; empty for others
    name: str = ""
    members: list[Entity] = field(default_factory=list)


@dataclass
class Header:
    """An installed header."""

    name: str
    comment: list[str]
    entities: list[Entity]


def installed_headers(root: Path = ROOT) -> list[str]:
    """Returns the names of the installed headers below csrc, as CMake lists them."""
    listed = re.search(r"set\(public_headers\s+(.*?)\)", (root / "cmake/package.cmake").read_text(), re.DOTALL)
    if listed is None:
        raise ValueError("cmake/package.cmake has no list public_headers")
    return listed[1].split()


def parse(name: str, text: str) -> Header:
    """Parses a header.

    Args:
        name: its name, for the page
        text: its contents
    """
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return Header(name, [_uncommented(line) for line in lines[:first]], _Parser(lines[first:]).entities)


def _uncommented(line: str) -> str:
    return re.sub(r"^\s*///?<? ?", "", line)


class _Parser:
    """Collects the public entities of a header from its lines."""

    def __init__(self, lines: list[str]) -> None:
        self.entities: list[Entity] = []
        self._lines = iter(lines)
        self._comment: list[str] = []
        self._scopes: list[tuple[Entity | None, bool]] = []  # None: a namespace; whether members are public
        for line in self._lines:
            self._take(line.rstrip())

    def _take(self, line: str) -> None:
        code = line.strip()
        if not code or code.startswith("#"):
            self._comment = []
            if code.endswith("\\"):
                while next(self._lines, "").endswith("\\"):
                    pass
        elif code.startswith("//"):
            self._comment.append(_uncommented(line))
        elif code in ("public:", "private:", "protected:"):
            self._scopes[-1] = (self._scopes[-1][0], code == "public:")
            self._comment = []
        elif code.startswith("}"):
            if self._scopes:
                self._scopes.pop()
            self._comment = []
        else:
            self._declare(code)
            self._comment = []

    def _declare(self, code: str) -> None:
        while not _ends(code):
            following = next(self._lines, None)
            if following is None:
                return
            code += "\n" + following.rstrip()
        flat = re.sub(r"\s+", " ", code)
        scope = _SCOPE.match(flat)
        if scope is None:
            self._skip_body(code)
            self._add(Entity(_signature(code), self._comment + _trailing(code)))
            return
        kind, name = scope[1], scope[2].replace("[[nodiscard]] ", "")
        if kind == "namespace":
            self._scopes.append((None, True))
            return
        entity = Entity(_signature(code), self._comment, kind, name)
        self._add(entity)
        if kind == "enum class":
            self._enumerators(entity)
        else:
            self._scopes.append((entity, kind == "struct"))

    def _enumerators(self, entity: Entity) -> None:
        for line in self._lines:
            if line.strip().startswith("}"):
                return
            entity.members.append(Entity(line.split("//")[0].strip().rstrip(","), _trailing(line)))

    def _skip_body(self, code: str) -> None:
        depth = code.count("{") - code.count("}")
        while depth > 0:
            line = next(self._lines, None)
            if line is None:
                return
            depth += line.count("{") - line.count("}")

    def _add(self, entity: Entity) -> None:
        is_internal = _CONSTRUCTOR.match(entity.declaration) is not None and not entity.comment
        is_hidden = not entity.kind and (is_internal or _HIDDEN.match(entity.declaration))
        if all(is_public for _, is_public in self._scopes) and not is_hidden:
            owner = next((scope for scope, _ in reversed(self._scopes) if scope is not None), None)
            (self.entities if owner is None else owner.members).append(entity)


def _ends(code: str) -> bool:
    last = code.split("\n")[-1].split("//")[0].rstrip()
    balanced = code.count("(") == code.count(")")
    return balanced and last.endswith((";", "{", "}"))


def _signature(code: str) -> str:
    """Returns a declaration in one line, without body, initialisers of members and trailing comment."""
    code = re.sub(r" *//.*", "", code)
    code = re.sub(r"\s*\n\s*", " ", code)
    code = re.sub(r" : \w+_\(.*", "", code)
    code = re.sub(r" \{(?: .*|\})?$", "", code).rstrip("; ")
    return re.sub(r"^(template <[^>]*>) ", r"\1\n", code)


def _trailing(code: str) -> list[str]:
    return [found.strip() for found in re.findall(r"//[/<]* ?(.*)", code)]


def markdown(headers: list[Header]) -> str:
    """Formats headers as a page of the site."""
    text = "\n".join([_INTRODUCTION, *(line for header in headers for line in _header(header))])
    return re.sub(r"\n+```\n+", "\n```\n\n", text) + "\n"


def _header(header: Header) -> Iterator[str]:
    yield f"## {header.name}\n"
    yield from _text(header.comment)
    for entity in header.entities:
        yield from _entity(entity, level=3)


def _entity(entity: Entity, level: int) -> Iterator[str]:
    if entity.kind:
        yield f"{'#' * level} {entity.kind.split()[0]} {entity.name}\n"
        yield from _text(entity.comment)
    else:
        yield f"```cpp\n{entity.declaration}\n```\n"
        yield from _text(entity.comment)
    if entity.kind == "enum class":
        yield "| value | meaning |\n|-|-|"
        for each in entity.members:
            yield f"| `{each.declaration}` | {' '.join(each.comment)} |"
        yield ""
        return
    for member in entity.members:
        yield from _entity(member, level + 1)


def _text(comment: list[str]) -> Iterator[str]:
    """Formats a comment: paragraphs, code, and lists of parameters, results and exceptions."""
    tags: dict[str, list[str]] = {}
    latest: list[str] | None = None
    is_code = False
    for line in comment:
        tag = _TAG.match(line.strip())
        if tag is not None:
            latest = tags.setdefault(tag[1], [])
            latest.append(tag[2])
        elif latest is not None and line.strip():
            latest[-1] += " " + line.strip()
        else:
            latest = None
            starts_code = line.startswith("  ")
            if starts_code != is_code and (starts_code or line):
                yield "```cpp" if starts_code else "```"
                is_code = starts_code
            yield line[2:] if is_code else line
    if is_code:
        yield "```"
    yield ""
    for tag_name, title in _TITLES.items():
        if tag_name in tags:
            yield f"**{title}**\n"
            yield from (f"- {_named(tag_name, text)}" for text in tags[tag_name])
            yield ""


def _named(tag: str, text: str) -> str:
    if tag == "return":
        return text
    name, _, rest = text.partition(" ")
    return f"`{name}`: {rest}"


def page(root: Path = ROOT) -> str:
    """Returns the page for the headers of a source tree."""
    return markdown([parse(name, (root / "csrc" / name).read_text()) for name in installed_headers(root)])


def on_files(files: Any, config: Any) -> Any:
    """Adds the page to the site."""
    mkdocs_files: Any = importlib.import_module("mkdocs.structure.files")  # only the site's environment has it
    files.append(mkdocs_files.File.generated(config, PAGE, content=page()))
    return files


if __name__ == "__main__":
    sys.stdout.write(page())
