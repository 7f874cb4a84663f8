"""The doctor's live view of kernels, from what the processes show: which rank's GPU is late.

tests/python/gpu/test_cuda_live.py has the same on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import pytest

from torch_axon.doctor import live, processes
from torch_axon.doctor.jobs import findings, jobs_of, progress_of
from torch_axon.doctor.processes import Membership, Process, Progress

_CALL = "all_reduce (float32, 8 elements, SUM)"


def _member(rank: int, progress: Sequence[Progress], read_at: float = 1.0) -> Membership:
    return Membership("0", 5, rank, 3, 3, "", None, None, [], 0, 0, None, None, None, list(progress), read_at, 0)


def _three(*counts: int, is_old: bool = True) -> list[Membership]:
    """Each GPU knows the calls of the others, and of its own the number only."""
    return [
        _member(own, [Progress(rank, n, "" if rank == own else _CALL, is_old) for rank, n in enumerate(counts)])
        for own in range(3)
    ]


def _findings(members: Sequence[Membership]) -> list[str]:
    (job,) = jobs_of([Process(100 + each.rank, "python train.py", "", [each]) for each in members])
    return findings(job, 5.0, lambda process: f"train.py:{process.pid}")


def test_the_latest_of_what_gpus_know_counts() -> None:
    early, late = Progress(1, 2**32 - 1, _CALL), Progress(1, 0, "")
    assert progress_of([_member(0, [early]), _member(1, [late])]) == {1: late}
    assert progress_of([_member(1, [replace(early, call="")]), _member(0, [early])]) == {1: early}
    assert progress_of([_member(0, [early], read_at=0.0)]) == {}


@pytest.mark.parametrize("first", [58, 2**32 - 1, 0])
def test_the_rank_whose_kernels_are_late_is_named(first: int) -> None:
    before = (first - 1) % 2**32
    assert _findings(_three(first, before, first)) == [
        f"group '0': rank 1: the GPU has not entered {_CALL}, which the kernels of ranks 0, 2 entered over 1 s ago; "
        "rank 1 is at train.py:101"
    ]


def test_a_rank_that_only_its_own_gpu_speaks_of_is_not_named() -> None:
    """Rank 0 waits in collective 58, and has finished 57."""
    only_rank_0 = _member(0, [Progress(0, 57, "", True), Progress(1, 58, _CALL, True), Progress(2, 57, _CALL, True)])
    (finding,) = (each for each in _findings([only_rank_0]) if "not entered" in each)
    assert "rank 2: the GPU has not entered" in finding


def test_kernels_that_go_on_or_are_level_are_not_named() -> None:
    assert _findings(_three(58, 57, 58, is_old=False)) == []
    assert _findings(_three(58, 58, 58)) == []


def _view_of(readings: Sequence[Sequence[Membership]]) -> tuple[list[Process], mock.Mock]:
    """Returns what the view makes of successive readings, and the mock of its pauses."""
    found = [[Process(100 + each.rank, "a", "", [each]) for each in members] for members in readings]
    later = iter(found[1:])
    with (
        mock.patch.object(processes, "ask_for_progress"),
        mock.patch("torch_axon.doctor.live.time.sleep") as pause,
        mock.patch("torch_axon.doctor.live.time.monotonic", return_value=0.5),
    ):
        return live._with_progress(found[0], lambda: next(later)), pause


def test_only_kernels_that_do_not_go_on_are_old() -> None:
    late = _three(58, 57, 58, is_old=False)
    stays, _ = _view_of([late, late, late])
    assert all(each.is_old for process in stays for group in process.groups for each in group.progress)
    goes_on, _ = _view_of([late, late, _three(59, 58, 59, is_old=False)])
    assert not any(each.is_old for process in goes_on for group in process.groups for each in group.progress)


def test_jobs_without_kernels_are_read_once() -> None:
    found, pause = _view_of([[_member(rank, []) for rank in range(3)]])
    assert len(found) == 3
    assert not pause.called


def test_only_the_job_of_the_process_is_asked() -> None:
    own = [Process(100 + each.rank, "a", "", [each]) for each in _three(58, 58, 58)]
    other = [Process(200 + each.rank, "b", "", [replace(each, identity=6)]) for each in _three(7, 7, 7)]
    with (
        mock.patch.object(processes, "check", return_value=0),
        mock.patch.object(processes, "find", return_value=own + other),
        mock.patch.object(processes, "read_all", return_value=own) as read_all,
        mock.patch.object(processes, "ask_for_progress") as ask,
        mock.patch.object(live, "find_tool", return_value=None),
    ):
        (job,) = live.look(101).jobs
    assert [process.pid for process in job.processes] == [100, 101, 102]
    assert sorted(call.args[0] for call in ask.call_args_list) == [100, 101, 102]
    assert all(call.args[0] == [100, 101, 102] for call in read_all.call_args_list)
