"""Completes `torch.ops.axon` on import: what torch needs to know about the operators besides their kernels.

That is shapes for torch.compile, types under autocast, and gradients (_fused_gradients.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_axon import _fused_gradients, _native
from torch_axon._fused_arguments import type_under_autocast
from torch_axon._fused_gradients import rank_in


def _with_casts(operator: torch._ops.OpOverload[..., Any]) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutocastCUDA
    )

    def call(*arguments: Any) -> Any:
        cast = [_cast(argument) for argument in arguments]
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*cast)

    return call


def _cast(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.to(type_under_autocast(argument))
    if isinstance(argument, list):
        return [_cast(each) for each in argument]
    return argument


def _all_gather_matmul(
    x: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None],
    sizes: list[int],
    group_name: str,
    return_gathered: bool,
) -> tuple[Tensor, list[Tensor]]:
    gathered = x.new_empty(sum(sizes) if return_gathered else 0, x.shape[1])
    return gathered, [x.new_empty(sum(sizes), weight.shape[1]) for weight in weights]


def _matmul_reduce_scatter(
    x: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int], reduce_op: str, group_name: str
) -> Tensor:
    return x.new_empty(sizes[rank_in(group_name)], weight.shape[1])


def _scaled_all_gather_matmul(
    x: Tensor,
    scale_x: Tensor,
    weights: list[Tensor],
    scales: list[Tensor],
    biases: list[Tensor | None],
    sizes: list[int],
    group_name: str,
    out_dtype: torch.dtype | None,
    use_fast_accum: bool,
    return_gathered: bool,
) -> tuple[Tensor, list[Tensor]]:
    gathered, outputs = _all_gather_matmul(x, weights, biases, sizes, group_name, return_gathered)
    return gathered, [torch.empty_like(output, dtype=out_dtype or torch.bfloat16) for output in outputs]


def _scaled_matmul_reduce_scatter(
    x: Tensor,
    scale_x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    sizes: list[int],
    reduce_op: str,
    group_name: str,
    out_dtype: torch.dtype | None,
    use_fast_accum: bool,
) -> Tensor:
    output = _matmul_reduce_scatter(x, weight, bias, sizes, reduce_op, group_name)
    return torch.empty_like(output, dtype=out_dtype or torch.bfloat16)


_FAKES: dict[str, Callable[..., Any]] = {
    "all_gather_matmul": _all_gather_matmul,
    "matmul_reduce_scatter": _matmul_reduce_scatter,
    "scaled_all_gather_matmul": _scaled_all_gather_matmul,
    "scaled_matmul_reduce_scatter": _scaled_matmul_reduce_scatter,
}


def _register() -> torch.library.Library:
    """Returns the library. Its registrations last as long as it lives."""
    _native.load()
    library = torch.library.Library("axon", "IMPL")  # type: ignore[no-untyped-call]
    for name, fake in _FAKES.items():
        torch.library.register_fake(f"axon::{name}", fake, lib=library)
    for name, with_gradients in _fused_gradients.IMPLEMENTATIONS.items():
        library.impl(name, with_gradients, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]
        with_casts = _with_casts(getattr(torch.ops.axon, name).default)
        for key in ("AutocastCPU", "AutocastCUDA"):
            library.impl(name, with_casts, key)  # type: ignore[no-untyped-call]
    return library


_library = _register()
