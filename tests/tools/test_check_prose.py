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
        ("a.md", "An envelope.\n", 1),
        ("a.hpp", "int a;\nRowRange behind(int64_t row);\n", 2),
        ("a.cu", "bool has_come = true;\n", 1),
        ("a.hpp", "struct Announcement final;\n", 1),
        ("a.cpp", "constexpr int kLastWords = 500;\n", 1),
        ("a.cpp", "TEST(Ring, wakes_nobody) {\n", 1),
        ("a.py", "import os\n\ndef _whoever_waits() -> None: ...\n", 3),
        ("peer_card_fuzz.cpp", "", 1),
        ("SegmentBoard.md", "", 1),
    ],
)
def test_planted_phrase_is_found(tmp_path: Path, name: str, text: str, line: int) -> None:
    found = hits(tmp_path, name, text)
    assert found
    assert found[0].startswith(f"{line}: '")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.hpp", "// Returns whether there is room, for users who wait.\nint num_waiting = 0;\n"),
        ("a.cpp", '#include "engine/whoever.hpp"\n'),
        ("a.py", "later = invoke('nobody')\n"),
        ("a.cpp", 'const auto folder = keyboard(kBoarding, become, "behind");\n'),
        ("a.md", "Use `behind` here.\n\n```\nwhoever waits\n```\n\n    nobody --waits\n"),
        ("a.md", "A host behind a firewall.\n"),
    ],
)
def test_code_and_plain_prose_pass(tmp_path: Path, name: str, text: str) -> None:
    assert not hits(tmp_path, name, text)


# A sentence with one word too many, on two lines.
FIRST = " ".join(["word"] * 20)
REST = " ".join(["word"] * (check_prose.MAX_WORDS - 19))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.hpp", f"int a;\n// Short. {FIRST}\n// {REST}.\n", 2),
        ("a.cpp", f"int a;  // {FIRST}\n        // {REST}\n", 1),
        ("a.cu", f"// Steps:\n//   1. First;\n//   2. {FIRST}\n//      {REST}.\n", 3),
        ("a.hpp", f"// @param a Short.\n// @param b {FIRST}\n// {REST}\n", 2),
        ("a.py", f"# Short.\n#\n# {FIRST}\n# {REST}.\n", 3),
        ("a.py", f'def f(a):\n    """Short.\n\n    Args:\n        a: {FIRST}\n            {REST}\n    """\n', 5),
        ("a.py", f'class A:\n    a: int\n    """{FIRST}\n    {REST}"""\n', 3),
        ("a.md", f"# Title\n\nOne, e.g. two. {FIRST}\n{REST}.\n", 3),
        ("a.md", f"- item\n- {FIRST}\n  {REST}\n", 2),
        ("a.md", f"{FIRST} i.e.\n3.5 {REST}\n", 1),
        ("a.md", f"{FIRST} {REST.removeprefix('word ')}\n16. More.\n", 1),  # a number that ends a sentence
        ("Makefile", f"all:  # {FIRST} {REST}\n", 1),
    ],
)
def test_planted_long_sentence_is_found(tmp_path: Path, name: str, text: str, line: int) -> None:
    found = hits(tmp_path, name, text)
    assert [problem.partition(":")[0] for problem in found] == [str(line)]
    assert f"at most {check_prose.MAX_WORDS}" in found[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", f"{FIRST}.\n{REST}.\n"),
        ("a.md", f"{FIRST}\n\n{REST}\n"),
        ("a.md", f"- {FIRST}\n- {REST}\n"),
        ("a.md", f"1. {FIRST}\n2. {REST}\n"),
        ("a.md", f"# {FIRST} {REST}\n| {FIRST} | {REST} |\n\n    {FIRST} {REST}\n"),
        ("a.md", f"```\n{FIRST} {REST}\n```\n"),
        ("a.md", f"{FIRST}: `{REST}`, `a b` and `c`, see [a page](https://host/a.b_c) – 3.5.\n"),
        ("a.hpp", f"int a;  // {FIRST}\nint b;  // {REST}\n"),
        ("a.hpp", f"//   {FIRST}\n//   {REST}\n"),
        ("a.cpp", f'fail("{FIRST} // {REST}");\n'),
        ("a.py", f'"""Summary.\n\nArgs:\n    a: {FIRST}\n    b: {REST}\n"""\ntext = "{FIRST} {REST}"\n'),
    ],
)
def test_short_sentences_and_what_is_no_sentence_pass(tmp_path: Path, name: str, text: str) -> None:
    assert not hits(tmp_path, name, text)


def test_files_that_name_what_was_replaced_are_exempt() -> None:
    assert not list(check_prose.tracked(["CHANGELOG.md", "docs/adr"]))
