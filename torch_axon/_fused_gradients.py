"""Gradients of the fused products: the backward pass of each operator is the other operator.

    all_gather_matmul        gathered = all_gather(x)                    d_x = reduce_scatter(d_output @ weightᴴ)
                             output = gathered @ weight                  d_weight = gatheredᴴ @ d_output
    matmul_reduce_scatter    output = reduce_scatter(x @ weight)         d_product = all_gather(d_output)
                                                                         d_x = d_product @ weightᴴ
                                                                         d_weight = xᴴ @ d_product

ᴴ is the conjugate transpose. The backward pass is collective too, so all ranks must request the same gradients. A bias
belongs to one rank, and so does its gradient. Double backward is not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.autograd.function import once_differentiable
from torch.distributed.distributed_c10d import GroupName
from torch.nn.functional import pad

Gradients = tuple[Tensor | None, ...]


def rank_in(group_name: str) -> int:
    return _resolve_process_group(GroupName(group_name)).rank()


class _AllGatherMatmul(torch.autograd.Function):
    """Takes x, all weights and all biases and returns gathered and all outputs: a flat list, as autograd requires."""

    @staticmethod
    def forward(
        ctx: Any, sizes: list[int], group_name: str, return_gathered: bool, x: Tensor, *parameters: Tensor | None
    ) -> tuple[Tensor, ...]:
        num_weights = len(parameters) // 2
        weights, biases = parameters[:num_weights], parameters[num_weights:]
        with torch._C._AutoDispatchBelowAutograd():
            gathered, outputs = torch.ops.axon.all_gather_matmul(x, weights, biases, sizes, group_name, return_gathered)
        needs_x, needs_weights = ctx.needs_input_grad[3], any(ctx.needs_input_grad[4 : 4 + num_weights])
        ctx.set_materialize_grads(False)
        ctx.sizes, ctx.group_name, ctx.return_gathered = sizes, group_name, return_gathered
        ctx.weights_in_columns = [weight is not None and _is_in_columns(weight) for weight in weights]
        # Saving the gathered input costs no memory if the caller holds it anyway.
        multiplied = gathered if return_gathered else x
        ctx.save_for_backward(multiplied if needs_weights else None, *(weights if needs_x else ()))
        return gathered, *outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_gathered: Tensor | None, *d_outputs: Tensor | None) -> Gradients:
        gathered, *weights = ctx.saved_tensors
        needs_x, needs_parameters = ctx.needs_input_grad[3], ctx.needs_input_grad[4:]
        is_shard = gathered is not None and not ctx.return_gathered
        if is_shard:  # gather again while the products for d_x run
            gathered = _start_all_gather(gathered, ctx.sizes, ctx.group_name)
        finish_d_x = _start_gradient_of_shard(ctx, d_gathered, d_outputs, weights) if needs_x else None
        if is_shard:
            gathered = _finish_all_gather(gathered, ctx.sizes)
        d_weights = [
            _gradient_of_weight(gathered, d_output, in_columns) if needed and d_output is not None else None
            for needed, d_output, in_columns in zip(
                needs_parameters[: len(d_outputs)], d_outputs, ctx.weights_in_columns, strict=True
            )
        ]
        d_biases = [
            d_output.sum(0) if needed and d_output is not None else None
            for needed, d_output in zip(needs_parameters[len(d_outputs) :], d_outputs, strict=True)
        ]
        return None, None, None, finish_d_x() if finish_d_x else None, *d_weights, *d_biases


def _start_gradient_of_shard(
    ctx: Any, d_gathered: Tensor | None, d_outputs: Sequence[Tensor | None], weights: Sequence[Tensor]
) -> Callable[[], Tensor | None]:
    """Starts computing the gradient of the shard and returns a function that finishes it.

    A single product is reduced and scattered while it is computed. The sum of several products is reduced and scattered
    while the products for the weights run.
    """
    pairs = [(d_output, weight.mH) for d_output, weight in zip(d_outputs, weights, strict=True) if d_output is not None]
    if d_gathered is None and len(pairs) == 1:
        product = torch.ops.axon.matmul_reduce_scatter(*pairs[0], None, ctx.sizes, "sum", ctx.group_name)
        return lambda: product
    if d_gathered is None and not pairs:
        return lambda: None
    total = d_gathered
    if total is None:
        total = torch.mm(*pairs.pop(0))
    elif pairs:
        total = total.clone()  # the original belongs to autograd
    for d_output, weight in pairs:
        total.addmm_(d_output, weight)
    scattered = _start_reduce_scatter(total, ctx.sizes, ctx.group_name)
    return lambda: _finish_reduce_scatter(scattered, ctx.sizes, ctx.group_name)


class _MatmulReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sizes: list[int],
        reduce_op: str,
        group_name: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            output: Tensor = torch.ops.axon.matmul_reduce_scatter(x, weight, bias, sizes, reduce_op, group_name)
        _, _, _, needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.sizes, ctx.reduce_op, ctx.group_name = sizes, reduce_op, group_name
        ctx.weight_in_columns = _is_in_columns(weight)
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> Gradients:
        x, weight = ctx.saved_tensors
        _, _, _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        d_bias = d_output.sum(0) if needs_bias else None
        d_x = d_weight = None
        if ctx.reduce_op == "avg":
            d_output = d_output / len(ctx.sizes)
        if needs_x:
            d_product, (d_x,) = torch.ops.axon.all_gather_matmul(
                d_output, [weight.mH], [None], ctx.sizes, ctx.group_name, needs_weight
            )
        elif needs_weight:
            d_product = _finish_all_gather(_start_all_gather(d_output, ctx.sizes, ctx.group_name), ctx.sizes)
        if needs_weight:
            d_weight = _gradient_of_weight(x, d_product, ctx.weight_in_columns)
        return None, None, None, d_x, d_weight, d_bias


def _is_in_columns(weight: Tensor) -> bool:
    """Returns whether the weight is stored by columns, as `linear.weight.t()` is."""
    return weight.stride(0) == 1 and weight.stride(1) != 1


def _gradient_of_weight(x: Tensor, d_output: Tensor, in_columns: bool) -> Tensor:
    """Returns the gradient in the weight's layout, since autograd would copy any other layout element by element."""
    return (d_output.mH @ x).mH if in_columns else x.mH @ d_output


# Shards of different extents are padded to the largest one, because these collectives need equal extents.


def _start_all_gather(rows: Tensor, sizes: Sequence[int], group_name: str) -> Tensor:
    padded = _padded(rows, max(sizes)).contiguous()
    gathered: Tensor = torch.ops._c10d_functional.all_gather_into_tensor(padded, len(sizes), group_name)
    return gathered


def _finish_all_gather(gathered: Tensor, sizes: Sequence[int]) -> Tensor:
    gathered = torch.ops._c10d_functional.wait_tensor(gathered)
    if _are_equal(sizes):
        return gathered
    shards = gathered.chunk(len(sizes))
    return torch.cat([shard[:size] for shard, size in zip(shards, sizes, strict=True)])


def _start_reduce_scatter(rows: Tensor, sizes: Sequence[int], group_name: str) -> Tensor:
    if not _are_equal(sizes):
        rows = torch.cat([_padded(shard, max(sizes)) for shard in torch.split(rows, list(sizes))])
    scattered: Tensor = torch.ops._c10d_functional.reduce_scatter_tensor(
        rows.contiguous(), "sum", len(sizes), group_name
    )
    return scattered


def _finish_reduce_scatter(scattered: Tensor, sizes: Sequence[int], group_name: str) -> Tensor:
    shard: Tensor = torch.ops._c10d_functional.wait_tensor(scattered)[: sizes[rank_in(group_name)]]
    return shard


def _padded(rows: Tensor, count: int) -> Tensor:
    return rows if rows.shape[0] == count else pad(rows, (0, 0, 0, count - rows.shape[0]))


def _are_equal(sizes: Sequence[int]) -> bool:
    return min(sizes) == max(sizes)


# ---- implementations that the dispatcher calls


def _all_gather_matmul(
    keys: torch._C.DispatchKeySet,
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    *how: Any,
) -> tuple[Tensor, list[Tensor]]:
    if torch.is_grad_enabled() and torch._C._any_requires_grad(x, weights, biases):
        gathered, *outputs = _AllGatherMatmul.apply(*how, x, *weights, *biases)  # type: ignore[no-untyped-call]
        return gathered, outputs
    operator = torch.ops.axon.all_gather_matmul.default
    result: tuple[Tensor, list[Tensor]] = operator.redispatch(
        keys & torch._C._after_autograd_keyset, x, weights, biases, *how
    )
    return result


def _matmul_reduce_scatter(
    keys: torch._C.DispatchKeySet, x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any
) -> Tensor:
    if torch.is_grad_enabled() and torch._C._any_requires_grad(x, weight, bias):
        output: Tensor = _MatmulReduceScatter.apply(*how, x, weight, bias)  # type: ignore[no-untyped-call]
        return output
    operator = torch.ops.axon.matmul_reduce_scatter.default
    output = operator.redispatch(keys & torch._C._after_autograd_keyset, x, weight, bias, *how)
    return output


def differentiably(operator: torch._ops.OpOverload[..., Any], tensors: tuple[Any, ...], how: tuple[Any, ...]) -> Any:
    """Calls one of the operators, bypassing the dispatcher's Python implementation if no gradient is needed."""
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors)):
        return operator(*tensors, *how)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*tensors, *how)


IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "all_gather_matmul": _all_gather_matmul,
    "matmul_reduce_scatter": _matmul_reduce_scatter,
}
