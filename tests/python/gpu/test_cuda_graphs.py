"""CUDA graphs: replayed a thousand times with other data each time, beside each other and beside eager calls."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from support.devices import on
from support.gpu import meet
from support.graphs import Loop, num_replays
from support.pool import RankPool
from support.reference import case, failure_or_nothing

pytestmark = on("cuda")

SIZES = (8, 4096, 1 << 20, 16 << 20)  # bytes
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "ring")


def _replay(name: str, asynchronous: bool) -> None:
    for num_bytes in SIZES:
        with case(bytes=num_bytes):
            loop = Loop(name, num_bytes, asynchronous)
            graph = loop.capture()
            for _ in range(num_replays()):
                graph.replay()
            loop.check(1 + num_replays())


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_graph_is_replayed_with_changing_inputs(name: str, asynchronous: bool, ranks: RankPool) -> None:
    ranks.run(_replay, name, asynchronous, timeout_s=120)


def _take_turns() -> None:
    """Runs two graphs, one of many calls, and eager calls of both loops, in an order that never repeats."""
    small, large = Loop("all_reduce", 4096), Loop("all_gather", 1 << 20)
    one, many = small.capture(), torch.cuda.CUDAGraph()
    large.step()
    with torch.cuda.graph(many):
        for _ in range(7):
            large.step()
    actions: list[tuple[Callable[[], None], int, int]] = [
        (one.replay, 1, 0),
        (many.replay, 0, 7),
        (small.step, 1, 0),
        (large.step, 0, 1),
    ]
    small_steps, large_steps = 1, 1
    for turn in range(num_replays()):
        act, small_more, large_more = actions[turn * turn // 3 % len(actions)]
        act()
        small_steps, large_steps = small_steps + small_more, large_steps + large_more
    small.check(small_steps)
    large.check(large_steps)


def test_graphs_and_eager_calls_take_turns_in_one_group(ranks: RankPool) -> None:
    ranks.run(_take_turns)


def _capture_again() -> None:
    """Graphs are created and destroyed; what remains of them does not disturb other graphs."""
    stays = Loop("all_reduce", 1 << 16)
    kept = stays.capture()
    for turn in range(10):
        loop = Loop("reduce_scatter", 4096 << turn)
        graph = loop.capture()
        for _ in range(10):
            graph.replay()
            kept.replay()
        loop.check(11)
        del graph
        gc.collect()
        torch.cuda.empty_cache()
    stays.check(101)


def test_graphs_are_destroyed_and_captured_again(ranks: RankPool) -> None:
    ranks.run(_capture_again)


def _capture_while_another_replays() -> None:
    """A group's graph runs while another group's is captured."""
    running = Loop("all_reduce", 1 << 20)
    graph = running.capture()
    other = dist.new_group()
    data = torch.ones(1000)
    dist.all_reduce(data, group=other)
    meet()
    stream = torch.cuda.Stream()
    captured = torch.cuda.CUDAGraph()
    for _ in range(100):
        graph.replay()
    with torch.cuda.stream(stream):
        captured.capture_begin()  # torch.cuda.graph() would wait for the replays
        for _ in range(3):
            dist.all_reduce(data, group=other)
        captured.capture_end()
    with torch.cuda.stream(stream):
        data.fill_(1)
        captured.replay()
    torch.cuda.synchronize()
    assert torch.equal(data, torch.full_like(data, float(dist.get_world_size() ** 3)))
    running.check(101)
    del captured
    dist.destroy_process_group(other)


def test_a_graph_is_captured_beside_one_that_runs(ranks: RankPool) -> None:
    ranks.run(_capture_while_another_replays)


def _first_call_in_a_capture() -> str:
    """If the call cannot be captured, it raises, and the same call works afterwards."""
    group = dist.new_group()
    data = torch.ones(10)
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph):
            dist.all_reduce(data, group=group)

    message = failure_or_nothing(capture)
    (graph.replay if not message else lambda: dist.all_reduce(data, group=group))()
    torch.cuda.synchronize()
    assert torch.equal(data, torch.full_like(data, float(dist.get_world_size())))
    graph.reset()
    dist.destroy_process_group(group)
    return message


def test_a_groups_first_call_in_a_capture_works_or_says_why_not(two_ranks: RankPool) -> None:
    for message in two_ranks.run(_first_call_in_a_capture):
        assert not message or "captur" in message
