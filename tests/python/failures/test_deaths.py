"""A rank dies or stops: ranks that wait for it raise an error that names it, clean up and go on without it.

tests/fault has more such tests on CPUs.
"""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.devices import on, on_cpu_and_gpu
from support.pool import BACKEND, RankPool
from support.reference import eventual_failure, failure, same_bits

# The kernel reports a death at once; this limit is for a loaded machine. tests/fault checks the promised second on
# CPUs.
NOTICE_S = 5.0


def _die_while(how: str, store_of_survivors: str) -> tuple[str, float] | None:
    """The last rank kills itself; the others wait for it, meanwhile or afterwards, and then regroup."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    size = 1 << 20 if how == "streaming" else 10
    dist.all_reduce(torch.ones(size))
    if how == "sending":  # not for the first time
        for sender in range(last):
            if rank in (sender, last):
                dist.send(torch.ones(size), last) if rank == sender else dist.recv(torch.ones(size), sender)
    if rank == last:
        if how == "streaming":
            for _ in range(5):
                dist.all_reduce(torch.ones(size))
        elif how == "waiting":
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if how in ("idle", "sending"):
        time.sleep(1)
    message, started = "", time.monotonic()
    if how == "receiving":
        message = eventual_failure(lambda: dist.recv(torch.ones(size), last))
    elif how == "sending":
        message = eventual_failure(lambda: dist.send(torch.ones(size), last))
    else:
        message = eventual_failure(lambda: dist.all_reduce(torch.ones(size)))
    seconds = time.monotonic() - started
    started = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - started < NOTICE_S, "destroy_process_group took too long"
    dist.init_process_group(
        BACKEND,
        init_method=f"file://{store_of_survivors}",
        rank=rank,
        world_size=last,
        timeout=timedelta(seconds=20),
    )
    data = torch.ones(1000)
    dist.all_reduce(data)
    same_bits(data, torch.full((1000,), float(last)))
    return message, seconds


@on("cuda")
@pytest.mark.parametrize("how", ["idle", "receiving", "sending"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_that_is_killed_before_others_call_it_is_named(how: str, size: int, fresh_ranks, tmp_path) -> None:
    results = fresh_ranks(size).run(_die_while, how, str(tmp_path / "store"), dying=[size - 1], timeout_s=40)
    for message, seconds in results[:-1]:
        assert re.search(rf"\[rank \d of group '.*'\] .*rank {size - 1}", message, re.DOTALL), message
        assert seconds < NOTICE_S


@on_cpu_and_gpu
@pytest.mark.parametrize("how", ["waiting", "streaming"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_killed_rank_is_named_and_the_survivors_regroup(
    how: str, size: int, device: str, fresh_ranks, tmp_path
) -> None:
    results = fresh_ranks(size).run(_die_while, how, str(tmp_path / "store"), dying=[size - 1], timeout_s=40)
    for message, seconds in results[:-1]:
        assert f"rank {size - 1}" in message
        assert seconds < NOTICE_S
        # the last messages of each rank; the dead rank's own report is unavailable
        if device == "cpu" and how == "waiting":
            assert re.search(rf"Last messages: .*rank {size - 1} \(of #1, all_reduce \(float32, 10 elements", message)


def _watch_stopped() -> str:
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier(group)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    started = time.monotonic()
    # The stopped rank may already have all that it needs for the first one.
    message = eventual_failure(lambda: dist.all_reduce(torch.ones(3), group=group))
    assert dist.get_rank() == 1 or time.monotonic() - started < 3
    return message


@on("cuda")
def test_a_stopped_rank_is_named_within_the_timeout(fresh_ranks) -> None:
    ranks: RankPool = fresh_ranks(2)
    ranks.start(_watch_stopped)
    time.sleep(4)
    os.kill(ranks.pids[1], signal.SIGCONT)
    message = ranks.finish()[0]
    assert "Timed out" in message
    assert "rank 1" in message


def _abort_from_a_thread() -> str:
    import threading

    group = dist.new_group()
    dist.barrier(group)
    if dist.get_rank() == 1:
        time.sleep(1)
        dist.distributed_c10d._abort_process_group(group)
        return ""
    aborter = threading.Timer(0.5, lambda: group.abort())
    aborter.start()
    started = time.monotonic()
    message = eventual_failure(lambda: dist.all_reduce(torch.ones(3), group=group))
    assert time.monotonic() - started < NOTICE_S
    aborter.join()
    group.abort()  # a second time does nothing
    return message


@on_cpu_and_gpu
def test_abort_from_another_thread_ends_a_wait(two_ranks: RankPool) -> None:
    assert "abort" in two_ranks.run(_abort_from_a_thread)[0].lower()


def _destroy_with_work_in_flight() -> None:
    group = dist.new_group(timeout=timedelta(seconds=2))  # the limit for a GPU to finish enqueued work
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier(group)
    pending = [dist.irecv(torch.ones(10), (dist.get_rank() + 1) % 2, group=group)]
    if dist.get_rank() == 0:
        pending.append(dist.all_reduce(torch.ones(1 << 20), group=group, async_op=True))
    started = time.monotonic()
    dist.destroy_process_group(group)
    assert time.monotonic() - started < NOTICE_S
    for work in pending:
        failure(lambda work=work: work.wait(timedelta(seconds=NOTICE_S)))
    assert time.monotonic() - started < NOTICE_S
    dist.barrier()


@on_cpu_and_gpu
def test_destroying_a_group_ends_what_is_in_flight(two_ranks: RankPool) -> None:
    two_ranks.run(_destroy_with_work_in_flight)
