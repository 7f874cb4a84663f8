"""Factors that do not fit are refused before any communication, with the argument names that the caller knows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.products import check, factor
from support.reference import case, failure
from torch_axon import (
    all_gather_matmul,
    matmul_reduce_scatter,
    scaled_all_gather_matmul,
    scaled_matmul_reduce_scatter,
)

pytestmark = on_cpu_and_gpu

# The tensor to gather or scatter, and the weights' required depth for a gather, for two ranks.
_DEPTHS = {0: 6, 1: 12}


def _gathering_refusals(dim: int) -> dict[str, Callable[[], object]]:
    x, good, bias = torch.ones(4, 6), torch.ones(_DEPTHS[dim], 5), torch.ones(5)

    def gather(weights: list[Tensor], biases: list[Tensor | None] | None = None) -> Callable[[], object]:
        return lambda: all_gather_matmul(x, weights, biases=biases, gather_dim=dim)

    depth = _DEPTHS[dim]
    return {
        f"'weights[1]' has shape [5, {depth}]; allowed: [{depth}, n]": gather([good, good.t()]),
        f"'weights[0]' has shape [{depth}]": gather([torch.ones(depth), good]),
        "'weights[1]' is of torch.float64; allowed: torch.float32": gather([good, good.double()]),
        "'biases[1]' has shape [1]; allowed: [5]": gather([good, good], [bias, bias[:1]]),
        "'biases[1]' is of torch.float64": gather([good, good], [None, bias.double()]),
        "'biases' has shape [4]": lambda: all_gather_matmul(x, good, biases=bias[:4], gather_dim=dim),
    }


def _scattering_refusals(dim: int) -> dict[str, Callable[[], object]]:
    x, good, bias = torch.ones(4, 6).bfloat16(), torch.ones(6, 8).bfloat16(), torch.ones(8).bfloat16()

    def scatter(weight: Tensor, bias: Tensor | None = None) -> Callable[[], object]:
        return lambda: matmul_reduce_scatter(x, weight, bias=bias, scatter_dim=dim)

    return {
        "'weight' has shape [8, 6]; allowed: [6, n]": scatter(good.t()),
        "'weight' has shape [6]": scatter(good[:, 0]),
        "'weight' is of torch.float32; allowed: torch.bfloat16": scatter(good.float()),
        "'bias' has shape [4]; allowed: [8]": scatter(good, bias[:4]),
        "'bias' is of torch.float32; allowed: torch.bfloat16": scatter(good, bias.float()),
    }


def _scaled_refusals() -> dict[str, Callable[[], object]]:
    x, scale = torch.ones(16, 64).to(torch.float8_e4m3fn), torch.tensor(1.0)
    good = torch.ones(32, 64).to(torch.float8_e4m3fn).t()

    def gather(weight: Tensor, scales: list[Tensor], bias: Tensor | None = None) -> Callable[[], object]:
        return lambda: scaled_all_gather_matmul(x, scale, [good, weight], scales, biases=[None, bias])

    return {
        "'weights[1]' has shape [32, 64]": gather(good.t(), [scale, scale]),
        "'scales[1]' has shape [2]": gather(good, [scale, torch.ones(2)]),
        "1 scales for 2 weights": gather(good, [scale]),
        "'biases[1]' has shape [31]": gather(good, [scale, scale], torch.ones(31).bfloat16()),
        "'scale' has shape [1, 32]": lambda: scaled_matmul_reduce_scatter(x, scale, good, torch.ones(1, 32)),
    }


def _refuse_on_one_rank() -> None:
    """The other rank has not begun anything that would miss it."""
    calls = [_gathering_refusals, _scattering_refusals]
    for refusals in (*(make(dim) for make in calls for dim in (0, 1)), _scaled_refusals()):
        for message, call in refusals.items():
            with case(message=message):
                if dist.get_rank() == 0:
                    assert message in failure(call)
                check(all_gather_matmul(torch.ones(1, 6), torch.ones(6, 1))[1], torch.full((2, 1), 6.0))


def test_factors_that_do_not_fit_are_refused_by_name(two_ranks: RankPool) -> None:
    two_ranks.run(_refuse_on_one_rank)


def _cast() -> None:
    """Biases fit like factors, whichever dimension is gathered or scattered."""
    rank, device = dist.get_rank(), torch.get_default_device().type
    for dim, depth in _DEPTHS.items():
        with case(dim=dim), torch.autocast(device, torch.bfloat16):
            x, weight, bias = (factor(shape, rank).float() for shape in ((4, 6), (depth, 5), (5,)))
            gathered, output = all_gather_matmul(x, weight, biases=bias, gather_dim=dim)
            assert output.dtype == torch.bfloat16
            check(output, gathered.double() @ weight.double() + bias)  # type: ignore[union-attr]
            x, weight, bias = (factor(shape, 0).float() for shape in ((4, 6), (6, 8), (8,)))
            output = matmul_reduce_scatter(x, weight, bias=bias, scatter_dim=dim)
            assert output.dtype == torch.bfloat16
            check(output, (2 * x.double() @ weight.double() + bias).chunk(2, dim)[rank])


def test_autocast_chooses_the_products_type_along_every_dimension(two_ranks: RankPool) -> None:
    two_ranks.run(_cast)
