"""Reductions of random parts of fixed inputs, in random ways, compared bit for bit with sums in rank order.

    draws = RankOrder(seed)       # on every rank of the default group
    draws.run(1000)               # raises where a bit differs; every two results are thereby compared with each other

Each draw chooses the operation, the reduction, the type, the part of the inputs and the alignment of the buffers. It
also chooses the group object, and whether the call is synchronous. On a GPU, every other eight draws are captured in a
CUDA graph, which is replayed twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from support.graphs import captured
from support.reference import finish

# Each rank's inputs have this many elements, by type of device.
NUM_ELEMENTS = {"cpu": 1 << 18, "cuda": 3 << 20}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Bits of a type as integers, to compare them.
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}
FACTOR = 0.3
OPERATIONS: dict[str, Any] = {
    "SUM": dist.ReduceOp.SUM,
    "AVG": dist.ReduceOp.AVG,
    "PRODUCT": dist.ReduceOp.PRODUCT,
    "PREMUL_SUM": dist._make_nccl_premul_sum(FACTOR),
}
DRAWS_PER_GRAPH = 8


def inputs_of(rank: int, dtype: torch.dtype) -> Tensor:
    """Returns values of many magnitudes, whose sums depend on the order; the same on every rank that asks."""
    device = torch.get_default_device()
    count = NUM_ELEMENTS[device.type]
    generator = torch.Generator(device).manual_seed(rank)
    values = torch.randn(count, generator=generator, dtype=torch.float32)
    scales = torch.randint(-6, 6, (count,), generator=generator, dtype=torch.float32)
    return (values * torch.exp2(scales)).to(dtype)


def in_rank_order(reduction: str, inputs: list[Tensor]) -> Tensor:
    """Returns the reduction in rank order 0 … n−1, of half types in float32, rounded once."""
    dtype = inputs[0].dtype
    wide = [each.float() if dtype.itemsize == 2 else each for each in inputs]
    if reduction == "PREMUL_SUM":
        wide = [each * torch.tensor(FACTOR, dtype=each.dtype) for each in wide]
    total = wide[0].clone()
    for each in wide[1:]:
        total = total * each if reduction == "PRODUCT" else total + each
    if reduction == "AVG":
        total = total / torch.full((), float(len(inputs)), dtype=total.dtype)
    return total.to(dtype)


@dataclass
class _Draw:
    text: str
    prepare: Callable[[], object]
    launch: Callable[[], object]
    output: Tensor
    expected: Tensor


class RankOrder:
    def __init__(self, seed: int, dtypes: tuple[torch.dtype, ...] = DTYPES) -> None:
        self._random = random.Random(seed)
        self._dtypes = dtypes
        self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()
        self._groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
        self._on_gpu = torch.get_default_device().type == "cuda"
        self._inputs: dict[torch.dtype, Tensor] = {}
        self._expected: dict[tuple[str, torch.dtype], Tensor] = {}
        for dtype in dtypes:
            inputs = [inputs_of(rank, dtype) for rank in range(self._num_ranks)]
            self._inputs[dtype] = inputs[self._rank]
            for reduction in OPERATIONS:
                self._expected[reduction, dtype] = in_rank_order(reduction, inputs)

    def run(self, num_draws: int) -> None:
        for batch in range(0, num_draws, DRAWS_PER_GRAPH):
            draws = [self._draw() for _ in range(DRAWS_PER_GRAPH)]
            if self._on_gpu and batch // DRAWS_PER_GRAPH % 2 == 1:
                self._run_in_graph(draws)
            else:
                for draw in draws:
                    draw.prepare()
                    draw.launch()
                self._compare(draws)

    def close(self) -> None:
        for group in self._groups[1:]:
            dist.destroy_process_group(group)

    def _run_in_graph(self, draws: list[_Draw]) -> None:
        graph = captured(lambda: [draw.launch() for draw in draws])
        for _ in range(2):
            for draw in draws:
                draw.prepare()
            graph.replay()
            self._compare(draws)
        del graph

    def _compare(self, draws: list[_Draw]) -> None:
        wrong = [
            (draw.output.view(bits) != draw.expected.view(bits)).sum()
            for draw in draws
            for bits in [BITS[draw.output.dtype]]
        ]
        counts = torch.stack(wrong).tolist()
        differ = [f"{draw.text}: {count} elements" for draw, count in zip(draws, counts, strict=True) if count]
        assert not differ, "\n".join(differ)

    def _draw(self) -> _Draw:
        """Most draws are short, around the sizes at which algorithms change."""
        draw = self._random
        largest = NUM_ELEMENTS["cuda" if self._on_gpu else "cpu"]
        name = draw.choice(("all_reduce", "all_reduce", "reduce", "reduce_scatter"))
        reduction, dtype = draw.choice(list(OPERATIONS)), draw.choice(self._dtypes)
        most = int(largest ** draw.choice((0.4, 0.6, 0.6, 0.75, 0.75, 1.0)))
        count = draw.randrange(1, most + 1)
        begin = draw.randrange(largest - count + 1)
        if draw.random() < 0.3:
            count = max(count // 64 * 64, min(count, 64))
        shifts = [draw.choice((0, 0, 0, 1, 3, 8)) for _ in range(2)]
        group, root, asynchronous = draw.choice(self._groups), draw.randrange(self._num_ranks), draw.random() < 0.3
        operation, expected = OPERATIONS[reduction], self._expected[reduction, dtype]
        part = self._inputs[dtype][begin : begin + count]
        text = f"{name}, {reduction}, {dtype}, [{begin}, {begin + count}), shifts {shifts}, root {root}"
        source = self._buffer(count, dtype, shifts[0])
        if name == "reduce_scatter":
            count //= self._num_ranks
            source = source[: count * self._num_ranks]
            part = part[: count * self._num_ranks]
            output = self._buffer(count, dtype, shifts[1])
            return _Draw(
                text,
                lambda: (source.copy_(part), output.fill_(7)),
                lambda: finish(dist.reduce_scatter_tensor(output, source, operation, group, asynchronous)),
                output,
                expected[begin + self._rank * count : begin + (self._rank + 1) * count],
            )
        expected = expected[begin : begin + count]
        if name == "reduce":
            receives = root == self._rank
            return _Draw(
                text,
                lambda: source.copy_(part),
                lambda: finish(dist.reduce(source, root, operation, group, asynchronous)),
                source if receives else source[:0],
                expected if receives else expected[:0],
            )
        return _Draw(
            text,
            lambda: source.copy_(part),
            lambda: finish(dist.all_reduce(source, operation, group, asynchronous)),
            source,
            expected,
        )

    def _buffer(self, count: int, dtype: torch.dtype, shift: int) -> Tensor:
        return torch.empty(count + shift, dtype=dtype)[shift:]
