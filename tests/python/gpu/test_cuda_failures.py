"""Failures on a GPU: the stream goes on, the next call reports the failure, and the process still works."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.devices import on
from support.gpu import busy, meet, regroup, works
from support.pool import RankPool
from support.reference import eventual_failure, failure, same_bits

pytestmark = on("cuda", "staged")

NOTICE_S = 5.0
TIMEOUT_S = 1.5


def _die_while_a_stream_waits(asynchronous: bool, store: str) -> tuple[str, float]:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    data = torch.ones(1 << 20)
    dist.all_reduce(data)
    meet()
    if rank == last:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    dist.all_reduce(data, async_op=asynchronous)
    dist.all_reduce(torch.ones(3))
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    message = eventual_failure(lambda: dist.all_reduce(torch.ones(3)))
    works()
    regroup(store, rank, last)
    return message, seconds


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_stream_goes_on_when_a_peer_is_killed(size: int, asynchronous: bool, fresh_ranks, tmp_path) -> None:
    ranks: RankPool = fresh_ranks(size)
    store = str(tmp_path / "store")
    results = ranks.run(_die_while_a_stream_waits, asynchronous, store, dying=[size - 1], timeout_s=50)
    for message, seconds in results[:-1]:
        assert seconds < NOTICE_S
        assert f"rank {size - 1}" in message


def _time_out(kind: str) -> tuple[str, float]:
    """Rank 1 is too late. Rank 0's stream goes on at the timeout."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    data = torch.ones(100_000)
    dist.all_reduce(data, group=group)
    if kind == "message":
        _exchange(data, group)
    meet()
    if dist.get_rank() == 1:
        time.sleep(TIMEOUT_S + 1.5)
        failure(lambda: [dist.all_reduce(data, group=group), torch.cuda.synchronize(), dist.barrier(group)])
        message, seconds = "", 0.0
    else:
        started = time.monotonic()
        if kind == "message":
            dist.irecv(data, 1, group=group)
        else:
            dist.all_reduce(data, group=group, async_op=True)
        torch.cuda.synchronize()
        seconds = time.monotonic() - started
        message = eventual_failure(lambda: dist.all_reduce(data, group=group))
    works()
    dist.destroy_process_group(group)
    total = torch.ones(3)
    dist.all_reduce(total)
    same_bits(total, torch.full((3,), float(dist.get_world_size())))
    return message, seconds


def _exchange(data: torch.Tensor, group: dist.ProcessGroup) -> None:
    if dist.get_rank() == 0:
        dist.send(data, 1, group=group)
        dist.recv(data, 1, group=group)
    else:
        dist.recv(data, 0, group=group)
        dist.send(data, 0, group=group)


@pytest.mark.parametrize("kind", ["collective", "message"])
def test_a_stream_goes_on_at_the_timeout(kind: str, two_ranks: RankPool) -> None:
    message, seconds = two_ranks.run(_time_out, kind)[0]
    assert TIMEOUT_S - 0.2 < seconds < TIMEOUT_S + 1
    assert "Timed out" in message
    assert "rank 1" in message


def _meet_in_different_memory(receiver: int, tag: int) -> str:
    """Rank 0's tensor is in the host's memory, rank 1's in its GPU's. Returns the receiver's error, or "" if they
    match."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    dist.all_reduce(torch.ones(3), group=group)
    if rank != receiver:
        dist.send(torch.arange(5.0, device="cpu" if rank == 0 else None), receiver, group=group, tag=tag)
        message = ""
    else:
        data = torch.zeros(5, device="cpu" if rank == 0 else None)
        if tag != 0:
            dist.recv(data, 1 - rank, group=group, tag=tag)
            same_bits(data.cpu(), torch.arange(5.0, device="cpu"))
            message = ""
        elif rank == 0:
            message = failure(lambda: dist.recv(data, 1, group=group))
        else:
            dist.recv(data, 0, group=group)
            message = eventual_failure(lambda: dist.send(data, 0, group=group, tag=1))
    dist.barrier()
    works()
    dist.destroy_process_group(group)
    return message


@pytest.mark.parametrize("receiver", [0, 1])
def test_cpu_and_cuda_tensors_meet_under_a_tag(receiver: int, two_ranks: RankPool, device: str) -> None:
    assert two_ranks.run(_meet_in_different_memory, receiver, 7) == ["", ""]
    if device != "cuda":
        return
    message = two_ranks.run(_meet_in_different_memory, receiver, 0)[receiver]
    assert "Timed out" in message
    assert "CPU and CUDA tensors meet under tags other than 0" in message


def _abort() -> tuple[str, float]:
    """The stream waits for a peer that never arrives; another thread calls abort()."""
    group = dist.new_group()
    data = torch.ones(1 << 18)
    dist.all_reduce(data, group=group)
    meet()
    message, seconds = "", 0.0
    if dist.get_rank() == 0:
        started = time.monotonic()
        dist.all_reduce(data, group=group)
        aborter = threading.Timer(0.5, lambda: group.abort())
        aborter.start()
        torch.cuda.synchronize()
        seconds = time.monotonic() - started
        aborter.join()
        message = failure(lambda: dist.all_reduce(data, group=group))
        group.abort()
    works()
    dist.barrier()
    return message, seconds


def test_abort_frees_the_stream(two_ranks: RankPool) -> None:
    message, seconds = two_ranks.run(_abort)[0]
    assert 0.4 < seconds < 2
    assert "abort" in message.lower()


def _disagree() -> str:
    """On a busy stream, the calls return before the error is known; the next call raises it."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    sizes = (1000, 2000)
    dist.all_reduce(torch.ones(1000), group=group)
    meet()
    busy(0.2)
    started = time.monotonic()
    dist.all_reduce(torch.ones(sizes[dist.get_rank()]), group=group)
    torch.cuda.synchronize()
    message = eventual_failure(lambda: dist.all_reduce(torch.ones(10), group=group))
    assert time.monotonic() - started < NOTICE_S
    works()
    dist.destroy_process_group(group)
    return message


def test_a_mismatch_is_told_by_the_next_call_with_both_sides(two_ranks: RankPool) -> None:
    for message in two_ranks.run(_disagree):
        assert "mismatch" in message
        assert re.search(r"\b1000\b", message)
        assert re.search(r"\b2000\b", message)


def _message_that_does_not_fit() -> str:
    group = dist.new_group(timeout=timedelta(seconds=5))
    dist.all_reduce(torch.ones(1), group=group)
    message = ""
    if dist.get_rank() == 0:
        dist.send(torch.ones(100), 1, group=group)
        torch.cuda.synchronize()
    else:
        message = eventual_failure(
            lambda: dist.recv(torch.ones(50), 0, group=group), lambda: dist.all_reduce(torch.ones(1), group=group)
        )
    dist.barrier()
    dist.destroy_process_group(group)
    works()
    return message


def test_a_message_that_does_not_fit_is_told_at_the_receiver(two_ranks: RankPool) -> None:
    message = two_ranks.run(_message_that_does_not_fit)[1]
    assert "mismatch" in message
    assert re.search(r"\b(100|400) elements", message)  # kernels move bytes
    assert re.search(r"\b(50|200) elements", message)


def _destroy_under_way() -> float:
    """The stream still waits for a peer when its group is destroyed: enqueued work has until its timeout."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    data = torch.ones(1000)
    dist.all_reduce(data, group=group)
    meet()
    started = time.monotonic()
    if dist.get_rank() == 0:
        dist.all_reduce(data, group=group, async_op=True)
    dist.destroy_process_group(group)
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    works()
    dist.barrier()
    return seconds


def test_destroying_a_group_ends_with_what_is_enqueued(two_ranks: RankPool) -> None:
    assert all(seconds < NOTICE_S for seconds in two_ranks.run(_destroy_under_way))
