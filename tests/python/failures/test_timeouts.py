"""A rank never arrives: the others raise within the timeout and a second, and name the missing rank and operation."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.devices import on_cpu_and_gpu
from support.pool import BACKEND, RankPool
from support.reference import eventual_failure, failure, same_bits

TIMEOUT_S = 1.5
LARGE = 1 << 20


def _data(size: int = 12) -> torch.Tensor:
    return torch.ones(size // 4, 4)


# By operation's name in the error: the call, made on all ranks but the last.
_CALLS: dict[str, Callable[[dist.ProcessGroup], object]] = {
    "all_reduce": lambda group: dist.all_reduce(_data(), group=group),
    "all_reduce (large)": lambda group: dist.all_reduce(_data(LARGE), group=group),
    "broadcast": lambda group: dist.broadcast(_data(), group=group, group_src=group.size() - 1),
    "all_gather": lambda group: dist.all_gather([_data() for _ in range(group.size())], _data(), group=group),
    "reduce_scatter": lambda group: dist.reduce_scatter(_data(), [_data() for _ in range(group.size())], group=group),
    "all_to_all": lambda group: dist.all_to_all(
        [_data() for _ in range(group.size())], [_data() for _ in range(group.size())], group=group
    ),
    "barrier": lambda group: dist.barrier(group),
}


def _miss(name: str) -> tuple[str, float, str]:
    """The last rank makes no call until the others have timed out; its error then says why it is too late."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    store = dist.PrefixStore(f"miss {group.group_name}", dist.distributed_c10d._get_default_store())
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    waiting = [f"rank {rank}" for rank in range(dist.get_world_size() - 1)]
    started = time.monotonic()
    if dist.get_rank() == len(waiting):
        store.wait(waiting)  # drives no group
    message = eventual_failure(lambda: _CALLS[name](group), lambda: dist.barrier(group))
    seconds = time.monotonic() - started
    store.set(f"rank {dist.get_rank()}", "")
    again = failure(lambda: dist.barrier(group))
    dist.destroy_process_group(group)
    dist.barrier()
    return message, seconds, again


@on_cpu_and_gpu
@pytest.mark.parametrize("name", _CALLS)
@pytest.mark.parametrize("size", [2, 3])
def test_a_missing_rank_is_named_in_time(size: int, name: str, pools, device: str) -> None:
    *waiting, late = pools.of(size, device).run(_miss, name)
    operation = name.split()[0]
    for message, seconds, again in waiting:
        assert TIMEOUT_S - 0.1 < seconds < TIMEOUT_S + 1, message
        assert "Timed out" in message
        assert operation in message
        assert re.search(rf"rank {size - 1}\b", message)
        if device == "cpu":  # a kernel does not know what the host knows of the others
            assert re.search(rf"{operation} #2\b", message)
            assert re.search(rf"Not entered by: rank {size - 1} \(last entered all_reduce #1 \(float32\[1\]", message)
            assert re.search(rf"Entered by: rank 0 \(last entered {operation} #2.*, \d\.\d s ago\)", message)
            assert operation == "barrier" or "float32" in message
        if device == "cuda" and operation != "barrier":
            assert re.search(rf"rank 0 \(.*its GPU was last given {operation} #2 \(float32", message)
        assert re.search(r"\(at \S*test_timeouts\.py:\d+, in <lambda>\)$", message)
        assert "Timed out" in again
    assert "Timed out" in late[0]


def _enter_in_the_debuggers_sight() -> str:
    """Rank 0 enters its second call while rank 1 is still in its first: each error names the line of the call."""
    dist.set_debug_level(dist.DebugLevel.INFO)
    try:
        group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
        dist.all_reduce(torch.ones(1), group=group)
        if dist.get_rank() == 1:
            time.sleep(TIMEOUT_S + 1)
        return eventual_failure(lambda: dist.all_reduce(torch.ones(1), group=group))
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


@on_cpu_and_gpu
def test_every_ranks_last_line_is_told_where_debugging_is_on(two_ranks: RankPool) -> None:
    call = r"\(.*all_reduce #{} \(float32\[1\], SUM\), \d\.\d s ago, at \S*test_timeouts\.py:\d+, in {}\)"
    for message in two_ranks.run(_enter_in_the_debuggers_sight):
        for rank, (number, function) in enumerate([(2, "<lambda>"), (1, "_enter_in_the_debuggers_sight")]):
            assert re.search(rf"rank {rank} " + call.format(number, function), message)


def _receive_in_vain(sender: str) -> tuple[str, float]:
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    message, seconds = "", 0.0
    if dist.get_rank() == 0:
        started = time.monotonic()
        if sender == "any":
            message = failure(lambda: dist.recv(torch.ones(2, 3), group=group, tag=4))
        elif sender == "one":
            message = failure(lambda: dist.recv(torch.ones(2, 3), 1, group=group, tag=4))
        else:
            message = failure(lambda: dist.send(torch.ones(LARGE), 1, group=group, tag=4))
        seconds = time.monotonic() - started
    dist.barrier()
    data = torch.ones(3)
    dist.all_reduce(data, group=group)  # a message that never arrives harms nothing else
    same_bits(data, torch.full((3,), 2.0))
    dist.destroy_process_group(group)
    return message, seconds


@pytest.mark.parametrize("sender", ["one", "any", "receiver"])
def test_a_message_that_never_comes_times_out_alone(sender: str, two_ranks: RankPool) -> None:
    message, seconds = two_ranks.run(_receive_in_vain, sender)[0]
    assert TIMEOUT_S - 0.1 < seconds < TIMEOUT_S + 1
    assert "Timed out" in message
    assert ("send" if sender == "receiver" else "receive") in message
    assert sender == "any" or "rank 1" in message


def _call_with_timeout(way: str) -> tuple[str, float]:
    """The group's timeout is long; this call's timeout is short."""
    group = dist.new_group(timeout=timedelta(seconds=30))
    dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()
    message, seconds = "", 0.0
    if way == "set":
        group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=TIMEOUT_S))
    elif way == "set by torch":
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT_S), group)
    if dist.get_rank() == 0:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=TIMEOUT_S)
        started = time.monotonic()
        message = eventual_failure(
            lambda: (
                group.allreduce([torch.ones(3)], options).wait()
                if way == "option"
                else dist.all_reduce(torch.ones(3), group=group)
            ),
            lambda: dist.barrier(group),
        )
        seconds = time.monotonic() - started
    else:
        time.sleep(TIMEOUT_S + 1.5)
    return message, seconds


@on_cpu_and_gpu
@pytest.mark.parametrize("way", ["option", "set", "set by torch"])
def test_timeouts_of_a_call_and_set_later_hold(way: str, two_ranks: RankPool) -> None:
    message, seconds = two_ranks.run(_call_with_timeout, way)[0]
    assert TIMEOUT_S - 0.1 < seconds < TIMEOUT_S + 1
    assert "Timed out" in message or BACKEND != "axon"


def _asynchronous() -> list[tuple[str, float]]:
    """No thread waits when the time is up: the operation fails all the same, and so do operations queued after it."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    if dist.get_rank() == 1:
        time.sleep(TIMEOUT_S + 2)
        return []
    started = time.monotonic()
    works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(3)]
    while not all(work.is_completed() for work in works) and time.monotonic() - started < 10:
        time.sleep(0.01)
    seconds = time.monotonic() - started
    return [(failure(work.wait), seconds) for work in works]


def test_asynchronous_work_times_out_unwatched(two_ranks: RankPool) -> None:
    for message, seconds in two_ranks.run(_asynchronous)[0]:
        assert seconds < TIMEOUT_S + 1
        assert "Timed out" in message
