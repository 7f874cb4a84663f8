from pathlib import Path

import check_prose
import pytest


def hits(folder: Path, name: str, text: str) -> list[str]:
    path = folder / name
    path.write_text(text)
    return [problem.removeprefix(f"{path}:") for problem in check_prose.problems(path)]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.hpp", "int a;\n// Whoever waits drives the engine.\n", 2),
        ("a.cpp", "// Whether there is room.\n", 1),
        ("a.cpp", 'fail("a message that is no answer");\n', 1),
        ("a.cu", "x = 1;  // of the lines behind it\n", 1),
        ("a.py", '"""Waits for what has come.\n\nNobody else does.\n"""\n', 1),
        ("a.py", "# One a rank, and 3 bytes a message.\n", 1),
        ("a.md", "Some text.\n\nThe engine is deaf.\n", 3),
        ("Makefile", "# What a loan costs.\n", 1),
        ("a.cpp", "// As a PeerCard tells.\n", 1),
    ],
)
def test_planted_phrase_is_found(tmp_path: Path, name: str, text: str, line: int) -> None:
    found = hits(tmp_path, name, text)
    assert found
    assert found[0].startswith(f"{line}: '")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.hpp", "// Returns whether there is room, for users who wait.\nint behind = nobody();\n"),
        ("a.cpp", '#include "engine/whoever.hpp"\n'),
        ("a.py", "behind = whoever('nobody')\n"),
        ("a.md", "Use `behind` here.\n\n```\nwhoever waits\n```\n\n    nobody --waits\n"),
        ("a.md", "A host behind a firewall.\n"),
    ],
)
def test_code_and_plain_prose_pass(tmp_path: Path, name: str, text: str) -> None:
    assert not hits(tmp_path, name, text)


def test_files_that_name_what_was_replaced_are_exempt() -> None:
    assert not list(check_prose.tracked(["CHANGELOG.md", "docs/adr"]))
