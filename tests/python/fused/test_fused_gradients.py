"""Gradients of the fused products: of complex factors, their layout, and gradients of gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.products import factor, uneven
from support.reference import case, failure
from torch_axon import all_gather_matmul, matmul_reduce_scatter

pytestmark = on_cpu_and_gpu


def _complex(shape: Sequence[int], rank: int, seed: int) -> Tensor:
    return torch.complex(factor(shape, rank, seed), factor(shape, rank, seed + 100)).requires_grad_()


def _own(leaves: Sequence[Tensor]) -> list[Tensor]:
    return [leaf.detach().clone().requires_grad_() for leaf in leaves]


def _loss(results: Sequence[Tensor], rank: int) -> Tensor:
    """Returns a real loss that depends on both parts of each result."""
    return torch.stack([(result * _complex(result.shape, rank, 50).detach()).real.sum() for result in results]).sum()


def _compare(own: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    for mine, leaf in zip(own, leaves, strict=True):
        torch.testing.assert_close(mine.grad, leaf.grad, atol=1e-12, rtol=1e-12)


def _gather(sizes: list[int], dim: int, widths: Sequence[int], return_gathered: bool) -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    depth = 6 if dim == 0 else sum(sizes)
    leaves = [
        [
            _complex((size, depth) if dim == 0 else (4, size), each, 1),
            *(_complex((depth, width), each, 2 + width) for width in widths),
        ]
        for each, size in enumerate(sizes)
    ]
    own = _own(leaves[rank])
    gathered, outputs = all_gather_matmul(own[0], own[1:], gather_dim=dim, sizes=sizes, return_gathered=return_gathered)
    _loss([*outputs, *([gathered] if gathered is not None else [])], rank).backward()
    whole = torch.cat([shard for shard, *_ in leaves], dim)
    results = [[whole @ weight for weight in weights] + [whole] * return_gathered for _, *weights in leaves]
    torch.stack([_loss(results[each], each) for each in range(num_ranks)]).sum().backward()
    _compare(own, leaves[rank])


def _scatter(sizes: list[int], dim: int) -> None:
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    rows, width = (sum(sizes), 5) if dim == 0 else (4, sum(sizes))
    leaves = [[_complex((rows, 6), each, 1), _complex((6, width), each, 2)] for each in ranks]
    own = _own(leaves[rank])
    _loss([matmul_reduce_scatter(*own, scatter_dim=dim, sizes=sizes)], rank).backward()
    parts = torch.stack([x @ weight for x, weight in leaves]).sum(0).split(sizes, dim)
    torch.stack([_loss([parts[each]], each) for each in ranks]).sum().backward()
    _compare(own, leaves[rank])


def _complex_factors() -> None:
    num_ranks = dist.get_world_size()
    for sizes in ([4] * num_ranks, uneven(num_ranks)):
        for dim in (0, 1):
            for widths in ((5,), (5, 8)):
                for return_gathered in (True, False):
                    with case(sizes=sizes, dim=dim, widths=widths, return_gathered=return_gathered):
                        _gather(sizes, dim, widths, return_gathered)
            with case(sizes=sizes, dim=dim):
                _scatter(sizes, dim)


def test_complex_factors_are_conjugated(two_ranks: RankPool) -> None:
    two_ranks.run(_complex_factors)


def _layouts() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for weight in (factor((6, 5), rank), factor((5, 6), rank).t()):
        own = weight.detach().requires_grad_()
        assert own.stride() == weight.stride()
        _, gathered = all_gather_matmul(factor((4, 6), rank), own)
        scattered = matmul_reduce_scatter(factor((2 * num_ranks, 6), rank), own)
        for result in (gathered, scattered):
            (gradient,) = torch.autograd.grad(result.sum(), own)
            assert gradient.stride() == own.stride()


def test_gradients_of_weights_are_laid_out_as_they_are(two_ranks: RankPool) -> None:
    two_ranks.run(_layouts)


def _second_gradients() -> list[str]:
    num_ranks = dist.get_world_size()
    messages = []
    for widths in ((5,), (5, 8)):
        for return_gathered in (True, False):
            own = [factor(shape, dist.get_rank()).requires_grad_() for shape in ((4, 6), *((6, w) for w in widths))]
            _, outputs = all_gather_matmul(own[0], own[1:], return_gathered=return_gathered)
            messages.append(_failure_of_second(outputs, own))
    own = [factor(shape, dist.get_rank()).requires_grad_() for shape in ((2 * num_ranks, 6), (6, 5))]
    return [*messages, _failure_of_second([matmul_reduce_scatter(own[0], own[1])], own)]


def _failure_of_second(outputs: Sequence[Tensor], own: Sequence[Tensor]) -> str:
    cubes = torch.stack([output.pow(3).sum() for output in outputs]).sum()
    gradients = torch.autograd.grad(cubes, own, create_graph=True)
    return failure(lambda: gradients[0].sum().backward())


def test_gradients_of_gradients_are_refused(two_ranks: RankPool) -> None:
    for messages in two_ranks.run(_second_gradients):
        assert all("once_differentiable" in message for message in messages)
