"""A call with its buffers, their inputs and their expected results."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from torch_axon.bench import patterns


class Pending(Protocol):
    """What an asynchronous call returns: torch's Work, or several of them."""

    def wait(self) -> object: ...


# A call over a group, asynchronous or not.
Launch = Callable[[dist.ProcessGroup, bool], Pending | None]


@dataclass(frozen=True)
class Works:
    """Several works that are waited for together."""

    works: list[dist.Work]

    @staticmethod
    def of(*works: dist.Work | None) -> "Works":
        return Works([work for work in works if work is not None])

    def wait(self) -> None:
        for work in self.works:
            work.wait()


@dataclass(frozen=True)
class Setting:
    """The parameters of the buffers of one line; `count` is defined as in nccl-tests."""

    count: int
    dtype: torch.dtype
    redop: str
    root: int
    rank: int
    num_ranks: int

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @property
    def op(self) -> dist.ReduceOp.RedOpType:
        return patterns.REDUCTIONS[self.redop].op

    def empty(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=self.dtype)

    def shares(self) -> list[Tensor]:
        """Returns one buffer of `count` elements per rank."""
        return [self.empty(self.count) for _ in range(self.num_ranks)]

    def moved(self, seed: int, count: int | None = None) -> Tensor:
        return patterns.moved(seed, self.count if count is None else count, self.dtype)

    def moved_by_all(self) -> list[Tensor]:
        return [self.moved(rank) for rank in range(self.num_ranks)]

    def contribution(self, count: int) -> Tensor:
        return patterns.contribution(self.redop, self.rank, self.num_ranks, count, self.dtype)

    def reduced(self, count: int) -> Tensor:
        return patterns.reduced(self.redop, self.num_ranks, count, self.dtype)


@dataclass(frozen=True)
class Exercise:
    """A call with its buffers, what to put into them before a checked call and what they must hold after it."""

    launch: Launch
    inputs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    outputs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    # Makes calls that each read what the previous one wrote, if repeating `launch` does not. Ranks that do not wait for
    # a host are kept in step by the data alone.
    make_chain: Callable[[], list[Launch]] | None = None

    def chain(self) -> list[Launch]:
        return self.make_chain() if self.make_chain else [self.launch]

    def fill(self) -> None:
        for buffer, _ in self.outputs:
            buffer.fill_(patterns.POISON)
        for buffer, values in self.inputs:
            buffer.copy_(values)

    def count_wrong(self) -> int:
        return sum(int((buffer != expected).sum()) for buffer, expected in self.outputs)

    def zero(self) -> None:
        """Zeros let in-place reductions be repeated for ever without overflow."""
        for buffer, _ in self.inputs:
            buffer.zero_()
