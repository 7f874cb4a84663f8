"""Random operations that every rank draws alike from a seed, and what they must yield, computed where the tensors are.

    torture = Torture(seed)
    torture.run(2000)              # on every rank; raises where an element differs

Drawn are the group, the operation, types, sizes, offsets, roots, whether it is asynchronous and when it is waited for,
on a GPU also the streams of call and wait, and when memory is given back. Values are small integers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)
MOST_IN_FLIGHT = 12
STEPS_BETWEEN_CHECKS = 200


@dataclass
class Call:
    """One operation on this rank: its tensors, and pairs of what it yields and must yield."""

    launch: Callable[[bool], Any]
    tensors: list[Tensor] = field(default_factory=list)
    results: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class Draw:
    """The arguments of one call, the same on all ranks; tensors of this rank."""

    def __init__(self, generator: random.Random, group: dist.ProcessGroup, members: list[int], step: int) -> None:
        self.random, self.group, self.step = generator, group, step
        self.members, self.num_ranks = members, len(members)
        self.rank = members.index(dist.get_rank()) if dist.get_rank() in members else -1
        self.dtype = generator.choice(DTYPES)
        self.root = generator.randrange(self.num_ranks)
        self.count = self._size()
        self.offsets = [generator.choice((0, 0, 1, 3, 8)) for _ in range(2)]

    def _size(self) -> int:
        """Mostly small, around the sizes where algorithms change, now and then large."""
        largest = self.random.choice((16, 16, 300, 5000, 5000, 70_000))
        if self.random.random() < 0.01:
            largest = 1_500_000 if torch.get_default_device().type == "cuda" else 200_000
        return self.random.randrange(largest)

    def values(self, rank: int, count: int, seed: int = 0) -> Tensor:
        pattern = torch.arange(count) * 5 + rank * 3 + self.step + seed * 11
        return pattern % 4 if self.dtype == torch.uint8 else pattern % 7 - 3

    def place(self, count: int, which: int = 0) -> Tensor:
        """Uninitialised, at some offset in its memory."""
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
    counts = [d.random.randrange(d.count + 1) for _ in range(d.num_ranks)]
    source, outputs = d.filled(counts[d.rank]), [d.place(count, 1) for count in counts]
    results = [(output, d.values(rank, counts[rank])) for rank, output in enumerate(outputs)]
    return Call(lambda a: dist.all_gather(outputs, source, group=d.group, async_op=a), [source, *outputs], results)


def _all_to_all(d: Draw) -> Call:
    counts = [[d.random.randrange(d.count + 1) for _ in range(d.num_ranks)] for _ in range(d.num_ranks)]
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
    """From the root to the rank after it; the others do nothing."""
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


@dataclass
class _Pending:
    step: int
    name: str
    call: Call
    work: Any


class Torture:
    """On every rank of the default group, with the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        everybody = range(dist.get_world_size())
        subsets = [tuple(everybody)] * 2 + [pair for pair in combinations(everybody, 2) if len(everybody) > 2]
        self._groups = [(dist.new_group(list(members)), list(members)) for members in subsets]
        self._on_gpu = torch.get_default_device().type == "cuda"
        self._streams = [torch.cuda.Stream() for _ in range(3)] if self._on_gpu else []
        self._pending: list[_Pending] = []
        self._wrong: list[tuple[str, Tensor]] = []

    def run(self, num_steps: int) -> None:
        operations, weights = zip(*OPERATIONS, strict=True)
        for step in range(num_steps):
            operation = self._random.choices(operations, weights)[0]
            self._step(step, operation)
            if step % STEPS_BETWEEN_CHECKS == STEPS_BETWEEN_CHECKS - 1:
                self._check()
        self._check()
        for group, members in self._groups:
            if dist.get_rank() in members:
                dist.destroy_process_group(group)

    def _step(self, step: int, operation: Callable[[Draw], Call]) -> None:
        group, members = self._random.choice(self._groups)
        draw = Draw(self._random, group, members, step)
        # All ranks draw the same, members or not.
        state = random.Random(self._random.random())
        draw.random = state
        asynchronous, stream, later = self._random.random() < 0.5, self._stream(), self._stream()
        num_waits = self._random.randrange(3)
        if draw.rank >= 0:
            with stream:
                call = operation(draw)
                pending = _Pending(
                    step, f"{operation.__name__}, {draw.dtype}, {draw.count}", call, call.launch(asynchronous)
                )
                if pending.work is None:
                    self._judge(pending)
                else:
                    self._pending.append(pending)
        with later:
            for _ in range(num_waits):
                self._wait()
            while len(self._pending) > MOST_IN_FLIGHT:
                self._wait()
        if self._on_gpu and self._random.random() < 0.005:
            torch.cuda.empty_cache()

    def _stream(self) -> AbstractContextManager[Any]:
        index = self._random.randrange(4)
        return torch.cuda.stream(self._streams[index]) if self._on_gpu and index < 3 else nullcontext()

    def _wait(self) -> None:
        """For some work in flight, from the current stream."""
        if self._pending:
            pending = self._pending.pop(0)
            pending.work.wait()
            self._judge(pending)

    def _judge(self, pending: _Pending) -> None:
        """Counts on the device; nobody waits for the figure yet."""
        for output, expected in pending.call.results:
            self._wrong.append((f"step {pending.step}: {pending.name}", (output != expected.to(output.dtype)).sum()))
        if self._on_gpu:
            for tensor in (*pending.call.tensors, *(expected for _, expected in pending.call.results)):
                tensor.record_stream(torch.cuda.current_stream())

    def _check(self) -> None:
        while self._pending:
            self._wait()
        if self._on_gpu:
            torch.cuda.synchronize()
        wrong = [f"{name}: {int(count)} wrong elements" for name, count in self._wrong if int(count)]
        self._wrong.clear()
        assert not wrong, "\n".join(wrong)
