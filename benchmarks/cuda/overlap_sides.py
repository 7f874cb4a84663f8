"""The sides that overlap.py compares: factors, and a call for each side of each operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers torch.ops.symm_mem
from torch import Tensor

import torch_axon
from torch_axon.bench.contenders import Control

Call = Callable[[], Tensor]  # returns the compared tensor


@dataclass(frozen=True)
class Groups:
    axon: dist.ProcessGroup
    nccl: dist.ProcessGroup
    control: Control


class Factors:
    """The factors of all sides, and their output buffers, with the type and device of `like`."""

    def __init__(self, m: int, k: int, n: int, like: Tensor) -> None:
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.whole = like.new_empty(m, k)
        self.shard = like.new_empty(m // self.num_ranks, k)
        self.weight = like.new_empty(k, n)
        self.gathered = torch.empty_like(self.whole)
        self.product = like.new_empty(m, n)
        self.part = like.new_empty(m // self.num_ranks, n)

    def fill(self, draw: Callable[[Tensor], None]) -> None:
        torch.manual_seed(self.rank)
        for factor in (self.whole, self.shard, self.weight, self.gathered):
            draw(factor)

    def multiply(self) -> Tensor:
        return torch.mm(self.whole, self.weight, out=self.product)


def draw_normal(factor: Tensor) -> None:
    factor.normal_()


def draw_integers(factor: Tensor) -> None:
    """Draws -1, 0 and 1, with at most one of eight not 0, so that all ranks' sums of 16384 products stay below 256.

    Such sums are exact in 8 bits. The nonzero elements are rarer by the root of the number of ranks, so products are
    rarer by that number: sums deviate by 16 at most.
    """
    one_in = 8 * math.ceil(math.sqrt(dist.get_world_size()))
    drawn = torch.randint(0, 2 * one_in, factor.shape, dtype=torch.int16, device=factor.device)
    factor.copy_(drawn.eq(0).to(torch.int8) - drawn.eq(1).to(torch.int8))


def gathering_sides(factors: Factors, groups: Groups) -> dict[str, Call]:
    f = factors

    def nccl() -> Tensor:
        dist.all_gather_into_tensor(f.gathered, f.shard, group=groups.nccl)
        return torch.mm(f.gathered, f.weight, out=f.product)

    def symm_mem() -> Tensor:
        name = groups.nccl.group_name
        return torch.ops.symm_mem.fused_all_gather_matmul(f.shard, [f.weight], 0, name, return_A=False)[1][0]

    def axon() -> Tensor:
        return torch_axon.all_gather_matmul(f.shard, f.weight, group=groups.axon, return_gathered=False)[1]

    rows = f.shard.shape[0]
    own, after = f.rank * rows, (f.rank + 1) * rows
    pieces = [piece for piece in (slice(own, after), slice(0, own), slice(after, None)) if len(f.gathered[piece])]

    def cut() -> Tensor:
        for piece in pieces:
            torch.mm(f.gathered[piece], f.weight, out=f.product[piece])
        return f.product

    return {"nccl": nccl, "symm_mem": symm_mem, "axon": axon, "cut": cut}


def scattering_sides(factors: Factors, groups: Groups) -> dict[str, Call]:
    f = factors

    def nccl() -> Tensor:
        dist.reduce_scatter_tensor(f.part, f.multiply(), group=groups.nccl)
        return f.part

    def symm_mem() -> Tensor:
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(f.whole, f.weight, "sum", 0, groups.nccl.group_name)

    def axon() -> Tensor:
        return torch_axon.matmul_reduce_scatter(f.whole, f.weight, group=groups.axon)

    return {"nccl": nccl, "symm_mem": symm_mem, "axon": axon}


SIDES = {"all_gather_matmul": gathering_sides, "matmul_reduce_scatter": scattering_sides}
