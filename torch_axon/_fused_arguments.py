"""Arguments of the fused products: what they may be, and their way to the operators' matrices and back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch.distributed as dist
from torch import Tensor


class Rows:
    """A tensor as a matrix whose outermost dimension is the one gathered or scattered, and such a matrix's way back."""

    def __init__(self, x: Tensor, dim: int) -> None:
        moved = x.movedim(dim, 0) if dim else x
        self._dim = dim
        self._middle = moved.shape[1:-1]
        self._rows_each = prod(self._middle)
        self.matrix = moved.reshape(moved.shape[0] * self._rows_each, moved.shape[-1]) if self._middle else x

    def counts(self, shares: Sequence[int]) -> list[int]:
        """Rows of every rank."""
        return [share * self._rows_each for share in shares]

    def restore(self, matrix: Tensor, extent: int) -> Tensor:
        if not self._middle:
            return matrix
        restored = matrix.view(extent, *self._middle, matrix.shape[-1])
        return restored.movedim(0, self._dim) if self._dim else restored


def dimension(what: str, dim: int, x: Tensor) -> int:
    if x.ndim < 2:
        raise ValueError(f"{what} of a tensor of shape {list(x.shape)}; allowed: tensors of 2 dimensions or more")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"{what} is {dim}; allowed: {-x.ndim} to {x.ndim - 1}")
    return dim % x.ndim


def rows_dimension(what: str, dim: int, x: Tensor) -> int:
    positive = dimension(what, dim, x)
    if positive == x.ndim - 1:
        raise ValueError(f"{what} is {dim}, the one that is multiplied; allowed: any other")
    return positive


def as_lists(
    operator: str, weights: Tensor | Sequence[Tensor], biases: Tensor | Sequence[Tensor | None] | None
) -> tuple[list[Tensor], list[Tensor | None]]:
    several = [weights] if isinstance(weights, Tensor) else list(weights)
    if not several:
        raise ValueError(f"{operator}: weights is empty; allowed: a tensor, or a sequence of one or more")
    if biases is None:
        return several, [None] * len(several)
    addends: list[Tensor | None] = [biases] if isinstance(biases, Tensor) else list(biases)
    if len(addends) != len(several):
        raise ValueError(f"{operator}: {len(addends)} biases for {len(several)} weights; allowed: one each, or None")
    return several, addends


def shares_of_shards(operator: str, own: int, sizes: Sequence[int] | None, group: dist.ProcessGroup) -> list[int]:
    """What each rank contributes, given what this one does."""
    if sizes is None:
        return [own] * group.size()
    _check_number(operator, sizes, group)
    if sizes[group.rank()] != own:
        raise ValueError(f"{operator}: sizes[{group.rank()}] is {sizes[group.rank()]}, but this rank's shard has {own}")
    return list(sizes)


def shares_of_whole(operator: str, whole: int, sizes: Sequence[int] | None, group: dist.ProcessGroup) -> list[int]:
    """What each rank gets of `whole`."""
    if sizes is None:
        if whole % group.size():
            raise ValueError(f"{operator}: {whole} cannot be shared evenly by {group.size()} ranks; give sizes=")
        return [whole // group.size()] * group.size()
    _check_number(operator, sizes, group)
    if sum(sizes) != whole:
        raise ValueError(f"{operator}: sizes {list(sizes)} sum to {sum(sizes)}; allowed: {whole}, what is scattered")
    return list(sizes)


def _check_number(operator: str, sizes: Sequence[int], group: dist.ProcessGroup) -> None:
    if len(sizes) != group.size():
        raise ValueError(f"{operator}: {len(sizes)} sizes for {group.size()} ranks; allowed: one each")
