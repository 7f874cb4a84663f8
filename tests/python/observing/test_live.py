"""The doctor's live view: which rank is in which call, read from processes that run, hang, or are stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from support.devices import on
from support.pool import Pools, RankPool
from support.processes import state_of
from torch_axon.doctor import live, processes, stacks
from torch_axon.doctor.__main__ import main
from torch_axon.doctor.jobs import Job, findings, jobs_of, ranks_text
from torch_axon.doctor.live import View, look
from torch_axon.doctor.processes import Call, Membership, Process

_TIMEOUT_S = 30.0


def _await_file(file: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def _comes_true(condition: Callable[[View], bool], pid: int) -> View:
    """Looks at the job of a process until the condition holds."""
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        view = look(pid)
        if condition(view):
            return view
        time.sleep(0.02)
    raise AssertionError(json.dumps(view.as_dict(), indent=1))


def _findings(view: View) -> str:
    return "\n".join(finding for job in view.jobs for finding in view.findings(job))


def _group_of(view: View, pid: int, size: int) -> Membership:
    (process,) = [each for job in view.jobs for each in job.processes if each.pid == pid]
    (group,) = [each for each in process.groups if each.size == size]
    return group


@contextmanager
def _running(ranks: RankPool, function: Callable[[Path], object], go: Path) -> Iterator[None]:
    """Runs a function on all ranks, which ends after `go` has been made, at the end of the block."""
    ranks.start(function, go)
    try:
        yield
    finally:
        go.touch()
        ranks.finish()


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """Gives the tests below ranks of their own. In those of the session, other tests may have left groups."""
    with Pools() as pools:
        yield pools


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


@pytest.fixture
def without_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "find_tool", lambda: None)


def _all_reduce_but_last(go: Path) -> None:
    if dist.get_rank() == dist.get_world_size() - 1:
        _await_file(go)
    dist.all_reduce(torch.ones(4))


@pytest.mark.usefixtures("without_lines")
def test_the_rank_that_has_not_entered_a_collective_is_named(three_ranks: RankPool, go: Path) -> None:
    first = three_ranks.pids[0]
    with _running(three_ranks, _all_reduce_but_last, go):
        view = _comes_true(lambda view: "has not entered" in _findings(view), first)
        group = _group_of(view, first, 3)
        assert group.latest is not None
        assert group.latest.state == "running"
        assert group.latest.waiter == first
        assert group.latest.text == f"all_reduce #{group.latest.sequence} (float32[4], SUM)"
        assert f"rank 2 has not entered {group.latest.text}, which ranks 0, 1 entered" in _findings(view)
        assert view.notes == [stacks.INSTALL]
    ended = _comes_true(lambda view: _group_of(view, first, 3).latest is not None, first)
    assert [_group_of(ended, pid, 3).active for pid in three_ranks.pids] == [[], [], []]
    assert _group_of(ended, first, 3).latest == replace(group.latest, state="finished", waiter=mock.ANY)
    assert _findings(ended) == ""


@pytest.mark.usefixtures("without_lines")
def test_stopped_processes_are_read_and_named(three_ranks: RankPool, go: Path) -> None:
    pid = three_ranks.pids[1]
    with _running(three_ranks, _all_reduce_but_last, go):
        _comes_true(lambda view: _group_of(view, pid, 3).active != [], pid)
        os.kill(pid, signal.SIGSTOP)
        try:
            while state_of(pid) != "T":
                time.sleep(0.001)
            view = look(pid)
            assert len(_group_of(view, pid, 3).active) == 1
            assert f"rank 1 (process {pid}) is stopped: kill -CONT {pid} continues it" in _findings(view)
        finally:
            os.kill(pid, signal.SIGCONT)


def _use_groups(go: Path) -> None:
    pair = dist.new_group([0, 1])
    works = []
    if dist.get_rank() == 0:
        works = [dist.all_reduce(torch.ones(2), group=pair, async_op=True), dist.barrier(group=pair, async_op=True)]
        buffer = torch.empty(7)
        works.append(dist.irecv(buffer, 2, tag=3))
    _await_file(go)
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(2), group=pair)
        dist.barrier(group=pair)
    if dist.get_rank() == 2:
        dist.send(torch.ones(7), 0, tag=3)
    for work in works:
        work.wait()
    dist.barrier()
    if dist.get_rank() != 2:
        dist.destroy_process_group(pair)


@pytest.mark.usefixtures("without_lines")
def test_calls_of_several_groups_and_messages_show(three_ranks: RankPool, go: Path) -> None:
    first, second, third = three_ranks.pids
    with _running(three_ranks, _use_groups, go):
        texts = ("in no send for it", "rank 1 has not entered all_reduce #1 (float32[2], SUM), which rank 0 entered")
        view = _comes_true(lambda view: all(text in _findings(view) for text in texts), first)
        pair = _group_of(view, first, 2)
        assert [call.text.split(" ")[0] for call in pair.active] == ["barrier", "all_reduce"]
        assert pair.identity == _group_of(view, second, 2).identity
        assert pair.identity != _group_of(view, first, 3).identity
        (receive,) = _group_of(view, first, 3).running
        assert receive.text == "receive from rank 2 (float32[7], tag 3)"
        assert f"rank 0 is in {receive.text} since" in _findings(view)
        (job,) = view.jobs
        assert [process.pid for process in job.processes] == [first, second, third]
    sizes = [3, 3, 3]
    _comes_true(
        lambda view: [group.size for process in view.jobs[0].processes for group in process.groups] == sizes, first
    )


def _fork(go: Path) -> int:
    """Returns the id of a child that lives until `go` is there."""
    child = os.fork()
    if child == 0:
        _await_file(go)
        os._exit(0)
    return child


def _reap(children: list[int]) -> None:
    os.waitpid(children[dist.get_rank()], 0)


@pytest.mark.usefixtures("without_lines")
def test_forked_children_are_not_taken_for_ranks(two_ranks: RankPool, go: Path) -> None:
    children = two_ranks.run(_fork, go)
    try:
        seen = [process.pid for process in look(two_ranks.pids[0]).jobs[0].processes]
        assert seen == two_ranks.pids
        with pytest.raises(ValueError, match=f"process {children[0]} .* runs no engine .* forked children have none"):
            look(children[0])
    finally:
        go.touch()
        two_ranks.run(_reap, children)


def _await_failure() -> str:
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("without_lines")
def test_a_rank_that_died_and_the_failure_of_its_group_show(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(3)
    first, _, third = ranks.pids
    os.kill(third, signal.SIGKILL)
    ranks.run(_await_failure, dying=[2])
    view = look(first)
    (job,) = view.jobs
    assert (job.num_unseen, job.num_elsewhere, len(job.processes)) == (1, 0, 2)
    assert "rank 2 is gone" in _group_of(view, first, 3).failure
    assert "rank 2 cannot be seen: ended" in _findings(view)
    assert "it has failed on rank" in _findings(view)
    with pytest.raises(ValueError, match=f"no process has the PID {third}|process {third} .* runs no engine"):
        look(third)


def test_lines_are_those_of_the_program(three_ranks: RankPool, go: Path) -> None:
    first, _, third = three_ranks.pids
    if (tool := stacks.find_tool()) is None:
        pytest.skip("needs py-spy")
    if failure := stacks.stacks_of([first], tool)[first].failure:
        pytest.skip(failure)
    with _running(three_ranks, _all_reduce_but_last, go):
        view = _comes_true(lambda view: "has not entered" in _findings(view), first)
        (job,) = view.jobs
        lines = {process.pid: view.line_of(process) for process in job.processes}
        assert lines[first].startswith(f"{__file__}:")
        assert lines[first].endswith(", in _all_reduce_but_last")
        assert lines[third].endswith(", in _await_file")
        assert f"rank 2 is at {lines[third]}" in _findings(view)


@pytest.mark.usefixtures("without_lines")
def test_the_command_prints_tables_and_json(
    three_ranks: RankPool, go: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = three_ranks.pids[0]
    with _running(three_ranks, _all_reduce_but_last, go):
        _comes_true(lambda view: "has not entered" in _findings(view), first)
        assert main(["--attach", str(first)]) == 0
        table = capsys.readouterr().out
        assert main(["--ps", "--json"]) == 0
        jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert "of 3 ranks" in table
    rows = [line.split() for line in table.splitlines()]
    assert [row[:2] for row in rows if "running" in row] == [["0", str(first)], ["1", str(three_ranks.pids[1])]]
    assert [row[:2] for row in rows if "idle" in row] == [["2", str(three_ranks.pids[2])]]
    assert "→ group" in table
    assert stacks.INSTALL in table
    (job,) = [job for job in jobs if first in [process["pid"] for process in job["processes"]]]
    assert [process["rank"] for process in job["processes"]] == [0, 1, 2]
    assert job["processes"][0]["groups"][0]["latest"]["state"] == "running"
    assert job["processes"][0]["groups"][0]["latest"]["age_s"] >= 0
    assert any("has not entered" in finding for finding in job["findings"])


def test_processes_that_cannot_be_read_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert main(["--attach", str(other.pid)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"axon: argument --attach: process {other.pid} (")
        assert "runs no engine of torch_axon" in error
        denied = PermissionError(13, "Permission denied")
        with mock.patch.object(processes, "read", side_effect=denied), mock.patch("os.geteuid", return_value=54321):
            assert main(["--attach", str(other.pid)]) == 2
        error = capsys.readouterr().err
        assert "belongs to user" in error
        assert "this is the user with id 54321: run the doctor as that user, or as root" in error
    finally:
        other.communicate()
    assert main(["--attach", str(other.pid)]) == 2
    assert f"no process has the PID {other.pid}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--attach", "train.py"])
    assert "argument --attach: invalid int value: 'train.py'" in capsys.readouterr().err


def test_a_tool_that_fails_is_named(tmp_path: Path) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\necho 'Error: Permission Denied: try running again with sudo' >&2\nexit 1\n")
    tool.chmod(0o755)
    failure = stacks.stacks_of([12], str(tool))[12].failure
    assert failure.startswith("py-spy cannot read process 12 (Permission Denied: try running again with sudo): run ")
    assert "SYS_PTRACE" in failure


def _call(sequence: int = 0, called_at: float = 0.0, **changes: object) -> Call:
    call = Call(f"all_reduce #{sequence}", "all_reduce", "running", sequence, -1, False, 0, called_at, "")
    return replace(call, **changes)  # type: ignore[arg-type]


def _member(rank: int, latest: Call | None, **changes: object) -> Membership:
    member = Membership("0", 5, rank, 8, 4, "", latest, None, [], 0, 0, None, None, None, [], 0.0, 0)
    return replace(member, **changes)  # type: ignore[arg-type]


def _job(*members: Membership) -> Job:
    (job,) = jobs_of([Process(100 + each.rank, "python train.py", "", [each]) for each in members])
    return job


def test_ranks_of_other_hosts_are_counted() -> None:
    job = _job(*(_member(rank, _call(17)) for rank in range(3)))
    assert (job.num_elsewhere, job.num_unseen) == (4, 1)
    found = findings(job, 12.4)
    assert any("all ranks that can be seen here have entered all_reduce #17, the first 12.4 s ago" in f for f in found)
    assert any(f.startswith("1 of its ranks on this host cannot be seen") for f in found)


def test_ranks_follow_each_other_in_a_healthy_job() -> None:
    job = _job(_member(0, _call(18, 12.0)), *(_member(rank, _call(17, 11.9)) for rank in (1, 2, 3)))
    assert findings(job, 12.1) == []


def test_different_collectives_of_one_number_are_named() -> None:
    broadcast = _call(17, 5.0, text="broadcast #17", operation="broadcast")
    job = _job(_member(0, broadcast), *(_member(rank, _call(17, 5.0)) for rank in (1, 2, 3)))
    assert findings(job, 5.1) == [
        "group '0': different collectives: rank 0 called broadcast #17, ranks 1 to 3 called all_reduce #17"
    ]


def test_the_gpu_that_was_given_fewer_collectives_is_named() -> None:
    ahead = [_member(rank, None, num_launched=7, launched=_call(7, 2.0, state="launched")) for rank in (0, 1, 2)]
    late = _member(3, None, num_launched=6, launched=_call(6, 2.0, state="launched"))
    assert findings(_job(*ahead, late), 6.0) == [
        "group '0': rank 3 has not launched all_reduce #7, which ranks 0 to 2 launched 4.0 s ago"
    ]


def test_groups_without_a_common_process_are_separate_jobs() -> None:
    of_world = [Process(pid, "a", "", [_member(pid, None, size=3)]) for pid in (0, 1, 2)]
    other = Process(7, "b", "", [_member(0, None, identity=9, size=2), _member(0, None, identity=11, size=1)])
    alone = Process(8, "c", "", [])
    jobs = jobs_of([*of_world, other, alone])
    assert [[process.pid for process in job.processes] for job in jobs] == [[0, 1, 2], [7], [8]]
    assert [job.group and job.group.size for job in jobs] == [3, 2, None]


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([1, 0], "ranks 0, 1"), ([0, 1, 2, 5, 7, 8], "ranks 0 to 2, 5, 7, 8")]
)
def test_ranks_are_listed_shortly(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def _launch_on_gpu(go: Path) -> None:
    data = torch.ones(1000, device="cuda")
    for _ in range(3):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(data[:8])
    graph.replay()
    torch.cuda.synchronize()
    _await_file(go)


@on("cuda")
@pytest.mark.usefixtures("without_lines")
def test_what_gpus_were_given_shows(two_ranks: RankPool, go: Path) -> None:
    first = two_ranks.pids[0]
    with _running(two_ranks, _launch_on_gpu, go):
        view = _comes_true(lambda view: _group_of(view, first, 2).captured is not None, first)
        group = _group_of(view, first, 2)
        assert group.num_launched >= 3
        assert group.launched is not None
        assert "(float32[1000], SUM)" in group.launched.text
        assert group.captured is not None
        assert "(float32[8], SUM)" in group.captured.text
        assert _findings(view) == ""
