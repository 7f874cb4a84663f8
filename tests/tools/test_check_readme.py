"""Tests what tools/check_readme.py accepts as a front page."""

from __future__ import annotations

from pathlib import Path

import check_readme
import pytest

PERFORMANCE = "| all_reduce | 3.87 (46.1 ×) |\n| is killed | 12 | 24 |\n"
README = """\
    make wheel && pip install dist/torch_axon-*.whl
    make demo     # trains
    make test

## Five numbers

| all_reduce | 3.87 µs; Gloo takes 46.1 × as long |
| a rank is killed | known after 12 ms |

![a chart](docs/chart.png)

## Limits

Timeouts are 30 ms late.
"""


def test_front_page_passes() -> None:
    assert list(check_readme.problems(README, PERFORMANCE)) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Timeouts", "word " * 600, "words, at most 600 allowed"),
        ("Timeouts", "![another](docs/chart.png)", "2 charts instead of one"),
        ("make demo", "make tests", "the command 'make demo' is missing"),
        ("    make test\n", "make test\n", "the command 'make test' is missing"),
        ("3.87 µs", "3.7 µs", "the figure 3.7 is not in docs/performance.md"),
        ("12 ms", "87 ms", "the figure 87 is not in docs/performance.md"),
        ("Five numbers", "Numbers", "no figures in a section '## Five numbers'"),
    ],
)
def test_planted_violation_is_found(old: str, new: str, problem: str) -> None:
    found = list(check_readme.problems(README.replace(old, new), PERFORMANCE))
    assert len(found) == 1
    assert problem in found[0]


def test_ours_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["check_readme.py", str(Path(__file__).parents[2])])
    assert check_readme.main() == 0
