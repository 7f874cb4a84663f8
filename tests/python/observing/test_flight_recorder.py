"""Torch's flight recorder, from torch 2.15 on: which calls have ended, and which have not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.reference import eventually, failure

pytestmark = pytest.mark.skipif(torch.__version__ < "2.15", reason="needs torch 2.15")


def _entries(group: dist.ProcessGroup) -> list[dict[str, Any]]:
    dump: Any = torch._C._distributed_c10d._dump_fr_trace_json  # type: ignore[attr-defined]
    entries = json.loads(dump(includeCollectives=True, backend="axon"))["entries"]
    return [entry for entry in entries if entry["process_group"][0] == group.group_name]


def _states(group: dist.ProcessGroup) -> list[str]:
    return [entry["state"] for entry in _entries(group)]


def _new_group() -> dist.ProcessGroup:
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    return group


def _end() -> None:
    group = _new_group()
    dist.all_reduce(torch.ones(10), group=group)
    work = dist.broadcast(torch.ones(10), 0, group=group, async_op=True)
    assert work is not None
    work.wait()
    if dist.get_rank() == 0:
        dist.send(torch.ones(5), 1, group=group)
    else:
        dist.recv(torch.ones(5), 0, group=group)
    with dist.distributed_c10d._coalescing_manager(group, async_ops=True) as manager:
        for _ in range(2):
            dist.all_reduce(torch.ones(3), group=group)
    manager.wait()
    dist.barrier(group=group)
    eventually(lambda: _states(group) == ["completed"] * 5)
    dist.destroy_process_group(group)


@on_cpu_and_gpu
def test_calls_that_have_ended_are_completed(two_ranks: RankPool) -> None:
    two_ranks.run(_end)


def _end_unwatched() -> None:
    """No thread of the program waits for the receive."""
    group = _new_group()
    if dist.get_rank() == 0:
        _work = dist.irecv(torch.ones(5), 1, group=group)
    dist.barrier()
    if dist.get_rank() == 1:
        dist.send(torch.ones(5), 0, group=group)
    eventually(lambda: _states(group) == ["completed"])
    dist.barrier()


def test_calls_end_although_no_one_waits(fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(2).run(_end_unwatched)


def _hang() -> None:
    """Rank 0 calls first. While the barrier of another group takes place, rank 1 has not called."""
    group = _new_group()
    if dist.get_rank() == 1:
        dist.barrier()
        dist.all_reduce(torch.ones(3), group=group)
        return
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    assert work is not None
    assert _states(group) == ["scheduled"]
    dist.barrier()
    work.wait()
    eventually(lambda: _states(group) == ["completed"])


@on_cpu_and_gpu
def test_a_call_that_hangs_is_scheduled(two_ranks: RankPool) -> None:
    two_ranks.run(_hang)


def _fail(folder: str) -> None:
    """A failed call has never been completed. Its abort hook writes the entries to a file."""
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{folder}/rank"
    group = _new_group()
    dist.barrier(group=group)
    if dist.get_rank() == 0:
        failure(lambda: dist.all_reduce(torch.ones(3), group=group))
    else:
        failure(lambda: dist.barrier(group=group))
    assert _states(group) == ["completed", "scheduled"]
    assert not _entries(group)[-1]["retired"]
    eventually(lambda: Path(f"{folder}/rank{dist.get_rank()}").exists())


def test_a_call_that_failed_is_never_completed(tmp_path: Path, fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(2).run(_fail, str(tmp_path))


def _time() -> None:
    group = _new_group()
    group._enable_collectives_timing()
    dist.all_reduce(torch.ones(10), group=group)
    work = dist.all_reduce(torch.ones(10), group=group, async_op=True)
    assert work is not None
    work.wait()
    eventually(lambda: _states(group) == ["completed"] * 2)
    assert all(entry["duration_ms"] > 0 for entry in _entries(group))


@on_cpu_and_gpu
def test_timed_calls_have_durations(two_ranks: RankPool) -> None:
    two_ranks.run(_time)
