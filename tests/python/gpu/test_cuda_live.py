"""The doctor's live view of kernels: launches of CUDA graphs are counted, and a rank that is late is named."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist

from support.devices import on
from support.pool import RankPool
from torch_axon.doctor import live
from torch_axon.doctor.jobs import findings, progress_of
from torch_axon.doctor.processes import Progress

_CALL = "all_reduce (float32, 8 elements, SUM)"
_TIMEOUT_S = 30.0


def _await_file(file: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def _replay(go: Path, num_replays: int) -> None:
    data = torch.ones(8, device="cuda")
    dist.all_reduce(data)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(data)
    for _ in range(num_replays):
        graph.replay()
    torch.cuda.synchronize()
    _await_file(go)


def _entered(pid: int) -> dict[int, Progress]:
    (job,) = live.look(pid).jobs
    return progress_of(group for process in job.processes for group in process.groups if group.size == 2)


@on("cuda")
def test_launches_of_graphs_are_counted(two_ranks: RankPool, tmp_path: Path) -> None:
    """After the same launches, both GPUs have entered the same number of collectives, which has grown by them."""
    counts = []
    for num_replays in (3, 8):
        go = tmp_path / str(num_replays)
        two_ranks.start(_replay, go, num_replays)
        try:
            counts.append(_until_level(two_ranks.pids[0], above=counts[0] + num_replays if counts else 0))
        finally:
            go.touch()
            two_ranks.finish()
    assert counts[1] >= counts[0] + 9  # an eager call and eight replays


def _until_level(pid: int, above: int) -> int:
    """Returns the number of collectives that both GPUs have entered, once it is larger and no longer grows."""
    before: list[int] = []
    for _ in range(600):
        progress = _entered(pid)
        numbers = [each.num_entered for each in progress.values()]
        if numbers == before and len(set(numbers)) == 1 and numbers[0] > above:
            assert all(each.call == _CALL for each in progress.values())
            return numbers[0]
        before = numbers
    raise AssertionError(f"the ranks' GPUs have entered {before} collectives")


def _replay_but_last(go: Path) -> None:
    """The last rank launches its graph only after `go` is there, so the kernels of the other one wait for it."""
    data = torch.ones(8, device="cuda")
    dist.all_reduce(data)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        _await_file(go)
    graph.replay()
    torch.cuda.synchronize()


@on("cuda")
def test_the_rank_that_has_not_launched_its_graph_is_named(two_ranks: RankPool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    two_ranks.start(_replay_but_last, go)
    try:
        for _ in range(100):
            (job,) = live.look(two_ranks.pids[0]).jobs
            found = "\n".join(findings(job, 0.0))
            if "the GPU has not entered" in found:
                break
        assert f"rank 1: the GPU has not entered {_CALL}, which the kernels of rank 0 entered" in found
    finally:
        go.touch()
        two_ranks.finish()
