"""Fused products without their communication: the same products, on data that is already present.

The data of other ranks is random and constant, because zeros and NaN would keep a GPU cooler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_kept: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}


@torch.compiler.assume_constant_result
def _received(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    if (shape, dtype, device) not in _kept:
        _kept[shape, dtype, device] = torch.randn(shape, dtype=dtype, device=device)
    return _kept[shape, dtype, device]


def _whole(part: Tensor, dim: int, num_ranks: int) -> Tensor:
    shape = torch.Size(extent * num_ranks if each == dim else extent for each, extent in enumerate(part.shape))
    return _received(shape, part.dtype, part.device).view(shape)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, num_ranks: int) -> Tensor:
        ctx.dim, ctx.num_ranks = dim, num_ranks
        return _whole(part, dim, num_ranks)

    @staticmethod
    def backward(ctx: Any, whole: Tensor) -> tuple[Tensor, None, None]:
        return whole.chunk(ctx.num_ranks, ctx.dim)[0], None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, dim: int, num_ranks: int) -> Tensor:
        ctx.dim, ctx.num_ranks = dim, num_ranks
        return whole.chunk(num_ranks, dim)[0]

    @staticmethod
    def backward(ctx: Any, part: Tensor) -> tuple[Tensor, None, None]:
        return _whole(part, ctx.dim, ctx.num_ranks), None, None


def all_gather_matmul(
    x: Tensor, weights: Sequence[Tensor], *, gather_dim: int, group: dist.ProcessGroup, **_: object
) -> tuple[None, list[Tensor]]:
    gathered = _Gather.apply(x, gather_dim, group.size())
    return None, [gathered @ weight for weight in weights]


def matmul_reduce_scatter(
    x: Tensor, weight: Tensor, *, scatter_dim: int, group: dist.ProcessGroup, **_: object
) -> Tensor:
    return _Scatter.apply(x @ weight, scatter_dim, group.size())
