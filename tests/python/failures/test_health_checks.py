"""The health check of torch's debug server, since torch 2.15: a process is healthy until a call or a group fails."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_axon
from support.pool import RankPool
from support.reference import eventually, failure

pytestmark = pytest.mark.skipif(
    not hasattr(dist.distributed_c10d, "HealthCheckHook"), reason="needs torch 2.15 or newer, which has the check"
)


def _unhealthy() -> list[str]:
    """Returns the backends that the health check of this process reports."""
    server: Any = torch._C._distributed_c10d._WorkerServer("localhost", 0)  # type: ignore[attr-defined]
    url = f"http://localhost:{server.port}/handler/c10d_health_check"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20) as answer:
            state = json.loads(answer.read())
    finally:
        server.shutdown()
    assert state["healthy"] == (state["unhealthy_backends"] == [])
    return list(state["unhealthy_backends"])


def _succeed() -> list[str]:
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    assert work is not None
    work.wait()
    handles: list[Any] = [None, None]
    dist.all_gather_object(handles, torch_axon.reconfigure_handle(group), group=group)
    torch_axon.reconfigure(7, handles, group)
    dist.barrier(group=group)
    dist.destroy_process_group(group)
    return _unhealthy()


def test_ranks_are_healthy_while_calls_succeed_and_groups_end(fresh_ranks: Callable[..., RankPool]) -> None:
    assert fresh_ranks(2).run(_succeed) == [[], []]


def _hang() -> bool:
    """Rank 1 does not call, and stays healthy."""
    group = dist.new_group(timeout=timedelta(milliseconds=300))
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        assert work is not None
        failure(work.wait)
        eventually(lambda: _unhealthy() == ["axon"])
    dist.barrier()
    return _unhealthy() == []


def test_a_timeout_is_seen_on_the_rank_that_waited(fresh_ranks: Callable[..., RankPool]) -> None:
    assert fresh_ranks(2).run(_hang) == [False, True]


def _disagree() -> None:
    if dist.get_rank() == 0:
        failure(lambda: dist.all_reduce(torch.ones(3)))
    else:
        failure(lambda: dist.barrier())
    eventually(lambda: _unhealthy() == ["axon"])


def test_a_mismatch_is_seen_on_all_ranks(fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(2).run(_disagree)


def _abort() -> None:
    group = dist.new_group()
    assert _unhealthy() == []
    group.abort()
    assert _unhealthy() == ["axon"]


def test_an_abort_is_seen(fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(1).run(_abort)


def _fail_in(kind: str) -> None:
    """The group is made of another one."""
    group: Any = None
    if kind == "split":
        group = dist.split_group(split_ranks=[[0, 1], [2]])
    elif dist.get_rank() < 2:
        group = dist.shrink_group([2])
    if group is not None:
        assert _unhealthy() == []
        group.abort()
        assert _unhealthy() == ["axon"]


@pytest.mark.parametrize("kind", ["split", "shrunk"])
def test_groups_made_of_groups_are_watched(kind: str, fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(3).run(_fail_in, kind)
