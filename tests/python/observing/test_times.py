"""Durations of calls: torch's completion hooks, durations of works, and its time estimator."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.reference import failure, same_bits

pytestmark = on_cpu_and_gpu


def _here() -> torch.device:
    return torch.get_default_device()


def _hook() -> None:
    group = dist.new_group()
    calls: list[Any] = []
    threads: set[int] = set()

    def note(call: Any) -> None:
        calls.append(call)
        threads.add(threading.get_ident())

    assert not group._has_hooks()
    dist.all_reduce(torch.ones(5), group=group)
    group._register_on_completion_hook(note)
    assert group._has_hooks()
    assert "allowed: one" in failure(lambda: group._register_on_completion_hook(note))
    before = time.monotonic()
    dist.broadcast(torch.ones(5), 0, group=group)
    works = [dist.all_reduce(torch.ones(1 << size), group=group, async_op=True) for size in range(0, 20, 5)]
    dist.all_gather_into_tensor(torch.empty(7 * dist.get_world_size()), torch.ones(7), group=group)
    for work in works:
        work.wait()
    group._wait_for_pending_works()
    after = time.monotonic()
    assert [call.op_type.name for call in calls] == ["BROADCAST", *["ALLREDUCE"] * 4, "_ALLGATHER_BASE"]
    numbers = [call.seq for call in calls]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == group._get_backend(_here())._get_sequence_number_for_group()
    for call in calls:
        assert before <= call.time_started.total_seconds() <= call.time_finished.total_seconds() <= after
        took = call.time_finished - call.time_started
        assert timedelta(0) <= call.active_duration <= took + timedelta(milliseconds=1)
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    dist.destroy_process_group(group)


def test_a_hook_is_called_for_each_call_in_order_when_it_is_over(ranks: RankPool) -> None:
    ranks.run(_hook)


def _delayed_hook() -> None:
    """The other ranks are late, and no call completes before they arrive."""
    group = dist.new_group()
    ended: list[float] = []
    group._register_on_completion_hook(lambda call: ended.append(time.monotonic()))
    dist.all_reduce(torch.ones(5), group=group)
    group._wait_for_pending_works()
    if dist.get_rank() != 0:
        time.sleep(0.5)
    started = time.monotonic()
    work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
    if dist.get_rank() == 0:
        assert len(ended) == 1
    group._wait_for_pending_works()
    if dist.get_rank() == 0:
        assert ended[1] - started > 0.3
    work.wait()
    dist.destroy_process_group(group)


def test_a_hook_waits_for_the_call_to_be_over(ranks: RankPool) -> None:
    ranks.run(_delayed_hook)


def _hook_that_throws() -> None:
    group = dist.new_group()
    calls: list[int] = []

    def note(call: Any) -> None:
        calls.append(call.seq)
        raise ValueError("of the hook's own")

    group._register_on_completion_hook(note)
    for _ in range(3):
        data = torch.ones(5)
        dist.all_reduce(data, group=group)
        same_bits(data, torch.full((5,), float(dist.get_world_size())))
    dist.destroy_process_group(group)  # torch waits for the hooks here
    assert calls == sorted(set(calls))
    assert len(calls) == 3


def test_a_hook_that_throws_disturbs_no_work(ranks: RankPool) -> None:
    ranks.run(_hook_that_throws)


def _hook_that_destroys_its_group() -> None:
    group = dist.new_group()
    told: list[str] = []
    group._register_on_completion_hook(lambda call: told.append(failure(group._wait_for_pending_works)))
    dist.all_reduce(torch.ones(5), group=group)
    group._wait_for_pending_works()
    assert "waits for its own group's calls" in told[0]
    dist.destroy_process_group(group)


def test_a_hook_cannot_wait_for_its_own_group(ranks: RankPool) -> None:
    ranks.run(_hook_that_destroys_its_group)


def _ends_with_hooks_pending() -> None:
    """DDP's reducer destroys the group while it holds Python's lock, which the group's hooks need."""
    group = dist.new_group()
    told: list[int] = []

    def note(call: object) -> None:
        time.sleep(0.01)
        told.append(1)

    group._register_on_completion_hook(note)
    parallel = DistributedDataParallel(torch.nn.Linear(3, 1), process_group=group)
    for _ in range(3):
        parallel(torch.ones(2, 3)).sum().backward()
    dist.distributed_c10d.destroy_process_group(group)
    dist.barrier()
    del group, parallel
    assert told


def test_hooks_may_be_pending_where_a_group_goes(ranks: RankPool) -> None:
    ranks.run(_ends_with_hooks_pending)


def _hook_on_failure() -> list[str]:
    group = dist.new_group(timeout=timedelta(seconds=1))
    ended: list[str] = []
    group._register_on_completion_hook(lambda call: ended.append(call.op_type.name))
    dist.all_reduce(torch.ones(5), group=group)
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
        work.wait() if _here().type == "cuda" else failure(work.wait)
    group._wait_for_pending_works()
    dist.barrier()
    dist.distributed_c10d._abort_process_group(group)
    return ended


def test_a_hook_is_called_for_what_has_failed(two_ranks: RankPool) -> None:
    assert two_ranks.run(_hook_on_failure) == [["ALLREDUCE"] * 2, ["ALLREDUCE"]]


def _durations() -> None:
    group = dist.new_group()
    data = torch.ones(1 << 20)
    work = dist.all_reduce(data, group=group, async_op=True)
    work.wait()
    assert "_enable_collectives_timing()" in failure(work._get_duration)
    group._enable_collectives_timing()
    for _ in range(3):
        work = dist.all_reduce(data, group=group, async_op=True)
        work.wait()
        while not work.is_completed():
            time.sleep(0.001)
        assert 0 < work._get_duration() < 10_000
    dist.destroy_process_group(group)


def test_works_of_a_timed_group_have_durations(ranks: RankPool) -> None:
    ranks.run(_durations)


def _estimated(call: Any, group: Any) -> float:
    with dist.distributed_c10d._time_estimator(group) as estimator:
        call()
    assert estimator.estimated_time is not None
    return float(estimator.estimated_time)


def _estimates() -> None:
    group = dist.new_group()
    group._enable_collectives_timing()

    def all_reduce(count: int, async_op: bool = False) -> Any:
        return dist.all_reduce(torch.ones(count), group=group, async_op=async_op)

    assert _estimated(lambda: all_reduce(1 << 10), group) < 0  # its duration is unknown
    durations = {}
    for count in (1 << 10, 1 << 20):
        for _ in range(3):
            work = all_reduce(count, async_op=True)
            work.wait()
        while not work.is_completed():
            time.sleep(0.001)
        durations[count] = work._get_duration() * 1000
    small, large = durations.values()
    assert _estimated(lambda: all_reduce(1 << 10), group) == pytest.approx(small, rel=1e-3)
    assert _estimated(lambda: all_reduce(1), group) == pytest.approx(small, rel=1e-3)
    assert _estimated(lambda: all_reduce(1 << 20, async_op=True).wait(), group) == pytest.approx(large, rel=1e-3)
    assert _estimated(lambda: all_reduce(1 << 21), group) == pytest.approx(2 * large, rel=1e-3)
    assert _estimated(lambda: [all_reduce(1 << 20), all_reduce(1 << 10)], group) == pytest.approx(
        small + large, rel=1e-3
    )
    between = _estimated(lambda: all_reduce(1 << 19), group)
    assert min(small, large) <= between <= max(small, large)
    assert _estimated(lambda: dist.broadcast(torch.ones(5), 0, group=group), group) < 0
    assert _estimated(lambda: None, group) == 0
    _nothing_is_done(group)
    dist.destroy_process_group(group)


def _nothing_is_done(group: Any) -> None:
    data = torch.ones(5)
    _estimated(lambda: dist.all_reduce(data, group=group), group)
    same_bits(data, torch.ones(5))
    dist.all_reduce(data, group=group)
    same_bits(data, torch.full((5,), float(dist.get_world_size())))
    if _here().type == "cpu":
        sparse = torch.eye(3).to_sparse()
        assert "cannot be estimated" in failure(lambda: _estimated(lambda: dist.all_reduce(sparse, group=group), group))
        group._get_backend(_here())._end_time_estimate()  # which torch leaves out then


def test_the_time_of_calls_is_estimated_by_what_others_have_taken(ranks: RankPool) -> None:
    ranks.run(_estimates)


def test_an_estimate_has_to_be_begun(two_ranks: RankPool) -> None:
    message = two_ranks.run(_end_estimate)[0]
    assert "without _start_time_estimate()" in message


def _end_estimate() -> str:
    backend = dist.distributed_c10d._get_default_group()._get_backend(_here())
    return failure(backend._end_time_estimate)
