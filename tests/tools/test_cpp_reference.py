"""Tests the C++ reference: how headers are parsed, and that the users' headers document all their declarations."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpp_reference import Entity, installed_headers, markdown, parse

_ROOT = Path(__file__).parents[2]
_HEADER = """\
// A counter.
//
//   Counter counter(3);
#pragma once

namespace axon {

class Later;

/// Counts.
class Counter {
 public:
  explicit Counter(Later& later) noexcept;
  /// Starts.
  /// @param first the first number,
  ///   from 0 on
  explicit Counter(int first) noexcept : first_(first) {
    if (first < 0) std::abort();
  }
  ~Counter();

  /// @return the next number
  template <typename T>
  T next(int step = 1,
         int limit = 9) const noexcept;
  bool at_end() const noexcept { return first_ == 0; }

 private:
  int hidden() const;
  int first_ = 0;  // not shown
};

struct Options {
  int most = 4;  // numbers
};

/// Colours.
enum class Colour : int {
  kRed,  // warm
};

}  // namespace axon
"""


def _members(entity: Entity) -> list[str]:
    return [member.declaration for member in entity.members]


def test_public_entities_are_found() -> None:
    counter, options, colour = parse("counter.hpp", _HEADER).entities
    assert (counter.kind, counter.name) == ("class", "Counter")
    assert _members(counter) == [
        "explicit Counter(int first) noexcept",
        "template <typename T>\nT next(int step = 1, int limit = 9) const noexcept",
        "bool at_end() const noexcept",
    ]
    assert _members(options) == ["int most = 4"]
    assert [(each.declaration, each.comment) for each in colour.members] == [("kRed", ["warm"])]


def test_comments_become_lists_and_code() -> None:
    page = markdown([parse("counter.hpp", _HEADER)])
    assert "```cpp\nCounter counter(3);\n```\n" in page
    assert "**Parameters**\n\n- `first`: the first number, from 0 on\n" in page
    assert "**Returns**\n\n- the next number\n" in page
    assert "hidden" not in page


@pytest.mark.parametrize("name", [name for name in installed_headers() if name.startswith("axon/")])
def test_headers_for_users_document_every_function(name: str) -> None:
    header = parse(name, (_ROOT / "csrc" / name).read_text())
    assert header.comment
    for entity in header.entities:
        assert entity.comment, entity.declaration
        for member in entity.members:
            if "(" in member.declaration and not member.declaration.startswith("void operator()"):
                assert member.comment, f"{entity.name}: {member.declaration}"
