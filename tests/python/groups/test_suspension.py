"""suspend() and resume(): a group frees its GPU memory, and allocates it again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.devices import on, on_cpu_and_gpu
from support.gpu import exercise, meet
from support.pool import RankPool
from support.reference import case, failure, same_bits

ARENA_BYTES = 64 << 20


def _backend(group: dist.ProcessGroup | None = None) -> Any:
    group = group or dist.distributed_c10d._get_default_group()
    return group._get_backend(torch.get_default_device())


@contextlib.contextmanager
def _group() -> Iterator[dist.ProcessGroup]:
    group = dist.new_group()
    yield group
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()
    dist.destroy_process_group(group)


def _check(group: dist.ProcessGroup, size: int = 1000, device: str | None = None) -> None:
    data = torch.full((size,), dist.get_rank() + 1, device=device)
    dist.all_reduce(data, group=group)
    same_bits(data, torch.full_like(data, sum(range(1, dist.get_world_size() + 1))))


def _again_and_again() -> None:
    with _group() as group:
        for step in range(10):
            with case(step=step):
                for size in (1, 100_000, 3_000_000):
                    _check(group, size)
                _backend(group).suspend()
                _check(group, device="cpu")
                _backend(group).resume()
        _check(group)


@on_cpu_and_gpu
def test_a_group_is_suspended_again_and_again(ranks: RankPool) -> None:
    ranks.run(_again_and_again)


def _memory() -> tuple[list[int], list[int]]:
    """Returns the free bytes of this GPU with the group, and while it is suspended."""
    working, suspended = [], []
    backend = _backend()
    for _ in range(4):
        _check(dist.group.WORLD)
        meet()
        working.append(torch.cuda.mem_get_info()[0])
        meet()
        backend.suspend()
        dist.barrier()
        suspended.append(torch.cuda.mem_get_info()[0])
        dist.barrier()
        backend.resume()
    return working, suspended


@on("cuda")
@pytest.mark.parametrize("size", [2, 4])
def test_the_last_groups_arena_is_given_back(size: int, fresh_ranks) -> None:
    for working, suspended in fresh_ranks(size).run(_memory):
        for one, other in zip(working[1:], suspended[1:], strict=True):
            assert other - one >= ARENA_BYTES - (4 << 20)
        assert abs(working[-1] - working[1]) < 8 << 20


def _statistics() -> None:
    nothing = {"arena": 0, "block": 0, "workspaces": 0}
    with _group() as group:
        assert _backend(group).memory_stats() == nothing
        _check(group)
        held = _backend(group).memory_stats()
        if torch.get_default_device().type == "cuda":
            assert held["arena"] == ARENA_BYTES
            assert 0 < held["block"] <= ARENA_BYTES
        else:
            assert held == nothing
        _backend(group).suspend()
        assert _backend(group).memory_stats() == nothing
        _backend(group).resume()
        _check(group)
        assert _backend(group).memory_stats() == held


@on_cpu_and_gpu
def test_statistics_tell_what_is_held(two_ranks: RankPool) -> None:
    two_ranks.run(_statistics)


def _twice() -> None:
    """A repeated call has no further effect."""
    with _group() as group:
        _backend(group).resume()
        _check(group)
        for _ in range(2):
            _backend(group).suspend()
        for _ in range(2):
            _backend(group).resume()
        _check(group)
        _backend(group).suspend()  # and destroyed while suspended


@on_cpu_and_gpu
def test_a_second_call_changes_nothing(two_ranks: RankPool) -> None:
    two_ranks.run(_twice)


def _sequence_numbers() -> None:
    with _group() as group:
        for _ in range(3):
            _check(group)
        before = _backend(group)._get_sequence_number_for_group()
        _backend(group).suspend()
        _backend(group).resume()
        _check(group)
        assert _backend(group)._get_sequence_number_for_group() > before


@on_cpu_and_gpu
def test_sequence_numbers_go_on(two_ranks: RankPool) -> None:
    two_ranks.run(_sequence_numbers)


def _used_while_suspended() -> list[str]:
    with _group() as group:
        data = torch.ones(1000)
        dist.all_reduce(data, group=group)
        _backend(group).suspend()
        messages = [
            failure(lambda: dist.all_reduce(data, group=group)),
            failure(lambda: dist.all_reduce(data, group=group, async_op=True)),
            failure(lambda: dist.send(data, 1 - dist.get_rank(), group=group)),
        ]
        dist.barrier(group)
        _check(group, device="cpu")
        _backend(group).resume()
        _check(group)
    return messages


@on("cuda", "staged")
def test_calls_on_a_suspended_group_say_what_to_do(two_ranks: RankPool) -> None:
    for messages in two_ranks.run(_used_while_suspended):
        assert all("suspended" in message and "resume()" in message for message in messages)


def _under_way() -> None:
    """Enqueued work completes first."""
    with _group() as group:
        tensors = [torch.full((1_000_000,), dist.get_rank() + step) for step in range(30)]
        works = [dist.all_reduce(data, group=group, async_op=True) for data in tensors]
        _backend(group).suspend()
        for work in works:
            assert work is not None
            assert work.is_completed()
            work.wait()
        for step, data in enumerate(tensors):
            same_bits(data, torch.full_like(data, sum(range(step, step + dist.get_world_size()))))
        _backend(group).resume()
        _check(group)


@on("cuda", "staged")
def test_what_is_under_way_ends_first(ranks: RankPool) -> None:
    ranks.run(_under_way)


def _some_ranks_have_used_their_gpus() -> None:
    """Ranks 0 and 1 call it alone; then all of them do."""
    with _group() as group:
        for _ in range(3):
            rank = dist.get_rank()
            data = torch.full((1000,), rank)
            if rank == 0:
                dist.send(data, 1, group=group)
            elif rank == 1:
                dist.recv(data, 0, group=group)
                same_bits(data, torch.zeros_like(data))
            _backend(group).suspend()
            _backend(group).resume()
        _check(group)


@on("cuda", "staged")
def test_ranks_that_had_nothing_to_give_back(three_ranks: RankPool) -> None:
    three_ranks.run(_some_ranks_have_used_their_gpus)


def _one_of_two() -> None:
    """The other group still works: the arena stays."""
    with _group() as kept, _group() as suspended:
        work = exercise("all_gather", 1 << 20)
        for group in (kept, suspended):
            _check(group)
        for _ in range(3):
            _backend(suspended).suspend()
            work.fill()
            work.launch(kept, False)
            assert work.count_wrong() == 0
            _backend(suspended).resume()
            work.fill()
            work.launch(suspended, False)
            assert work.count_wrong() == 0


@on("cuda", "staged")
def test_other_groups_work_on(two_ranks: RankPool) -> None:
    two_ranks.run(_one_of_two)


def _graphs() -> None:
    """A graph keeps what its kernels use."""
    with _group() as group:
        data = torch.ones(1000)
        dist.all_reduce(data, group=group)
        meet()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(data, group=group)
        _backend(group).suspend()
        data.fill_(1.0)
        graph.replay()
        torch.cuda.synchronize()
        same_bits(data, torch.full_like(data, float(dist.get_world_size())))
        graph.reset()
        _backend(group).resume()
        _check(group)


@on("cuda")
def test_a_graph_keeps_what_it_uses(ranks: RankPool) -> None:
    ranks.run(_graphs)
