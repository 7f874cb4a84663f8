"""Matrix products that overlap with their communication, for the input and the output of a tensor-parallel layer.

    gathered, (q, k, v) = all_gather_matmul(x_shard, [w_q, w_k, w_v], gather_dim=1)
    y_shard = matmul_reduce_scatter(attention, w_o, scatter_dim=1)

Arguments and results are plain tensors. The group must use the backend "axon". Each call is a collective: all ranks of
the group make the same calls in the same order. The functions support autograd, and the backward pass overlaps its
collectives in the same way. The operators on matrices are `torch.ops.axon.*`. See docs/fused.md.
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
    """Gathers the shards of all ranks along `gather_dim` and multiplies them by one or more weights of this rank.

    The gather overlaps with the products, except along the last dimension, which is gathered before them.

    Args:
        x_shard: this rank's shard `[..., k]` of at least two dimensions
        weights: one matrix `[k, n]` or a sequence of them, with any strides
        biases: one bias `[n]` per weight, or None; in the same form as `weights`
        gather_dim: the dimension of `x_shard` along which the shards are concatenated
        sizes: the extent of every rank's shard along `gather_dim`, required if the extents differ
        group: the process group; by default the default group
        return_gathered: whether to return the gathered input. If so, the backward pass keeps and uses it. If not, the
            backward pass keeps the shard and gathers again, except along the last dimension, where it keeps the whole.

    Returns:
        The gathered input, or None without `return_gathered`, and the products `[..., n]`: a tensor if `weights` is a
            tensor, otherwise a list.

    Raises:
        TypeError: an argument is not a strided tensor, such as a DTensor
        ValueError: a shape, a type, a device or `sizes` does not fit; the text names the argument
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
    """Reduces `x @ weight` over all ranks and returns this rank's shard along `scatter_dim`.

    Args:
        x: `[..., k]`, of at least two dimensions
        weight: `[k, n]`, with any strides
        bias: `[n]`, or None; it is added once, to the reduced product
        reduce_op: "sum" or "avg"
        scatter_dim: the dimension of the product along which it is scattered
        sizes: the extent of every rank's shard along `scatter_dim`, required if the dimension does not divide evenly
        group: the process group; by default the default group

    Returns:
        This rank's shard of the reduced product `[..., n]`.

    Raises:
        TypeError: an argument is not a strided tensor, such as a DTensor
        ValueError: a shape, a type, a device, `reduce_op` or `sizes` does not fit; the text names the argument
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
        # Columns of the product are rows of its transpose, and the operator scatters rows.
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
    """Computes `all_gather_matmul` for float8 factors, as `torch._scaled_mm` takes them, without gradients.

    Args:
        x_shard: this rank's shard `[..., k]`
        scale_x: float32, `[]` or `[1]` and equal on all ranks; or `[..., 1]`, one scale per row, gathered with the rows
        weights: matrices `[k, n]`, each a transposed view
        scales: float32, one per weight: `[]` or `[1]`, or `[1, n]` if `scale_x` has one scale per row
        biases: one bias `[n]` per weight, or None
        gather_dim: the dimension of `x_shard` that is gathered; not the last one
        sizes: the extent of every rank's shard along `gather_dim`, required if the extents differ
        group: the process group; by default the default group
        out_dtype: the type of the products
        use_fast_accum: whether to accumulate as `torch._scaled_mm` does with this option
        return_gathered: whether to return the gathered input

    Returns:
        The gathered input, or None without `return_gathered`, and a list of the products `[..., n]`.

    Raises:
        TypeError: an argument is not a strided tensor, such as a DTensor
        ValueError: a shape, a device or `sizes` does not fit; the text names the argument
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
    """Computes `matmul_reduce_scatter` for float8 factors, without gradients.

    Args:
        x: `[..., k]`, of at least two dimensions
        scale_x: float32, `[]` or `[1]`; or `[..., 1]`, one scale per row
        weight: `[k, n]`, a transposed view
        scale: float32, `[]` or `[1]`; or `[1, n]` if `scale_x` has one scale per row
        bias: `[n]`, or None; it is added once, to the reduced product
        reduce_op: "sum" or "avg"
        scatter_dim: the dimension of the product along which it is scattered; not the last one
        sizes: the extent of every rank's shard along `scatter_dim`, required if the dimension does not divide evenly
        group: the process group; by default the default group
        out_dtype: the type of the result and of the partial results that the ranks exchange
        use_fast_accum: whether to accumulate as `torch._scaled_mm` does with this option

    Returns:
        This rank's shard of the reduced product `[..., n]`.

    Raises:
        TypeError: an argument is not a strided tensor, such as a DTensor
        ValueError: a shape, a device, `reduce_op` or `sizes` does not fit; the text names the argument
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
