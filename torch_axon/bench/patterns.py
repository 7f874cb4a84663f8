"""Integer-valued data whose reductions are exact in every dtype, so that results compare with `==`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}


@dataclass(frozen=True)
class Reduction:
    """One ``--redop``: its c10d operation, and a function of two tensors that computes it."""

    op: dist.ReduceOp.RedOpType
    combine: Callable[[Tensor, Tensor], Tensor]
    integers_only: bool = False


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(dist.ReduceOp.SUM, torch.add),
    "avg": Reduction(dist.ReduceOp.AVG, torch.add),
    "prod": Reduction(dist.ReduceOp.PRODUCT, torch.mul),
    "min": Reduction(dist.ReduceOp.MIN, torch.minimum),
    "max": Reduction(dist.ReduceOp.MAX, torch.maximum),
    "band": Reduction(dist.ReduceOp.BAND, torch.bitwise_and, integers_only=True),
    "bor": Reduction(dist.ReduceOp.BOR, torch.bitwise_or, integers_only=True),
    "bxor": Reduction(dist.ReduceOp.BXOR, torch.bitwise_xor, integers_only=True),
}

# Outputs hold this before a checked run. Patterns start at 1, so an element that was not written counts as wrong.
POISON = 0
_LONGEST_PERIOD = 8191


def largest_exact(dtype: torch.dtype) -> int:
    """Returns the largest n such that `dtype` represents every integer from 0 to n."""
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps)
    return torch.iinfo(dtype).max


def moved(seed: int, count: int, dtype: torch.dtype) -> Tensor:
    """Returns `count` elements for operations that move data; another `seed` gives other values."""
    return _periodic(seed, count, dtype, largest_exact(dtype))


def contribution(redop: str, rank: int, num_ranks: int, count: int, dtype: torch.dtype) -> Tensor:
    """Returns the input of `rank` for a reduction over `num_ranks`; no partial result is rounded or overflows."""
    limit = largest_exact(dtype)
    if redop == "prod":
        # For each element, one rank contributes a factor and the others 1.
        factors = _periodic(0, count, dtype, limit)
        owner = torch.arange(count) % num_ranks == rank
        return torch.where(owner, factors, torch.ones_like(factors))
    if redop == "avg":
        return _periodic(rank, count, dtype, limit // num_ranks**2) * num_ranks
    return _periodic(rank, count, dtype, limit // num_ranks)


def reduced(redop: str, num_ranks: int, count: int, dtype: torch.dtype) -> Tensor:
    """Returns the reduction of the inputs of all ranks."""
    parts = (contribution(redop, rank, num_ranks, count, dtype) for rank in range(num_ranks))
    total = reduce(REDUCTIONS[redop].combine, parts)
    return (total / num_ranks).to(dtype) if redop == "avg" else total


def _periodic(seed: int, count: int, dtype: torch.dtype, limit: int) -> Tensor:
    # The period is odd, so data shifted by any power of two (a chunk, a slot) is detected.
    period = max(1, min(limit, _LONGEST_PERIOD))
    period -= 1 - period % 2
    values = (torch.arange(period) + 7 * seed) % period + 1
    return values.to(dtype).repeat(-(-count // period))[:count].contiguous()
