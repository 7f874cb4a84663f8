"""The functional collectives that tests/python/clients/test_training.py lacks, eager, native and compiled.

torch's wheel lacks upstream's own tests of them, test_c10d_functional_native.py. These tests cover the same: all_gather
and reduce_scatter of several tensors at once, uneven splits of all_to_all, gradients.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.reference import case, same_bits


def _of(rank: int, num_rows: int, num_columns: int = 3) -> torch.Tensor:
    """Returns small integers, whose sums are exact, and which identify rank, row and column."""
    return torch.arange(float(num_rows * num_columns)).reshape(num_rows, num_columns) + 100 * rank


def _num_rows(sender: int, receiver: int) -> int:
    """Returns the row counts of an uneven all_to_all; some pairs exchange nothing."""
    return (sender + 2 * receiver) % 4


def _gather_coalesced() -> None:
    num_ranks, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        with case(dtype=dtype):
            mine = [_of(rank, num_rows).to(dtype) for num_rows in (1, 4, 2)]
            expected = [
                torch.cat([_of(other, num_rows).to(dtype) for other in range(num_ranks)]) for num_rows in (1, 4, 2)
            ]
            gathered = funcol.all_gather_into_tensor_coalesced(mine, group)
            native = torch.ops._c10d_functional.all_gather_into_tensor_coalesced(mine, num_ranks, group.group_name)
            for got, also, whole in zip(gathered, native, expected, strict=True):
                same_bits(got.wait(), whole)
                same_bits(torch.ops._c10d_functional.wait_tensor(also), whole)


@on_cpu_and_gpu
def test_all_gather_into_tensor_coalesced_joins_each_tensor_by_rank(ranks: RankPool) -> None:
    ranks.run(_gather_coalesced)


def _reduce_scatter_coalesced() -> None:
    num_ranks, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD
    for operation in ("sum", "avg", "max"):
        with case(operation=operation):
            inputs = [_of(rank, num_ranks * num_rows) for num_rows in (1, 3)]
            everyone = [
                torch.stack([_of(other, num_ranks * num_rows) for other in range(num_ranks)]) for num_rows in (1, 3)
            ]
            reduce = {"sum": lambda all: all.sum(0), "avg": lambda all: all.mean(0), "max": lambda all: all.amax(0)}
            expected = [reduce[operation](all).chunk(num_ranks)[rank] for all in everyone]
            scattered = funcol.reduce_scatter_tensor_coalesced(inputs, operation, [0, 0], group)
            native = torch.ops._c10d_functional.reduce_scatter_tensor_coalesced(
                inputs, operation, num_ranks, group.group_name
            )
            for got, also, share in zip(scattered, native, expected, strict=True):
                same_bits(got.wait(), share)
                same_bits(torch.ops._c10d_functional.wait_tensor(also), share)


@on_cpu_and_gpu
def test_reduce_scatter_tensor_coalesced_leaves_each_rank_its_share(ranks: RankPool) -> None:
    ranks.run(_reduce_scatter_coalesced)


def _reduce_scatter_coalesced_by_column() -> None:
    """funcol itself copies tensors that are scattered along another dimension."""
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    inputs = [_of(rank, 2, 2 * num_ranks), _of(rank, num_ranks)]
    expected = [
        sum(_of(other, 2, 2 * num_ranks) for other in range(num_ranks)).chunk(num_ranks, 1)[rank],
        sum(_of(other, num_ranks) for other in range(num_ranks)).chunk(num_ranks, 0)[rank],
    ]
    scattered = funcol.reduce_scatter_tensor_coalesced(inputs, "sum", [1, 0], dist.group.WORLD)
    for got, share in zip(scattered, expected, strict=True):
        same_bits(got.wait(), share.contiguous())


@on_cpu_and_gpu
def test_reduce_scatter_tensor_coalesced_along_each_tensors_dimension(ranks: RankPool) -> None:
    ranks.run(_reduce_scatter_coalesced_by_column)


def _uneven() -> tuple[torch.Tensor, list[int], list[int], torch.Tensor]:
    """Returns the input, the rows to each rank, the rows from each rank, and the expected output."""
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    sent = [_num_rows(rank, other) for other in range(num_ranks)]
    received = [_num_rows(other, rank) for other in range(num_ranks)]
    parts = [
        _of(other, sum(_num_rows(other, each) for each in range(num_ranks))).split(
            [_num_rows(other, each) for each in range(num_ranks)]
        )[rank]
        for other in range(num_ranks)
    ]
    return _of(rank, sum(sent)), received, sent, torch.cat(parts)


def _all_to_all() -> None:
    group = dist.group.WORLD
    data, received, sent, expected = _uneven()
    same_bits(funcol.all_to_all_single(data, received, sent, group).wait(), expected)
    native = torch.ops._c10d_functional.all_to_all_single(data, received, sent, group.group_name)
    same_bits(torch.ops._c10d_functional.wait_tensor(native), expected)


@on_cpu_and_gpu
def test_all_to_all_single_with_uneven_splits(ranks: RankPool) -> None:
    ranks.run(_all_to_all)


def _all_to_all_gradient() -> None:
    """The gradient takes the data's way back, with the splits exchanged."""
    data, received, sent, expected = _uneven()
    data.requires_grad_()
    output = funcol.all_to_all_single_autograd(data, received, sent, dist.group.WORLD)
    same_bits((output + 0).detach(), expected)
    (output * output).sum().backward()
    assert data.grad is not None
    same_bits(data.grad, 2 * data.detach())


@on_cpu_and_gpu
def test_gradients_go_back_over_uneven_splits(ranks: RankPool) -> None:
    ranks.run(_all_to_all_gradient)


def _compiled() -> None:
    group = dist.group.WORLD
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    data, received, sent, expected = _uneven()

    def function(rows: torch.Tensor, data: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = funcol.all_gather_into_tensor_coalesced([rows, rows * 2], group)
        third, fourth = funcol.reduce_scatter_tensor_coalesced([first + 0, second + 0], "sum", [0, 0], group)
        return third + 1, fourth + 1, funcol.all_to_all_single(data, received, sent, group) * 2

    rows = _of(rank, 2)
    total = num_ranks * rows
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for outputs in (function(rows, data), compiled(rows, data)):
        for output, whole in zip(outputs, (total + 1, 2 * total + 1, 2 * expected), strict=True):
            same_bits(output, whole)


@on_cpu_and_gpu
def test_compiled_coalesced_collectives_and_uneven_splits(two_ranks: RankPool) -> None:
    two_ranks.run(_compiled, timeout_s=180)
