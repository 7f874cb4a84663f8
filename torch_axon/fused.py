"""Matrix products that hide their communication: what a tensor-parallel layer does before and after it.

    gathered, (q, k, v) = all_gather_matmul(x_shard, [w_q, w_k, w_v], gather_dim=1)
    y_shard = matmul_reduce_scatter(attention, w_o, scatter_dim=1)

Plain tensors go in and come out; the group must be one of the backend "axon". Like every collective, all ranks of the
group make the same calls in the same order. Gradients flow, and the backward pass hides its collectives in the same
way. The operators below, on matrices alone, are `torch.ops.axon.*`. See docs/fused.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import overload

import torch
import torch.distributed as dist
from torch import Tensor

import torch_axon._fused_operators  # noqa: F401 - completes torch.ops.axon

__all__ = ["all_gather_matmul", "matmul_reduce_scatter"]


@overload
def all_gather_matmul(
    x_shard: Tensor,
    weights: Tensor,
    *,
    biases: Tensor | None = None,
    gather_dim: int = 0,
    sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    return_gathered: bool = True,
) -> tuple[Tensor | None, Tensor]: ...


@overload
def all_gather_matmul(
    x_shard: Tensor,
    weights: Sequence[Tensor],
    *,
    biases: Sequence[Tensor | None] | None = None,
    gather_dim: int = 0,
    sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    return_gathered: bool = True,
) -> tuple[Tensor | None, list[Tensor]]: ...


def all_gather_matmul(
    x_shard: Tensor,
    weights: Tensor | Sequence[Tensor],
    *,
    biases: Tensor | Sequence[Tensor | None] | None = None,
    gather_dim: int = 0,
    sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    return_gathered: bool = True,
) -> tuple[Tensor | None, Tensor | list[Tensor]]:
    """All ranks' shards, concatenated along `gather_dim`, times one or several weights of this rank.

    x_shard: [..., k], at least 2-d. weights: [k, n] each, any strides; biases: [n] each.
    sizes: what each rank holds along `gather_dim`; needed where they differ.
    Returns the gathered input, or None without `return_gathered`, and the products [..., n]: one for a tensor, a list
    for a sequence. With `return_gathered` the backward pass keeps and uses it; without, it keeps the shard and gathers
    again. Overlapped along every dimension but the last, which is gathered first.
    """
    group = group or dist.distributed_c10d._get_default_group()
    dim = _dimension("all_gather_matmul: gather_dim", gather_dim, x_shard)
    shares = _shares_of_shards("all_gather_matmul", x_shard.shape[dim], sizes, group)
    several, addends = _as_lists("all_gather_matmul", weights, biases)
    if dim == x_shard.ndim - 1:
        whole = _gather_columns(x_shard, shares, group)
        gathered = whole if return_gathered else None
        outputs = [_linear(whole, weight, bias) for weight, bias in zip(several, addends, strict=True)]
    else:
        rows = _Rows(x_shard, dim)
        gathered_rows, products = torch.ops.axon.all_gather_matmul(
            rows.matrix, several, addends, rows.counts(shares), group.group_name, return_gathered
        )
        gathered = rows.restore(gathered_rows, sum(shares)) if return_gathered else None
        outputs = [rows.restore(product, sum(shares)) for product in products]
    return gathered, outputs[0] if isinstance(weights, Tensor) else outputs


def matmul_reduce_scatter(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    reduce_op: str = "sum",
    scatter_dim: int = 0,
    sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """The sum (or "avg") over all ranks of `x @ weight`, of which each rank gets its part along `scatter_dim`.

    x: [..., k], at least 2-d. weight: [k, n], any strides; bias: [n], added once, to the reduced product.
    sizes: what each rank gets along `scatter_dim`; needed where that does not divide evenly.
    """
    group = group or dist.distributed_c10d._get_default_group()
    dim = _dimension("matmul_reduce_scatter: scatter_dim", scatter_dim, x)
    if dim == x.ndim - 1:
        shares = _shares_of_whole("matmul_reduce_scatter", weight.shape[1], sizes, group)
        # The product's transpose is scattered along its rows.
        columns = x.flatten(0, -2).t()
        product = torch.ops.axon.matmul_reduce_scatter(weight.t(), columns, None, shares, reduce_op, group.group_name)
        output: Tensor = product.t().reshape(*x.shape[:-1], product.shape[0])
        return output if bias is None else output + torch.split(bias, shares)[group.rank()]
    shares = _shares_of_whole("matmul_reduce_scatter", x.shape[dim], sizes, group)
    rows = _Rows(x, dim)
    product = torch.ops.axon.matmul_reduce_scatter(
        rows.matrix, weight, bias, rows.counts(shares), reduce_op, group.group_name
    )
    return rows.restore(product, shares[group.rank()])


class _Rows:
    """A tensor as a matrix whose outermost dimension is the one gathered or scattered, and such a matrix's way back."""

    def __init__(self, x: Tensor, dim: int) -> None:
        moved = x.movedim(dim, 0)
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
        return matrix.view(extent, *self._middle, matrix.shape[-1]).movedim(0, self._dim)


def _gather_columns(x: Tensor, shares: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    columns = x.flatten(0, -2).t()
    nothing = columns.new_empty(columns.shape[1], 0)
    gathered, _ = torch.ops.axon.all_gather_matmul(columns, [nothing], [None], shares, group.group_name, True)
    whole: Tensor = gathered.t().reshape(*x.shape[:-1], sum(shares))
    return whole


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x @ weight
    return product if bias is None else product + bias


def _dimension(what: str, dim: int, x: Tensor) -> int:
    if x.ndim < 2:
        raise ValueError(f"{what} of a tensor of shape {list(x.shape)}; allowed: tensors of 2 dimensions or more")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"{what} is {dim}; allowed: {-x.ndim} to {x.ndim - 1}")
    return dim % x.ndim


def _as_lists(
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


def _shares_of_shards(operator: str, own: int, sizes: Sequence[int] | None, group: dist.ProcessGroup) -> list[int]:
    """What each rank contributes, given what this one does."""
    if sizes is None:
        return [own] * group.size()
    _check_number(operator, sizes, group)
    if sizes[group.rank()] != own:
        raise ValueError(f"{operator}: sizes[{group.rank()}] is {sizes[group.rank()]}, but this rank's shard has {own}")
    return list(sizes)


def _shares_of_whole(operator: str, whole: int, sizes: Sequence[int] | None, group: dist.ProcessGroup) -> list[int]:
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
