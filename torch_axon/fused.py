"""Matrix products that hide their communication: what a tensor-parallel layer does before and after it.

    gathered, (q, k, v) = all_gather_matmul(x_shard, [w_q, w_k, w_v], gather_dim=1)
    y_shard = matmul_reduce_scatter(attention, w_o, scatter_dim=1)

Plain tensors go in and come out; the group must be one of the backend "axon". Like every collective, all ranks of the
group make the same calls in the same order. Gradients flow, and the backward pass hides its collectives in the same
way. The operators below, on matrices alone, are `torch.ops.axon.*`. See docs/fused.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear

import torch_axon._fused_operators  # noqa: F401 - completes torch.ops.axon
from torch_axon import _native
from torch_axon._fused_arguments import (
    Rows,
    are_plain,
    as_lists,
    by_name,
    check_factors,
    check_forms,
    check_scales,
    check_types,
    dimension,
    fit,
    rows_dimension,
    shares_of_shards,
    shares_of_whole,
)
from torch_axon._fused_gradients import differentiably

_C = _native.load()

__all__ = ["all_gather_matmul", "matmul_reduce_scatter", "scaled_all_gather_matmul", "scaled_matmul_reduce_scatter"]


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
    again. Overlapped along every dimension but the last, which is gathered first, and kept whole in either case.
    """
    group = group or dist.distributed_c10d._get_default_group()
    several, addends = as_lists("all_gather_matmul", weights, biases)
    if gather_dim == 0 and sizes is None and are_plain(x_shard, *several, *addends):
        done = _C.all_gather_matmul(x_shard, several, addends, group.group_name, return_gathered)
        if done is not None:
            return done[0] if return_gathered else None, done[1][0] if isinstance(weights, Tensor) else done[1]
    named, named_addends = by_name("weights", weights, several), by_name("biases", weights, addends)
    check_forms("all_gather_matmul", {"x_shard": x_shard, **named, **named_addends})
    dim = dimension("all_gather_matmul: gather_dim", gather_dim, x_shard)
    shares = shares_of_shards("all_gather_matmul", x_shard.shape[dim], sizes, group)
    columns = dim == x_shard.ndim - 1
    depth = sum(shares) if columns else x_shard.shape[-1]
    if not fit(x_shard, depth, several, addends):
        check_factors("all_gather_matmul", x_shard, depth, named, named_addends)
        check_types("all_gather_matmul", x_shard, {**named, **named_addends})
    if columns:
        whole = _gather_columns(x_shard, shares, group)
        gathered = whole if return_gathered else None
        outputs = [linear(whole, weight.t(), bias) for weight, bias in zip(several, addends, strict=True)]
    else:
        rows = Rows(x_shard, dim)
        gathered_rows, products = differentiably(
            torch.ops.axon.all_gather_matmul.default,
            (rows.matrix, several, addends),
            (rows.counts(shares), group.group_name, return_gathered),
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
    if scatter_dim == 0 and sizes is None and are_plain(x, weight, bias):
        done: Tensor | None = _C.matmul_reduce_scatter(x, weight, bias, reduce_op, group.group_name)
        if done is not None:
            return done
    check_forms("matmul_reduce_scatter", {"x": x, "weight": weight, "bias": bias})
    dim = dimension("matmul_reduce_scatter: scatter_dim", scatter_dim, x)
    if not fit(x, x.shape[-1], [weight], [bias]):
        check_factors("matmul_reduce_scatter", x, x.shape[-1], {"weight": weight}, {"bias": bias})
        check_types("matmul_reduce_scatter", x, {"weight": weight, "bias": bias})
    if dim == x.ndim - 1:
        shares = shares_of_whole("matmul_reduce_scatter", weight.shape[1], sizes, group)
        # The product's transpose is scattered along its rows.
        columns = x.flatten(0, -2).t()
        product = torch.ops.axon.matmul_reduce_scatter(weight.t(), columns, None, shares, reduce_op, group.group_name)
        output: Tensor = product.t().reshape(*x.shape[:-1], product.shape[0])
        return output if bias is None else output + torch.split(bias, shares)[group.rank()].to(output.dtype)
    shares = shares_of_whole("matmul_reduce_scatter", x.shape[dim], sizes, group)
    rows = Rows(x, dim)
    product = differentiably(
        torch.ops.axon.matmul_reduce_scatter.default,
        (rows.matrix, weight, bias),
        (rows.counts(shares), reduce_op, group.group_name),
    )
    return rows.restore(product, shares[group.rank()])


def scaled_all_gather_matmul(
    x_shard: Tensor,
    scale_x: Tensor,
    weights: Sequence[Tensor],
    scales: Sequence[Tensor],
    *,
    biases: Sequence[Tensor | None] | None = None,
    gather_dim: int = 0,
    sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    use_fast_accum: bool = False,
    return_gathered: bool = True,
) -> tuple[Tensor | None, list[Tensor]]:
    """`all_gather_matmul` of float8 factors, as `torch._scaled_mm` takes them; without gradients.

    x_shard: [..., k], of which every dimension but the last may be gathered; weights: [k, n] each, transposed views.
    Scales are float32. scale_x: 0-d or [1], the same on all ranks, with scales of such shapes; or [..., 1], one for
    each row of x_shard, be it a single one, which is gathered along with it, with scales of [1, n] each.
    """
    group = group or dist.distributed_c10d._get_default_group()
    several, addends = as_lists("scaled_all_gather_matmul", weights, biases)
    named, named_addends = by_name("weights", weights, several), by_name("biases", weights, addends)
    named_scales = by_name("scales", scales, list(scales))
    check_forms(
        "scaled_all_gather_matmul",
        {"x_shard": x_shard, "scale_x": scale_x, **named, **named_scales, **named_addends},
    )
    dim = rows_dimension("scaled_all_gather_matmul: gather_dim", gather_dim, x_shard)
    shares = shares_of_shards("scaled_all_gather_matmul", x_shard.shape[dim], sizes, group)
    check_factors("scaled_all_gather_matmul", x_shard, x_shard.shape[-1], named, named_addends)
    check_scales("scaled_all_gather_matmul", x_shard, scale_x, named, named_scales)
    rows = Rows(x_shard, dim)
    gathered, products = torch.ops.axon.scaled_all_gather_matmul(
        rows.matrix,
        _as_column(scale_x, dim),
        several,
        list(scales),
        addends,
        rows.counts(shares),
        group.group_name,
        out_dtype,
        use_fast_accum,
        return_gathered,
    )
    outputs = [rows.restore(product, sum(shares)) for product in products]
    return rows.restore(gathered, sum(shares)) if return_gathered else None, outputs


def scaled_matmul_reduce_scatter(
    x: Tensor,
    scale_x: Tensor,
    weight: Tensor,
    scale: Tensor,
    *,
    bias: Tensor | None = None,
    reduce_op: str = "sum",
    scatter_dim: int = 0,
    sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    use_fast_accum: bool = False,
) -> Tensor:
    """`matmul_reduce_scatter` of float8 factors, scaled as in `scaled_all_gather_matmul`; without gradients.

    What the ranks exchange, and the result, are of `out_dtype`.
    """
    group = group or dist.distributed_c10d._get_default_group()
    check_forms(
        "scaled_matmul_reduce_scatter",
        {"x": x, "scale_x": scale_x, "weight": weight, "scale": scale, "bias": bias},
    )
    dim = rows_dimension("scaled_matmul_reduce_scatter: scatter_dim", scatter_dim, x)
    shares = shares_of_whole("scaled_matmul_reduce_scatter", x.shape[dim], sizes, group)
    check_factors("scaled_matmul_reduce_scatter", x, x.shape[-1], {"weight": weight}, {"bias": bias})
    check_scales("scaled_matmul_reduce_scatter", x, scale_x, {"weight": weight}, {"scale": scale})
    rows = Rows(x, dim)
    product = torch.ops.axon.scaled_matmul_reduce_scatter(
        rows.matrix,
        _as_column(scale_x, dim),
        weight,
        scale,
        bias,
        rows.counts(shares),
        reduce_op,
        group.group_name,
        out_dtype,
        use_fast_accum,
    )
    return rows.restore(product, shares[group.rank()])


def _as_column(scale_x: Tensor, dim: int) -> Tensor:
    return Rows(scale_x, dim).matrix if scale_x.ndim > 1 else scale_x


def _gather_columns(x: Tensor, shares: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    columns = x.flatten(0, -2).t()
    nothing = columns.new_empty(columns.shape[1], 0)
    gathered, _ = torch.ops.axon.all_gather_matmul(columns, [nothing], [None], shares, group.group_name, True)
    whole: Tensor = gathered.t().reshape(*x.shape[:-1], sum(shares))
    return whole
