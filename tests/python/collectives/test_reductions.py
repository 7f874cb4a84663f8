"""all_reduce, reduce and reduce_scatter in all their forms, against NumPy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from support.devices import on_every_path
from support.pool import RankPool
from support.reference import (
    FLOATING,
    LARGE,
    LAYOUTS,
    REDUCTIONS,
    SIZES,
    as_bytes,
    case,
    contribution,
    dense,
    finish,
    garbage,
    reduced,
    same_bits,
    values,
)

pytestmark = on_every_path


def _cases() -> Iterator[tuple[str, torch.dtype, int]]:
    """Tests every reduction of every type; every size for some; the large size for a few."""
    for name, (_, dtypes) in REDUCTIONS.items():
        for dtype in dtypes:
            yield name, dtype, 37
    for size in SIZES:
        for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.complex128):
            yield "SUM", dtype, size
    for name, dtype in (("SUM", torch.float32), ("SUM", torch.float16), ("MAX", torch.int64), ("AVG", torch.float64)):
        yield name, dtype, LARGE


def _check(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    if name == "AVG" and (actual.is_floating_point() or actual.is_complex()):
        torch.testing.assert_close(actual, expected)  # rounds once, or twice
    else:
        same_bits(actual, expected)


def _expected(name: str, dtype: torch.dtype, size: int, seed: int = 0) -> torch.Tensor:
    return reduced(name, [values(rank, size, dtype, seed) for rank in range(dist.get_world_size())], dtype)


def _all_reduce() -> None:
    for index, (name, dtype, size) in enumerate(_cases()):
        with case(op=name, dtype=dtype, size=size):
            data = contribution(dist.get_rank(), size, dtype)
            finish(dist.all_reduce(data, REDUCTIONS[name][0], async_op=index % 2 == 1))
            _check(name, data, _expected(name, dtype, size))


def test_all_reduce(ranks: RankPool) -> None:
    ranks.run(_all_reduce)


def _reduce() -> None:
    for index, (name, dtype, size) in enumerate(_cases()):
        root = index % dist.get_world_size()
        with case(op=name, dtype=dtype, size=size, root=root):
            data = contribution(dist.get_rank(), size, dtype)
            finish(dist.reduce(data, root, REDUCTIONS[name][0], async_op=index % 2 == 1))
            if dist.get_rank() == root:
                _check(name, data, _expected(name, dtype, size))


def test_reduce(ranks: RankPool) -> None:
    ranks.run(_reduce)


def _reduce_scatter_tensor() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for index, (name, dtype, size) in enumerate(_cases()):
        with case(op=name, dtype=dtype, size=size):
            output = garbage(size, dtype)
            source = contribution(rank, size * num_ranks, dtype)
            finish(dist.reduce_scatter_tensor(output, source, REDUCTIONS[name][0], async_op=index % 2 == 1))
            _check(name, output, _expected(name, dtype, size * num_ranks)[rank * size : (rank + 1) * size])
            same_bits(source, contribution(rank, size * num_ranks, dtype))


def test_reduce_scatter_tensor(ranks: RankPool) -> None:
    ranks.run(_reduce_scatter_tensor)


def _reduce_scatter_list() -> None:
    """Shard r has r more elements than shard 0 where `uneven`."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for index, (name, dtype, size) in enumerate(_cases()):
        for uneven in (0, 3):
            with case(op=name, dtype=dtype, size=size, uneven=uneven):
                blocks = [contribution(rank, size + uneven * to, dtype, seed=to) for to in range(num_ranks)]
                output = garbage(size + uneven * rank, dtype)
                finish(dist.reduce_scatter(output, blocks, REDUCTIONS[name][0], async_op=index % 2 == 1))
                _check(name, output, _expected(name, dtype, size + uneven * rank, seed=rank))


def test_reduce_scatter_lists_even_and_uneven(ranks: RankPool) -> None:
    ranks.run(_reduce_scatter_list)


def _premul_sum() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for dtype in FLOATING:
        for factor in (0.5, torch.tensor([2.0], dtype=dtype)):
            operation = dist._make_nccl_premul_sum(factor)
            expected = _expected("SUM", dtype, 1000 * num_ranks) * float(factor)
            with case(dtype=dtype, factor=factor):
                data = contribution(rank, 1000 * num_ranks, dtype)
                dist.all_reduce(data, operation)
                same_bits(data, expected)
                output = garbage(1000, dtype)
                dist.reduce_scatter_tensor(output, contribution(rank, 1000 * num_ranks, dtype), operation)
                same_bits(output, expected[rank * 1000 : (rank + 1) * 1000])


def test_premul_sum_scales_before_it_sums(ranks: RankPool) -> None:
    ranks.run(_premul_sum)


def _layouts() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for name, lay_out in LAYOUTS.items():
        for rows in (0, 3, 300):
            expected = _expected("SUM", torch.float32, rows * 8 * num_ranks).view(rows * num_ranks, 8)
            mine = contribution(rank, rows * 8 * num_ranks, torch.float32).view(rows * num_ranks, 8)
            with case(layout=name, rows=rows):
                data = lay_out(mine)
                dist.all_reduce(data)
                same_bits(data, expected)
                data = lay_out(mine)
                dist.reduce(data, 0)
                same_bits(data, expected if rank == 0 else data)
                output = lay_out(torch.zeros(rows, 8))
                dist.reduce_scatter(
                    output, [lay_out(block) for block in mine.chunk(num_ranks)] if rows else [output] * num_ranks
                )
                same_bits(output, expected[rank * rows : (rank + 1) * rows])


def test_reductions_of_any_layout(ranks: RankPool) -> None:
    ranks.run(_layouts)


def _gaps_stay() -> None:
    wide = torch.full((2000,), 7.0)
    wide[::2] = 1
    dist.all_reduce(wide[::2])
    same_bits(wide[1::2], torch.full((1000,), 7.0))
    same_bits(wide[::2], torch.full((1000,), float(dist.get_world_size())))


def test_all_reduce_leaves_the_gaps_of_a_strided_tensor_alone(two_ranks: RankPool) -> None:
    two_ranks.run(_gaps_stay)


def _random_results() -> list[str]:
    digests = []
    for dtype in FLOATING:
        for size in (1, 7, 1000, 4097, 100_003, LARGE):
            generator = torch.Generator().manual_seed(1000 * size + dist.get_rank())
            data = torch.randn(size, generator=generator, device="cpu").to(torch.get_default_device(), dtype)
            dist.all_reduce(data)
            digests.append(hashlib.sha256(as_bytes(data)).hexdigest())
    return digests


def test_all_reduce_of_random_floats_is_bitwise_the_same_on_all_ranks(ranks: RankPool) -> None:
    results = ranks.run(_random_results)
    assert all(result == results[0] for result in results)


def test_all_reduce_of_random_floats_is_bitwise_the_same_in_every_run(four_ranks: RankPool) -> None:
    assert four_ranks.run(_random_results) == four_ranks.run(_random_results)


def _coalesced() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    sizes = (1, 0, 1000, 70_000)
    tensors = [contribution(rank, size, torch.float32) for size in sizes]
    finish(dist.all_reduce_coalesced(tensors, async_op=True))
    for size, data in zip(sizes, tensors, strict=True):
        same_bits(data, _expected("SUM", torch.float32, size))
    for device in (None, torch.get_default_device()):
        with case(device=device):
            tensors = [contribution(rank, size, torch.int32) for size in sizes]
            with dist._coalescing_manager(device=device, async_ops=True) as manager:
                for data in tensors:
                    dist.all_reduce(data)
            manager.wait()
            for size, data in zip(sizes, tensors, strict=True):
                same_bits(data, _expected("SUM", torch.int32, size))
            outputs = [torch.zeros(size, dtype=torch.int32) for size in sizes]
            sources = [contribution(rank, size * num_ranks, torch.int32) for size in sizes]
            with dist._coalescing_manager(device=device, async_ops=True) as manager:
                for output, source in zip(outputs, sources, strict=True):
                    dist.reduce_scatter_tensor(output, source)
            manager.wait()
            for size, output in zip(sizes, outputs, strict=True):
                same_bits(output, _expected("SUM", torch.int32, size * num_ranks)[rank * size : (rank + 1) * size])


def test_coalesced_reductions(ranks: RankPool) -> None:
    ranks.run(_coalesced)


def _fail_amid_coalesced(data: torch.Tensor, device: torch.device | None) -> None:
    with dist._coalescing_manager(device=device):
        dist.all_reduce(data)
        raise ZeroDivisionError


def _error_amid_coalesced() -> None:
    """Calls gathered before the error are dropped; later calls run."""
    rank = dist.get_rank()
    for device in (None, torch.get_default_device()):
        with case(device=device):
            forgotten, data, coalesced = (contribution(rank, 1000, torch.float32) for _ in range(3))
            with pytest.raises(ZeroDivisionError):
                _fail_amid_coalesced(forgotten, device)
            dist.all_reduce(data)
            with dist._coalescing_manager(device=device):
                dist.all_reduce(coalesced)
            same_bits(forgotten, contribution(rank, 1000, torch.float32))
            for reduced in (data, coalesced):
                same_bits(reduced, _expected("SUM", torch.float32, 1000))


def test_a_group_goes_on_after_an_error_amid_coalesced_calls(ranks: RankPool) -> None:
    ranks.run(_error_amid_coalesced)


def _sparse() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    indices = torch.tensor([[rank, 5]])
    data = torch.sparse_coo_tensor(indices, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (8, 2))
    dist.all_reduce(data)
    expected = torch.zeros(8, 2)
    for other in range(num_ranks):
        expected[other] += torch.tensor([1.0, 2.0])
        expected[5] += torch.tensor([3.0, 4.0])
    same_bits(data.to_dense(), expected)


def test_all_reduce_of_sparse_tensors(ranks: RankPool) -> None:
    ranks.run(_sparse)


def _in_flight_together() -> None:
    tensors = [contribution(dist.get_rank(), size, torch.int64, seed=size) for size in range(1, 200)]
    works = [dist.all_reduce(data, async_op=True) for data in tensors]
    for work in reversed(works):
        work.wait()
    for size, data in enumerate(tensors, start=1):
        same_bits(data, _expected("SUM", torch.int64, size, seed=size))


def test_many_all_reduces_in_flight_waited_for_backwards(ranks: RankPool) -> None:
    ranks.run(_in_flight_together)


def _alone() -> None:
    for name, (operation, dtypes) in REDUCTIONS.items():
        for dtype in dtypes:
            with case(op=name, dtype=dtype):
                data = contribution(0, 100, dtype)
                dist.all_reduce(data, operation)
                same_bits(data, contribution(0, 100, dtype))
                output = dense(data)
                dist.reduce_scatter_tensor(output, data, operation)
                same_bits(output, data)


def test_reductions_over_one_rank_change_nothing(one_rank: RankPool) -> None:
    one_rank.run(_alone)
