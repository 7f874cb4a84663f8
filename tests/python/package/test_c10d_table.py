"""The tables of docs/c10d.md agree with the header of the installed torch, and with what axon's backend overrides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from support.pages import DOCS

_TORCH_HEADER = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/Backend.hpp"
_AXON_HEADER = DOCS.parent / "csrc/c10d/backend.hpp"
_MINOR = int(torch.__version__.split(".")[1])

# clang-format indents the members of a class by two spaces, and those of a nested class by four.
_VIRTUAL = re.compile(r"^  virtual [^(]*?(\w+)\(", re.MULTILINE)
_MEMBER = re.compile(r"^  \w[^(/;]*?(\w+)\(", re.MULTILINE)
_ROW = re.compile(r"^\| `(\w+)` \|[^|]*\| 2\.(\d+)(?:–2\.(\d+))? \| (overridden|inherited) \|", re.MULTILINE)


class Row(NamedTuple):
    function: str
    minors: range  # of torch 2
    is_overridden: bool


def rows_of(page: str) -> list[Row]:
    return [
        Row(function, range(int(first), int(last or first) + 1), override == "overridden")
        for function, first, last, override in _ROW.findall(page)
    ]


def problems(page: str, minor: int, torch_header: str, axon_header: str) -> Iterator[str]:
    """Yields what a page says wrongly about torch 2.`minor`, or does not say."""
    rows = {row.function: row for row in rows_of(page) if minor in row.minors}
    declared = set(_VIRTUAL.findall(torch_header))
    members = set(_MEMBER.findall(axon_header))
    yield from (f"{function} of torch 2.{minor} is missing" for function in sorted(declared - rows.keys()))
    yield from (f"{function} is not in torch 2.{minor}" for function in sorted(rows.keys() - declared))
    for function in sorted(declared & rows.keys()):
        if rows[function].is_overridden != (function in members):
            yield f"{function} is {'inherited' if rows[function].is_overridden else 'overridden'}"


def test_the_page_agrees_with_the_installed_torch() -> None:
    page = (DOCS / "c10d.md").read_text(encoding="utf-8")
    headers = [header.read_text(encoding="utf-8") for header in (_TORCH_HEADER, _AXON_HEADER)]
    assert list(problems(page, _MINOR, *headers)) == []


def test_each_function_has_one_row_that_can_be_read() -> None:
    page = (DOCS / "c10d.md").read_text(encoding="utf-8")
    functions = [row.function for row in rows_of(page)]
    assert functions == re.findall(r"^\| `(\w+)", page, re.MULTILINE)
    assert len(functions) == len(set(functions))


_SMALL_TORCH = """
class Backend : public torch::CustomClassHolder {
  struct Options {
    virtual c10::intrusive_ptr<Options> clone() const;
  };
  // virtual void removed();
  int getRank() const;
  virtual std::vector<int> returns_many(
      int /* tag */) {}
  virtual void new_in_this_version() {}
  virtual void overridden_now() {}
  virtual void inherited_now() {}
};
"""
_SMALL_AXON = """
class AxonBackend final : public c10d::Backend {
  // inherited_now() is c10d's.
  std::vector<int> returns_many(int tag) override;
  void overridden_now() override { inherited_now(); }
  int state_ = 0;
};
"""
_SMALL_PAGE = """
| `returns_many` | | 2.11–2.15 | overridden | yes |
| `new_in_this_version` | | 2.15 | inherited | default |
| `overridden_now` | from `former` | 2.11–2.15 | inherited | default |
| `inherited_now` | | 2.11–2.15 | overridden | yes |
| `former` | to `overridden_now` | 2.11–2.14 | inherited | default |
"""


def test_every_disagreement_is_found() -> None:
    assert list(problems(_SMALL_PAGE, 14, _SMALL_TORCH, _SMALL_AXON)) == [
        "new_in_this_version of torch 2.14 is missing",
        "former is not in torch 2.14",
        "inherited_now is inherited",
        "overridden_now is overridden",
    ]
