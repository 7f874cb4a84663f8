"""Fused products whose peers fail: streams wait for flags that copy engines write, and must still go on."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from support.devices import on
from support.gpu import meet, regroup, works
from support.pool import RankPool
from support.reference import eventual_failure, failure_or_nothing
from torch_axon import all_gather_matmul, matmul_reduce_scatter

pytestmark = on("cuda")

NOTICE_S = 15.0  # a hang is longer; the products that are queued run to their end
TIMEOUT_S = 1.5
ROWS, DEPTH, WIDTH = 8192, 8192, 8192  # of a rank: products of milliseconds, in several tiles


def _launch(
    name: str, sizes: Sequence[int] | None = None, group: dist.ProcessGroup | None = None
) -> Callable[[], Tensor]:
    sizes = [ROWS] * dist.get_world_size(group) if sizes is None else list(sizes)
    weight = torch.ones(DEPTH, WIDTH, dtype=torch.bfloat16)
    if name == "all_gather_matmul":
        x = torch.ones(sizes[dist.get_rank(group)], DEPTH, dtype=torch.bfloat16)
        return lambda: all_gather_matmul(x, weight, sizes=sizes, group=group, return_gathered=False)[1]
    x = torch.ones(sum(sizes), DEPTH, dtype=torch.bfloat16)
    return lambda: matmul_reduce_scatter(x, weight, sizes=sizes, group=group)


_each_operation = pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_reduce_scatter"])


def _die_amid_products(name: str, delay_s: float, store: str) -> tuple[str, float]:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    launch = _launch(name)
    launch()
    meet()
    if rank == last:
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    started = time.monotonic()
    while not failure_or_nothing(launch):  # the stream's queue is full by then
        pass
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    message = eventual_failure(lambda: dist.all_reduce(torch.ones(3)))
    works()
    regroup(store, rank, last)
    return message, seconds


@_each_operation
@pytest.mark.parametrize("delay_s", [0.5, 0.501, 0.502, 0.503])  # at several moments within a product
def test_streams_go_on_when_a_peer_is_killed_amid_products(name: str, delay_s: float, fresh_ranks, tmp_path) -> None:
    ranks: RankPool = fresh_ranks(2)
    results = ranks.run(_die_amid_products, name, delay_s, str(tmp_path / "store"), dying=[1], timeout_s=50)
    message, seconds = results[0]
    assert seconds < NOTICE_S
    assert "rank 1" in message


def _never_come(name: str) -> tuple[str, float]:
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    launch = _launch(name, group=group)
    launch()
    meet()
    message, seconds = "", 0.0
    if dist.get_rank() == 0:
        started = time.monotonic()
        for _ in range(3):
            launch()
        torch.cuda.synchronize()
        seconds = time.monotonic() - started
        message = eventual_failure(launch)
    dist.barrier()
    works()
    dist.destroy_process_group(group)
    return message, seconds


@_each_operation
def test_streams_go_on_at_the_timeout(name: str, two_ranks: RankPool) -> None:
    message, seconds = two_ranks.run(_never_come, name)[0]
    assert TIMEOUT_S - 0.2 < seconds < TIMEOUT_S + 1
    assert "Timed out" in message
    assert "rank 1" in message


def _abort_amid_products(name: str) -> tuple[str, float]:
    """Rank 1 makes one call less."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    launch = _launch(name, group=group)
    launch()
    meet()
    started = time.monotonic()
    for _ in range(10 - dist.get_rank()):
        launch()
    aborter = threading.Timer(0.5, group.abort)
    if dist.get_rank() == 0:
        aborter.start()
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    if dist.get_rank() == 0:
        aborter.join()
    dist.barrier()
    works()
    return eventual_failure(launch), seconds


@_each_operation
def test_abort_frees_streams(name: str, two_ranks: RankPool) -> None:
    for message, seconds in two_ranks.run(_abort_amid_products, name):
        assert "abort" in message.lower()
        assert seconds < NOTICE_S


# The row counts that each of two ranks assumes for both ranks.
_BELIEFS = {
    "total": ((ROWS // 2, ROWS // 2), (ROWS // 4, ROWS // 4)),
    "division": ((ROWS // 2, ROWS // 2), (ROWS // 4, 3 * ROWS // 4)),
}


def _disagree(name: str, about: str) -> str:
    group = dist.new_group(timeout=timedelta(seconds=20))
    _launch(name, group=group)()
    meet()
    started = time.monotonic()
    launch = _launch(name, _BELIEFS[about][dist.get_rank()], group)
    message = eventual_failure(launch)
    assert time.monotonic() - started < NOTICE_S
    works()
    dist.destroy_process_group(group)
    return message


@_each_operation
@pytest.mark.parametrize("about", _BELIEFS)
def test_ranks_that_disagree_are_told(name: str, about: str, two_ranks: RankPool) -> None:
    for message in two_ranks.run(_disagree, name, about):
        assert "mismatch" in message
        sides = re.findall(rf"called {name} \(bfloat16, (\d+ MiB in all, digest of sizes \d+)\)", message)
        assert len(set(sides)) == 2
