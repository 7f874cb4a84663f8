"""Processes that are forked while a group lives, as a DataLoader's workers are."""

from __future__ import annotations

from pathlib import Path

from processes import leftovers, run_ranks


def test_workers_load_batches_beside_operations(tmp_path: Path) -> None:
    before = leftovers()
    for ended in run_ranks("loads_with_workers", 2, tmp_path / "store"):
        assert ended.code == 0, ended.errors
    assert leftovers() <= before


def test_workers_that_communicate_are_told_to_be_spawned(tmp_path: Path) -> None:
    for ended in run_ranks("communicates_in_workers", 2, tmp_path / "store"):
        assert ended.code == 0, ended.errors
        told = ended.output.splitlines()
        for line, call in zip(told, ("all_reduce (float32[1], SUM)", "receive from rank"), strict=True):
            assert call in line
            assert "was forked from one that uses torch_axon" in line
            assert "'spawn' or 'forkserver'" in line
