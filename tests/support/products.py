"""Expected results of fused products, in float64 from the contributions of all ranks. Gradients are torch's autograd.

Factors hold small integers, so that every sum is exact in every type and results compare bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from torch_axon import all_gather_matmul, matmul_reduce_scatter

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def factor(shape: Sequence[int], rank: int, seed: int = 0, one_in: int = 1) -> Tensor:
    """Returns -1, 0 and 1 in float64, the same on every rank. `one_in` makes ones rarer, to keep long sums small."""
    device = torch.get_default_device()
    generator = torch.Generator(device).manual_seed(1000 * seed + rank)
    drawn = torch.randint(3 * one_in, tuple(shape), generator=generator, device=device)
    return drawn.eq(0).double() - drawn.eq(1).double()


def uneven(num_ranks: int) -> list[int]:
    """Returns the weights' sizes; the first weight is empty."""
    return [3 * rank for rank in range(num_ranks)]


class Gathering:
    """One all_gather_matmul of several weights: every rank's shards, weights and biases, as float64 leaves."""

    def __init__(self, shape: Sequence[int], dim: int, sizes: Sequence[int], widths: Sequence[int] = (5,)) -> None:
        self.dim, self.sizes = dim, list(sizes)
        ranks = range(dist.get_world_size())
        self.shards = [_leaf((*shape[:dim], sizes[rank], *shape[dim + 1 :]), rank, 1) for rank in ranks]
        columns = sum(sizes) if dim == len(shape) - 1 else shape[-1]
        self.weights = [[_leaf((columns, width), rank, 2 + i) for i, width in enumerate(widths)] for rank in ranks]
        self.biases = [[_leaf((width,), rank, 20 + i) for i, width in enumerate(widths)] for rank in ranks]

    def expected(self, rank: int) -> tuple[Tensor, list[Tensor]]:
        gathered = torch.cat(self.shards, self.dim)
        pairs = zip(self.weights[rank], self.biases[rank], strict=True)
        return gathered, [gathered @ weight + bias for weight, bias in pairs]

    def leaves(self, rank: int) -> list[Tensor]:
        return [self.shards[rank], *self.weights[rank], *self.biases[rank]]

    def own(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """This rank's shard, weights and biases, in another type and with gradients of their own."""
        return _own(self.leaves(dist.get_rank()), dtype)

    def fused(self, own: Sequence[Tensor], return_gathered: bool = True) -> tuple[Tensor | None, list[Tensor]]:
        num_weights = len(self.weights[0])
        return all_gather_matmul(
            own[0],
            own[1 : 1 + num_weights],
            biases=own[1 + num_weights :],
            gather_dim=self.dim,
            sizes=self.sizes,
            return_gathered=return_gathered,
        )


class Scattering:
    """One matmul_reduce_scatter with a bias: every rank's contributions, as float64 leaves."""

    def __init__(
        self, shape: Sequence[int], dim: int, sizes: Sequence[int], reduce_op: str = "sum", width: int = 5
    ) -> None:
        self.dim, self.sizes, self.reduce_op = dim, list(sizes), reduce_op
        ranks = range(dist.get_world_size())
        if dim == len(shape) - 1:
            width = sum(sizes)
        else:
            shape = (*shape[:dim], sum(sizes), *shape[dim + 1 :])
        self.inputs = [_leaf(shape, rank, 1) for rank in ranks]
        self.weights = [_leaf((shape[-1], width), rank, 2) for rank in ranks]
        self.biases = [_leaf((width,), rank, 3) for rank in ranks]

    def expected(self, rank: int) -> Tensor:
        product = torch.stack([x @ weight for x, weight in zip(self.inputs, self.weights, strict=True)]).sum(0)
        if self.reduce_op == "avg":
            product = product / dist.get_world_size()
        return (product + self.biases[rank]).split(self.sizes, self.dim)[rank]

    def leaves(self, rank: int) -> list[Tensor]:
        return [self.inputs[rank], self.weights[rank], self.biases[rank]]

    def own(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        return _own(self.leaves(dist.get_rank()), dtype)

    def fused(self, own: Sequence[Tensor]) -> Tensor:
        x, weight, bias = own
        return matmul_reduce_scatter(
            x, weight, bias=bias, reduce_op=self.reduce_op, scatter_dim=self.dim, sizes=self.sizes
        )


def check(actual: Tensor | None, expected: Tensor) -> None:
    """Checks equality after rounding the expected values to the type at hand."""
    assert actual is not None
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.detach(), expected.detach().to(actual.dtype), atol=0, rtol=0)


def cotangent(like: Tensor, rank: int, seed: int = 0) -> Tensor:
    """Returns the gradient of the loss with respect to a result of `rank`."""
    return factor(like.shape, rank, 50 + seed).to(like.dtype)


def loss(results: Sequence[Tensor], rank: int) -> Tensor:
    """Returns a loss that is linear in the results, so that its gradients are exact integers, too."""
    terms = [(result * cotangent(result, rank, seed)).sum() for seed, result in enumerate(results)]
    return torch.stack(terms).sum()


def _leaf(shape: Sequence[int], rank: int, seed: int) -> Tensor:
    return factor(shape, rank, seed).requires_grad_()


def _own(leaves: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
