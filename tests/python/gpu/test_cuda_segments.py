"""Large collectives on any tensor of torch's allocators: zero-copy where the peers' tensors are mapped.

Results are correct where they are not mapped, not yet mapped, or no longer mapped.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.devices import on
from support.gpu import check_direct, enqueue_beside_a_late_host, exercise, meet, num_zero_copy, until_direct
from support.pool import BACKEND, RankPool, own_rank
from support.processes import run_ranks
from support.reference import case, finish, same_bits

MIB = 1 << 20
# Each rank's share of it is large, too, and a multiple of 16 bytes, for two, three and four ranks.
DIRECT_BYTES = 48 * MIB

FOLDED = ("all_reduce", "reduce_scatter", "reduce")
GATHERED = ("all_gather", "all_gather_list", "all_gather_uneven", "gather")
DIRECT = (*FOLDED, *GATHERED, "scatter", "broadcast", "all_to_all", "all_to_all_uneven")
BY_LINES = ("ring",)


def _done_directly(name: str, dtype: torch.dtype) -> None:
    handed_on = name == "broadcast" and dist.get_world_size() > 2  # over LL128 up to 128 MiB
    check_direct(exercise(name, 4 * DIRECT_BYTES if handed_on else DIRECT_BYTES, dtype), num_turns=10)


@on("cuda")
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DIRECT)
def test_large_collectives_are_done_directly(name: str, dtype: torch.dtype, ranks: RankPool) -> None:
    ranks.run(_done_directly, name, dtype)


def _sizes_and_offsets(name: str) -> None:
    """Every rank's buffers have other offsets in their memory."""
    for dtype, shift in ((torch.uint8, 0), (torch.uint8, 1), (torch.bfloat16, 8), (torch.float32, 3), (torch.int64, 2)):
        for num_bytes in (8 * MIB, 24 * MIB + 5 * dtype.itemsize, 64 * MIB - dtype.itemsize):
            with case(dtype=dtype, shift=shift, bytes=num_bytes):
                work = exercise(name, num_bytes, dtype, shift * (1 + dist.get_rank()))
                for turn in range(6):
                    work.fill()
                    finish(work.launch(dist.group.WORLD, turn % 2 == 1))
                    assert work.count_wrong() == 0


@on("cuda")
@pytest.mark.parametrize("name", [*DIRECT, *BY_LINES])
def test_large_views_of_any_size_and_offset(name: str, ranks: RankPool) -> None:
    ranks.run(_sizes_and_offsets, name, timeout_s=120)


def _aligned_views() -> None:
    """Uses views of one segment, whose offsets differ from rank to rank."""
    count, rank = DIRECT_BYTES // 8, dist.get_rank()
    whole = torch.zeros(3 * count, dtype=torch.int64)
    for offset in (2, 1000, count + 64 * rank, 2 * count):
        view = whole[offset : offset + count]
        until_direct(lambda: dist.all_reduce(view.fill_(rank + 1)))  # noqa: B023 - called at once
        same_bits(view, torch.full_like(view, sum(range(1, dist.get_world_size() + 1))))
    assert int(whole[:2].count_nonzero()) == 0


@on("cuda")
def test_views_are_reached_where_they_are(ranks: RankPool) -> None:
    ranks.run(_aligned_views)


def _come_and_go(seed: int, num_rounds: int) -> None:
    """The allocator frees everything after each round, so addresses recur with other memory."""
    draw, rank, num_ranks = random.Random(seed), dist.get_rank(), dist.get_world_size()
    kept: list[torch.Tensor] = []
    for step in range(num_rounds):
        count = draw.randrange(2 * MIB, 8 * MIB) // 2 * 2
        whose, filler = draw.randrange(num_ranks), draw.randrange(1, 24 * MIB)
        if whose == rank:
            kept.append(torch.empty(filler, dtype=torch.uint8))  # other addresses than the other ranks
        data = torch.empty(count, dtype=torch.int64)
        gathered = torch.empty(count * num_ranks, dtype=torch.int64)

        def reduce_and_gather(step: int = step, data: torch.Tensor = data, gathered: torch.Tensor = gathered) -> None:
            dist.all_reduce(data.fill_(rank + step))
            dist.all_gather_into_tensor(gathered, data)

        if step % 5 == 4:
            until_direct(reduce_and_gather)
        else:
            for _ in range(draw.choice((1, 2, 20))):
                reduce_and_gather()
        total = num_ranks * step + sum(range(num_ranks))
        wrong = (data != total).sum() + (gathered != total).sum()
        del data, gathered, reduce_and_gather
        if step % 7 == 6:
            kept.clear()
        torch.cuda.empty_cache()
        with case(step=step, count=count):
            assert int(wrong) == 0


@on("cuda")
def test_memory_is_given_back_and_its_addresses_come_again(ranks: RankPool) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown in a failure report
    # Ranks that share a GPU take turns on it, some milliseconds each.
    num_rounds = 150 if ranks.size <= torch.cuda.device_count() else 40
    ranks.run(_come_and_go, seed, num_rounds, timeout_s=180)


def _free_after_rounds(num_rounds: int) -> int:
    """Returns the free bytes of this GPU after all tensors used zero-copy have been freed on all ranks.

    Later calls unmap the memory of peers, when no kernel of theirs runs.
    """
    small = torch.zeros(MIB, dtype=torch.int64)
    for _ in range(num_rounds):
        data = torch.ones(32 * MIB, dtype=torch.int64)
        until_direct(dist.all_reduce, data)
        del data
        torch.cuda.empty_cache()
    meet()
    free, deadline = torch.cuda.mem_get_info()[0], time.monotonic() + 3
    while time.monotonic() < deadline:
        dist.all_reduce(small)
        torch.cuda.synchronize()
        time.sleep(0.01)
        free = max(free, torch.cuda.mem_get_info()[0])
    return free


@on("cuda")
def test_freed_memory_goes_back_to_the_gpu(two_ranks: RankPool) -> None:
    first = two_ranks.run(_free_after_rounds, 1)
    later = two_ranks.run(_free_after_rounds, 8)
    assert all(before - after < 64 * MIB for before, after in zip(first, later, strict=True)), (first, later)


HELD_BACK_S = 3


def _one_host_is_held_back(known: bool) -> float:
    """Returns how long a host takes to enqueue a hundred operations while the last rank's host does nothing."""
    dist.all_reduce(torch.zeros(MIB, dtype=torch.int64))
    tensors = [torch.zeros(2 * MIB, dtype=torch.int64) for _ in range(100)]
    if known:
        for data in tensors:
            until_direct(dist.all_reduce, data)
    return enqueue_beside_a_late_host(tensors, HELD_BACK_S)


@on("cuda")
@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
def test_no_host_waits_for_anothers_tensors(known: bool, ranks: RankPool) -> None:
    assert all(seconds < HELD_BACK_S / 2 for seconds in ranks.run(_one_host_is_held_back, known))


def _operations() -> None:
    for name in (*DIRECT, *BY_LINES):
        for num_bytes in (1 * MIB, 12 * MIB, DIRECT_BYTES):
            with case(name=name, bytes=num_bytes):
                work = exercise(name, num_bytes)
                for turn in range(4):
                    work.fill()
                    finish(work.launch(dist.group.WORLD, turn % 2 == 1))
                    assert work.count_wrong() == 0
                del work
                torch.cuda.empty_cache()


def _with_expandable_segments(folder: str, size: int) -> None:
    """Uses tensors of the allocator's other mode, which may span several allocations."""
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    dist.init_process_group(BACKEND, init_method=f"file://{folder}/store", rank=own_rank(), world_size=size)
    _operations()
    for num_elements in (2 * MIB, 6 * MIB, 20 * MIB):
        with case(elements=num_elements):
            data = torch.zeros(num_elements, dtype=torch.int64)
            until_direct(lambda: dist.all_reduce(data.fill_(own_rank() + 1)))  # noqa: B023 - called at once
            same_bits(data, torch.full_like(data, sum(range(1, size + 1))))
    dist.destroy_process_group()


@on("cuda")
@pytest.mark.parametrize("size", [2, 4])
def test_expandable_segments_are_reached_too(size: int, fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(size, meeting="none").run(_with_expandable_segments, str(tmp_path), size, timeout_s=180)


def _in_a_pool() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        work = exercise("all_gather", DIRECT_BYTES)
        data = torch.zeros(DIRECT_BYTES // 8, dtype=torch.int64)
    until_direct(work.launch, dist.group.WORLD, False)
    until_direct(dist.all_reduce, data)
    for step in range(5):
        work.fill()
        data.fill_(dist.get_rank() + step)
        before = num_zero_copy()
        finish(work.launch(dist.group.WORLD, True))
        dist.all_reduce(data)
        assert work.count_wrong() == 0
        same_bits(data, torch.full_like(data, sum(range(step, step + dist.get_world_size()))))
        assert num_zero_copy() == before + 2
    del work, data, pool
    gc.collect()
    torch.cuda.empty_cache()


@on("cuda")
def test_tensors_of_a_pool_are_reached_too(ranks: RankPool) -> None:
    for _ in range(3):
        ranks.run(_in_a_pool)


def _captured_first() -> None:
    """A graph is the first to use the tensors: they are mapped between its replays, which then find them."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(1))
    meet()
    step = torch.zeros((), dtype=torch.int64)
    wrong = torch.zeros((), dtype=torch.int64)
    data = torch.zeros(DIRECT_BYTES // 8, dtype=torch.int64)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        shares = torch.empty(DIRECT_BYTES // 8 * num_ranks, dtype=torch.int64)  # the graph's own memory
        data.copy_((step * num_ranks + rank).expand_as(data))
        dist.all_reduce(data)
        dist.all_gather_into_tensor(shares, data)
        total = step * num_ranks * num_ranks + sum(range(num_ranks))
        wrong += (data != total).sum() + (shares != total).sum()
        step += 1
    until_direct(graph.replay)
    before, replayed = num_zero_copy(), int(step)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert int(step) == replayed + 20
    assert int(wrong) == 0
    assert num_zero_copy() >= before + 20  # of two operations in each; the second may have been mapped later
    del shares
    graph.reset()
    torch.cuda.empty_cache()


@on("cuda")
@pytest.mark.parametrize("size", [2, 4])
def test_a_graph_may_be_the_first_to_use_its_tensors(size: int, fresh_ranks) -> None:
    fresh_ranks(size).run(_captured_first)


def _one_way(name: str) -> None:
    """From the first large operation on, one rank only sends, so no peer ever maps its tensors."""
    dist.all_reduce(torch.ones(1))
    meet()
    time.sleep(0.1)  # the cache thread, which has just connected the peers, sleeps after 20 ms
    check_direct(exercise(name, DIRECT_BYTES), num_turns=3)


@on("cuda")
@pytest.mark.parametrize("name", ["broadcast", "scatter", "gather"])
def test_a_rank_that_only_sends_maps_its_peers_tensors(name: str, fresh_ranks) -> None:
    fresh_ranks(2).run(_one_way, name)


# Memory pools of the driver, which a peer cannot map.
UNREACHABLE = ("env", "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync")


@on("cuda")
@pytest.mark.parametrize("unreachable", [0, 1], ids=["first", "last"])
@pytest.mark.parametrize("size", [2, 3])
def test_one_ranks_tensors_cannot_be_reached(device: str, size: int, unreachable: int, tmp_path: Path) -> None:
    """One rank maps all its peers' tensors, and they cannot map its own: all decide alike, and none waits."""
    prefixes: list[Sequence[str]] = [()] * size
    prefixes[unreachable * (size - 1)] = UNREACHABLE
    for ended in run_ranks("uses_large_tensors", size, tmp_path / "store", timeout_s=180, prefixes=prefixes):
        assert ended.code == 0, ended.errors
        assert "\n0 directly" in f"\n{ended.output}"
