"""Processes end promptly, with the right code and without noise, whatever was in flight."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from support.processes import leftovers, run_ranks

PROMPT_S = 8.0  # two interpreters that leave torch, on a loaded machine
CRASH = re.compile(
    r"(?i)segmentation|abort|core dumped|terminate called|fatal|signal \d|UCX +(ERROR|FATAL)|leak|backtrace"
)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = leftovers()
    yield
    assert leftovers() <= before


@pytest.mark.parametrize(
    "program",
    [
        "falls_off_the_end",
        "destroys_and_ends",
        "ends_with_work_and_groups_in_globals",
        "ends_while_a_thread_waits",
        "ends_amid_completion_hooks",
        "has_futures_that_never_come",
        "has_children",
    ],
)
def test_a_process_ends_in_any_order(program: str, tmp_path: Path) -> None:
    for ended in run_ranks(program, 2, tmp_path / "store"):
        assert ended.code == 0, ended.errors
        assert ended.seconds < PROMPT_S
        assert not CRASH.search(ended.errors), ended.errors


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")
def test_a_profiled_process_ends(tmp_path: Path) -> None:
    """CUPTI tells torch's profiler about the GPU's contexts: no context may change after the profiler has gone."""
    for attempt in range(3):
        for ended in run_ranks("was_profiled", 2, tmp_path / f"store{attempt}"):
            assert ended.code == 0, ended.errors


def test_sys_exit_with_work_in_flight_keeps_its_code(tmp_path: Path) -> None:
    for ended in run_ranks("exits_with_work_in_flight", 2, tmp_path / "store"):
        assert ended.code == 3, ended.errors
        assert ended.seconds < PROMPT_S
        assert not CRASH.search(ended.errors), ended.errors


def test_an_exception_with_work_in_flight_shows_only_itself(tmp_path: Path) -> None:
    for ended in run_ranks("raises_with_work_in_flight", 2, tmp_path / "store"):
        assert ended.code == 1
        assert ended.seconds < PROMPT_S
        assert ended.errors.count("Traceback") == 1
        assert ended.errors.rstrip().endswith("LookupError: the program's own error")


def test_atexit_handlers_can_still_communicate(tmp_path: Path) -> None:
    for ended in run_ranks("communicates_in_atexit", 2, tmp_path / "store"):
        assert ended.code == 0, ended.errors
        assert "sum 2" in ended.output


def _interrupt_first(processes: Sequence[subprocess.Popen[str]]) -> None:
    time.sleep(0.5)
    processes[0].send_signal(signal.SIGINT)
    processes[0].wait(PROMPT_S)
    for process in processes[1:]:
        process.kill()


@pytest.mark.parametrize(
    "program",
    [
        "waits_for_ever",
        "waits_in_a_collective_for_ever",
        "waits_in_a_monitored_barrier_for_ever",
        "waits_for_a_completion_hook_for_ever",
    ],
)
def test_control_c_ends_a_wait(program: str, tmp_path: Path) -> None:
    interrupted, _ = run_ranks(program, 2, tmp_path / "store", when_ready=_interrupt_first)
    assert interrupted.code in (1, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" in interrupted.errors
    assert not CRASH.search(interrupted.errors), interrupted.errors


def _interrupt_all(processes: Sequence[subprocess.Popen[str]]) -> None:
    time.sleep(0.5)
    for process in processes:
        process.send_signal(signal.SIGINT)


def test_a_caught_control_c_leaves_other_groups_usable(tmp_path: Path) -> None:
    for ended in run_ranks("catches_the_interrupt_and_goes_on", 2, tmp_path / "store", when_ready=_interrupt_all):
        assert ended.code == 0, ended.errors
        assert "sum 2" in ended.output


def test_what_a_peer_sent_before_it_ended_is_received(tmp_path: Path) -> None:
    receiver, sender = run_ranks("ends_right_after_its_message", 2, tmp_path / "store")
    assert (receiver.code, sender.code) == (0, 0), receiver.errors
    assert receiver.output.strip().endswith("[1, 2, 3]")


def test_a_peer_that_exits_is_named(tmp_path: Path) -> None:
    survivor, _ = run_ranks("outlives_its_peer", 2, tmp_path / "store")
    assert survivor.code == 0, survivor.errors
    assert "rank 1" in survivor.output
    assert survivor.seconds < PROMPT_S


def test_a_killed_process_leaves_no_process(tmp_path: Path) -> None:
    children: list[int] = []

    def kill_all(processes: Sequence[subprocess.Popen[str]]) -> None:
        for process in processes:
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as listing:
                children.extend(int(pid) for pid in listing.read().split())
            process.kill()

    run_ranks("waits_for_ever", 2, tmp_path / "store", when_ready=kill_all)
    time.sleep(0.5)
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]
