"""Forked processes: while a group lives, as a DataLoader's workers are, or after the last one."""

from __future__ import annotations

import sys
from pathlib import Path

from support.processes import HERE, leftovers, output_of, run_ranks


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


def test_ranks_are_forked_from_a_process_that_has_destroyed_its_groups(tmp_path: Path) -> None:
    before = leftovers()
    (ended,) = run_ranks("forks_ranks", 1, tmp_path / "store", timeout_s=100)
    assert ended.code == 0, ended.errors
    # Since 2.15, torch's flight recorder remarks that a child has another rank than its parent had.
    assert [line for line in ended.errors.splitlines() if "FlightRecorderHook" not in line] == []
    assert leftovers() <= before


def test_a_process_with_a_group_tells_its_children_to_be_spawned(tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "programs.py"), "forks_beside_a_group", "0", "1", str(tmp_path / "store")]
    told = output_of(program, timeout_s=90)
    assert "was forked from one that uses torch_axon" in told
    assert "while its parent has no process group and no runtime" in told


def test_a_child_that_drops_a_group_leaves_its_parents_messages_alone(tmp_path: Path) -> None:
    for ended in run_ranks("forks_while_a_message_waits", 2, tmp_path / "store", timeout_s=100):
        assert ended.code == 0, ended.errors


def test_runtimes_are_opened_in_children_of_a_process_that_has_closed_its_own() -> None:
    program = [sys.executable, "-W", "ignore", str(HERE / "runtime_servers.py"), "forks_when_closed"]
    assert output_of(program, timeout_s=120) == "ready\n"
