"""Tests the timelines of kernels on several ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "cuda"))
import timeline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ranks = [
        [(7, 1_000_000, 2_000, "send_kernel"), (7, 5_000_000, 3_000, "multiply"), (7, 6_000_000, 1_000, "send_kernel")],
        [(9, 1_001_000, 2_000, "wait_kernel"), (9, 9_000_000, 2_000, "send_kernel")],
    ]
    for rank, kernels in enumerate(ranks):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(kernels))
    return tmp_path


def test_kernels_of_all_ranks_are_read_in_order(folder: Path) -> None:
    kernels = timeline.read(folder)
    assert [(kernel.rank, kernel.begin) for kernel in kernels] == [
        (0, 1000),
        (1, 1001),
        (0, 5000),
        (0, 6000),
        (1, 9000),
    ]
    assert [kernel.kind for kernel in kernels[:3]] == ["copies and sends", "starts and waits", "product"]
    assert kernels[2].end == 5003


def test_a_picture_begins_before_a_kernel_of_the_first_rank(folder: Path) -> None:
    kernels = timeline.read(folder)
    assert timeline.window_of(kernels, "send", 0, 100) == (5995, 6095)
    assert timeline.window_of(kernels, "send", 1, 100) == (995, 1095)


def test_a_picture_is_written(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    timeline.plot(timeline.read(folder), 990, 1090, "kernels", picture)
    assert picture.stat().st_size > 1000
