"""The operations that torture.py draws, each with its expected results."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)
# On a GPU, the first of these many steps are large.
STEPS_BETWEEN_BURSTS = 400
STEPS_OF_A_BURST = 20
LARGEST_BYTES = 24 << 20


@dataclass
class Call:
    """One operation on this rank: its tensors, and pairs of actual and expected results."""

    launch: Callable[[bool], Any]
    tensors: list[Tensor] = field(default_factory=list)
    results: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class Draw:
    """The arguments of one call, the same on all ranks, with tensors of this rank."""

    def __init__(
        self, generator: random.Random, group: dist.ProcessGroup, members: list[int], step: int, large_share: float
    ) -> None:
        self.random, self.group, self.step = generator, group, step
        self.members, self.num_ranks = members, len(members)
        self.rank = members.index(dist.get_rank()) if dist.get_rank() in members else -1
        self.dtype = generator.choice(DTYPES)
        self.root = generator.randrange(self.num_ranks)
        on_gpu = torch.get_default_device().type == "cuda"
        is_large = on_gpu and step % STEPS_BETWEEN_BURSTS < STEPS_OF_A_BURST
        # Kernels access aligned tensors only.
        self.is_aligned = is_large and generator.random() < 0.75
        self.count = self.draw_count(
            LARGEST_BYTES // self.dtype.itemsize if is_large else self._largest(on_gpu, large_share)
        )
        self.offsets = [generator.choice((0, 64) if self.is_aligned else (0, 0, 1, 3, 8)) for _ in range(2)]

    def _largest(self, on_gpu: bool, large_share: float) -> int:
        """Draws mostly small sizes, around those where algorithms change, and by this share a large one."""
        largest = self.random.choice((16, 16, 300, 5000, 5000, 70_000))
        draw = self.random.random()
        if draw < large_share:
            largest = 1_500_000 if on_gpu or draw < large_share / 10 else 200_000
        return largest

    def draw_count(self, limit: int) -> int:
        """Draws a number of elements below the limit."""
        count = self.random.randrange(limit)
        return count // 64 * 64 if self.is_aligned else count

    def values(self, rank: int, count: int, seed: int = 0) -> Tensor:
        pattern = torch.arange(count, dtype=torch.int32) * 5 + rank * 3 + self.step + seed * 11
        return pattern % 4 if self.dtype == torch.uint8 else pattern % 7 - 3

    def place(self, count: int, which: int = 0) -> Tensor:
        """Returns an uninitialised tensor at some offset in its memory."""
        offset = self.offsets[which]
        return torch.empty(offset + count, dtype=self.dtype)[offset:]

    def filled(self, count: int, seed: int = 0, which: int = 0) -> Tensor:
        target = self.place(count, which)
        target.copy_(self.values(self.rank, count, seed))
        return target


def _all_reduce(d: Draw) -> Call:
    op, combine = d.random.choice(
        ((dist.ReduceOp.SUM, torch.sum), (dist.ReduceOp.MAX, torch.amax), (dist.ReduceOp.MIN, torch.amin))
    )
    data = d.filled(d.count)
    expected = combine(torch.stack([d.values(rank, d.count) for rank in range(d.num_ranks)]), 0)
    return Call(lambda a: dist.all_reduce(data, op, group=d.group, async_op=a), [data], [(data, expected)])


def _reduce(d: Draw) -> Call:
    data = d.filled(d.count)
    expected = sum(d.values(rank, d.count) for rank in range(d.num_ranks))
    results = [(data, expected)] if d.rank == d.root else []
    return Call(lambda a: dist.reduce(data, group=d.group, group_dst=d.root, async_op=a), [data], results)  # type: ignore[list-item]


def _reduce_scatter(d: Draw) -> Call:
    source, output = d.filled(d.count * d.num_ranks), d.place(d.count, 1)
    total = sum(d.values(rank, d.count * d.num_ranks) for rank in range(d.num_ranks))
    expected = total[d.rank * d.count : (d.rank + 1) * d.count]  # type: ignore[index]
    return Call(
        lambda a: dist.reduce_scatter_tensor(output, source, group=d.group, async_op=a),
        [source, output],
        [(output, expected)],
    )


def _broadcast(d: Draw) -> Call:
    data = d.filled(d.count)
    expected = d.values(d.root, d.count)
    return Call(lambda a: dist.broadcast(data, group=d.group, group_src=d.root, async_op=a), [data], [(data, expected)])


def _all_gather(d: Draw) -> Call:
    source, output = d.filled(d.count), d.place(d.count * d.num_ranks, 1)
    expected = torch.cat([d.values(rank, d.count) for rank in range(d.num_ranks)])
    return Call(
        lambda a: dist.all_gather_into_tensor(output, source, group=d.group, async_op=a),
        [source, output],
        [(output, expected)],
    )


def _all_gather_uneven(d: Draw) -> Call:
    counts = [d.draw_count(d.count + 1) for _ in range(d.num_ranks)]
    source, outputs = d.filled(counts[d.rank]), [d.place(count, 1) for count in counts]
    results = [(output, d.values(rank, counts[rank])) for rank, output in enumerate(outputs)]
    return Call(lambda a: dist.all_gather(outputs, source, group=d.group, async_op=a), [source, *outputs], results)


def _all_to_all(d: Draw) -> Call:
    counts = [[d.draw_count(d.count + 1) for _ in range(d.num_ranks)] for _ in range(d.num_ranks)]
    outgoing, incoming = counts[d.rank], [row[d.rank] for row in counts]
    source, output = d.place(sum(outgoing)), d.place(sum(incoming), 1)
    source.copy_(torch.cat([d.values(d.rank, count, seed=to) for to, count in enumerate(outgoing)]))
    expected = torch.cat([d.values(rank, count, seed=d.rank) for rank, count in enumerate(incoming)])
    return Call(
        lambda a: dist.all_to_all_single(output, source, incoming, outgoing, group=d.group, async_op=a),
        [source, output],
        [(output, expected)],
    )


def _gather(d: Draw) -> Call:
    source = d.filled(d.count)
    outputs = [d.place(d.count, 1) for _ in range(d.num_ranks)] if d.rank == d.root else None
    results = [(output, d.values(rank, d.count)) for rank, output in enumerate(outputs or ())]
    return Call(
        lambda a: dist.gather(source, outputs, group=d.group, group_dst=d.root, async_op=a),
        [source, *(outputs or ())],
        results,
    )


def _scatter(d: Draw) -> Call:
    output = d.place(d.count, 1)
    blocks = [d.filled(d.count, seed=to) for to in range(d.num_ranks)] if d.rank == d.root else None
    return Call(
        lambda a: dist.scatter(output, blocks, group=d.group, group_src=d.root, async_op=a),
        [output, *(blocks or ())],
        [(output, d.values(d.root, d.count, seed=d.rank))],
    )


def _ring(d: Draw) -> Call:
    following, preceding = (d.rank + 1) % d.num_ranks, (d.rank - 1) % d.num_ranks
    source, output = d.filled(d.count), d.place(d.count, 1)

    def launch(_: bool) -> None:
        messages = [
            dist.P2POp(dist.isend, source, d.members[following], d.group),
            dist.P2POp(dist.irecv, output, d.members[preceding], d.group),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()

    return Call(launch, [source, output], [(output, d.values(preceding, d.count))])


def _message(d: Draw) -> Call:
    """Sends from the root to the rank after it; the other ranks do nothing."""
    to = (d.root + 1) % d.num_ranks
    if d.rank == d.root:
        source = d.filled(d.count)
        send = {True: dist.isend, False: dist.send}
        return Call(lambda a: send[a](source, d.members[to], group=d.group), [source])
    if d.rank == to:
        output = d.place(d.count, 1)
        return Call(
            lambda a: _receive(output, d.members[d.root], d.group, a), [output], [(output, d.values(d.root, d.count))]
        )
    return Call(lambda _: None)


def _receive(output: Tensor, source: int, group: dist.ProcessGroup, asynchronous: bool) -> dist.Work | None:
    if asynchronous:
        return dist.irecv(output, source, group=group)
    dist.recv(output, source, group=group)
    return None


OPERATIONS = (
    (_all_reduce, 5),
    (_reduce, 1),
    (_reduce_scatter, 3),
    (_broadcast, 2),
    (_all_gather, 3),
    (_all_gather_uneven, 1),
    (_all_to_all, 2),
    (_gather, 1),
    (_scatter, 1),
    (_ring, 2),
    (_message, 2),
)
