"""Fused products of float8 factors: torch._scaled_mm of the gathered input, or the sum of its results."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.products import check, factor
from support.reference import case, failure
from torch_axon import scaled_all_gather_matmul, scaled_matmul_reduce_scatter

pytestmark = on_cpu_and_gpu

DEPTH = 64
TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def _weight(rank: int, width: int, seed: int = 1) -> Tensor:
    """Returns a weight transposed, as a Linear holds it and float8 products require it."""
    return factor((width, DEPTH), rank, seed).to(torch.float8_e4m3fn).t()


def _scale(rows: int, rank: int, row_wise: bool) -> Tensor:
    """Returns powers of two, which are exact: one for each row, or one for all."""
    if not row_wise:
        return torch.tensor(0.5)
    return 2.0 ** (torch.arange(rows, dtype=torch.float32) % 3 + rank)[:, None]


def _sizes() -> list[int]:
    return [16 * (rank + 1) for rank in range(dist.get_world_size())]


def _gather(row_wise: bool) -> None:
    for sizes in (_sizes(), [1, 15], [0, 16]):
        with case(sizes=sizes):
            _gather_shares(sizes, row_wise)


def _gather_shares(sizes: list[int], row_wise: bool) -> None:
    rank = dist.get_rank()
    for dtype in TYPES[:1] if row_wise else TYPES:
        with case(dtype=dtype):
            shards = [factor((size, DEPTH), other).to(dtype) for other, size in enumerate(sizes)]
            scales = [_scale(size, other, row_wise) for other, size in enumerate(sizes)]
            weights = [_weight(rank, width, width) for width in (32, 16)]
            weight_scales = [_scale(weight.shape[1], 0, row_wise).t() * 2 for weight in weights]
            gathered, outputs = scaled_all_gather_matmul(
                shards[rank], scales[rank], weights, weight_scales, sizes=sizes
            )
            assert gathered is not None
            check(gathered.double(), torch.cat(shards).double())
            scaled = torch.cat([shard.double() * scale for shard, scale in zip(shards, scales, strict=True)])
            for output, weight, scale in zip(outputs, weights, weight_scales, strict=True):
                assert output.dtype == torch.bfloat16
                check(output, scaled @ (weight.double() * scale))


def _scatter(row_wise: bool) -> None:
    rank, sizes = dist.get_rank(), _sizes()
    for reduce_op in ("sum", "avg"):
        with case(reduce_op=reduce_op):
            ranks = range(dist.get_world_size())
            inputs = [factor((sum(sizes), DEPTH), other).to(torch.float8_e4m3fn) for other in ranks]
            scales = [_scale(sum(sizes), other, row_wise) for other in ranks]
            weights = [_weight(other, 32) for other in ranks]
            scale = _scale(32, 0, row_wise).t()
            products = [
                (x.double() * scale_x) @ (weight.double() * scale)
                for x, scale_x, weight in zip(inputs, scales, weights, strict=True)
            ]
            own = (inputs[rank], scales[rank], weights[rank], scale)
            out_dtype = torch.bfloat16 if row_wise else torch.float32  # torch has no other for row-wise products
            output = scaled_matmul_reduce_scatter(*own, reduce_op=reduce_op, sizes=sizes, out_dtype=out_dtype)
            expected = torch.stack(products).sum(0) / (len(ranks) if reduce_op == "avg" else 1)
            check(output, expected.split(sizes)[rank])


def _row_wise(pool: RankPool, row_wise: bool) -> bool:
    if row_wise and pool.device == "cpu":
        pytest.skip("torch has no row-wise products of float8 factors on CPUs")
    return row_wise


_each_scaling = pytest.mark.parametrize("row_wise", [False, True], ids=["one_scale", "row_wise"])


@_each_scaling
def test_gathered_rows_are_multiplied(row_wise: bool, two_ranks: RankPool) -> None:
    two_ranks.run(_gather, _row_wise(two_ranks, row_wise))


@_each_scaling
def test_products_are_reduced_and_scattered(row_wise: bool, two_ranks: RankPool) -> None:
    two_ranks.run(_scatter, _row_wise(two_ranks, row_wise))


def _three_dimensions() -> None:
    """Gathers along the sequence, compiled."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    x, scale = factor((2, 16, DEPTH), rank).to(torch.float8_e4m3fn), torch.tensor(2.0)
    weight, back = _weight(rank, 32), factor((DEPTH, 32), rank).to(torch.float8_e4m3fn).t()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def layer(x: Tensor) -> tuple[Tensor, Tensor]:
        _, (product,) = scaled_all_gather_matmul(x, scale, [weight], [scale], gather_dim=1, return_gathered=False)
        small = product.sign().to(torch.float8_e4m3fn)
        return product, scaled_matmul_reduce_scatter(small, scale, back, scale, scatter_dim=1)

    product, output = layer(x)
    gathered = torch.cat([factor((2, 16, DEPTH), other) for other in range(num_ranks)], 1)
    check(product, 4 * gathered @ weight.double())
    assert output.shape == (2, 16, DEPTH)
    total = 4 * product.sign().double() @ back.double()
    dist.all_reduce(total)
    check(output, total.chunk(num_ranks, 1)[rank])


def test_sequences_are_gathered_and_scattered_in_a_compiled_graph(two_ranks: RankPool) -> None:
    two_ranks.run(_three_dimensions, timeout_s=120)


def _few_rows() -> None:
    """A scale for each row is one also where a rank has one row, or none. The weight is empty: CPUs gather, too."""
    rank = dist.get_rank()
    weight, scale = _weight(rank, 0), torch.ones(1, 0)
    for dim in (0, 1):
        for sizes in ([1, 15], [15, 1], [0, 16], [1, 1]):
            with case(dim=dim, sizes=sizes):
                shards = [factor((size, 1, DEPTH), each).to(torch.float8_e4m3fn) for each, size in enumerate(sizes)]
                x, scale_x = shards[rank], torch.ones(sizes[rank], 1, 1)
                gathered, _ = scaled_all_gather_matmul(
                    x.movedim(0, dim), scale_x.movedim(0, dim), [weight], [scale], gather_dim=dim, sizes=sizes
                )
                assert gathered is not None
                check(gathered.double(), torch.cat(shards).movedim(0, dim).double())


def test_a_scale_for_each_of_few_rows(two_ranks: RankPool) -> None:
    two_ranks.run(_few_rows)


def _other_scales() -> list[str]:
    x, weight = factor((16, DEPTH), 0).to(torch.float8_e4m3fn), _weight(0, 16)
    one, row_wise = torch.tensor(1.0), torch.ones(16, 1)
    return [
        failure(lambda: scaled_all_gather_matmul(x, torch.ones(1, 1), [weight], [one])),
        failure(lambda: scaled_all_gather_matmul(x, row_wise, [weight], [torch.ones(1, 1)])),
        failure(lambda: scaled_matmul_reduce_scatter(x, torch.ones(16), weight, one)),
    ]


def test_scales_are_of_rows_or_of_all(two_ranks: RankPool) -> None:
    for messages in two_ranks.run(_other_scales):
        for message, (name, shape) in zip(
            messages, (("scale_x", "[1, 1]"), ("scales[0]", "[1, 1]"), ("scale_x", "[16]")), strict=True
        ):
            assert f"'{name}' has shape {shape}" in message


def _last_dimension() -> list[str]:
    x, scale, weight = factor((16, DEPTH), 0).to(torch.float8_e4m3fn), torch.tensor(1.0), _weight(0, 16)
    return [
        failure(lambda: scaled_all_gather_matmul(x, scale, [weight], [scale], gather_dim=-1)),
        failure(lambda: scaled_matmul_reduce_scatter(x, scale, weight, scale, scatter_dim=1)),
    ]


def test_the_dimension_that_is_multiplied_is_refused(two_ranks: RankPool) -> None:
    for messages in two_ranks.run(_last_dimension):
        assert all("allowed: any other" in message for message in messages)


def _check_operators() -> None:
    """Checks fake kernel and tracing; torch's other checks compare inputs, which float8 does not support."""
    examine = partial(torch.library.opcheck, test_utils=("test_faketensor", "test_aot_dispatch_dynamic"))
    rank, name = dist.get_rank(), dist.distributed_c10d._get_default_group().group_name
    x, scale = factor((16, DEPTH), rank).to(TYPES[0]), _scale(16, rank, False)
    weights, sizes = [_weight(rank, width, width) for width in (32, 16)], [16] * dist.get_world_size()
    whole = factor((sum(sizes), DEPTH), rank).to(TYPES[0])
    for wanted in (False, True):
        examine(
            torch.ops.axon.scaled_all_gather_matmul.default,
            (x, scale, weights, [scale] * 2, [None] * 2, sizes, name, torch.bfloat16, False, wanted),
        )
    examine(
        torch.ops.axon.scaled_matmul_reduce_scatter.default,
        (whole, scale, weights[0], scale, None, sizes, "sum", name, torch.bfloat16, False),
    )


def test_torch_finds_no_fault_with_the_operators(two_ranks: RankPool) -> None:
    two_ranks.run(_check_operators, timeout_s=120)
