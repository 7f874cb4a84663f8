"""Ranks that reconfigure otherwise than the others: with another list or number, or not at all. No process ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from fault_case import TIMEOUT_S, Moment, Stretch
from fault_members import join_members

import torch_axon
from support.pool import own_rank
from support.reference import failure_or_nothing


@dataclass(frozen=True)
class Members:
    """What all members of a group should give to `reconfigure`."""

    number: int
    handles: Sequence[str]

    def form(self, ranks: Sequence[int] | None = None, later: int = 0) -> None:
        """Calls `reconfigure` with a part of the handles."""
        chosen = self.handles if ranks is None else [self.handles[rank] for rank in ranks]
        torch_axon.reconfigure(self.number + later, chosen, timeout=timedelta(seconds=TIMEOUT_S))


Mistake = Callable[[Members], object]


def _leave(_: Members) -> None:
    dist.destroy_process_group()


def _abort(_: Members) -> None:
    dist.distributed_c10d._get_default_group().abort()


MISTAKES: dict[str, Mistake] = {
    "calls nothing": lambda _: None,
    "leaves": _leave,
    "aborts": _abort,
    "calls another operation": lambda _: dist.all_reduce(torch.ones(8)),
    "names another order": lambda members: members.form(range(len(members.handles))[::-1]),
    "swaps the other ranks": lambda members: members.form(_with_others_swapped(len(members.handles))),
    "names fewer members": lambda members: members.form(sorted({own_rank(), 1})),
    "names itself alone": lambda members: members.form([own_rank()]),
    "gives another number": lambda members: members.form(later=1),
}


def _with_others_swapped(size: int) -> list[int]:
    order = list(range(size))
    one, other = (rank for rank in order if rank != own_rank())
    order[one], order[other] = other, one
    return order


def reconfigure_but_for(victim: int, mistake: str, members: Members) -> tuple[str, Stretch]:
    """Returns the error of this rank, and how long it took. The victim makes a mistake."""
    started = Moment.now()
    call = MISTAKES[mistake] if own_rank() == victim else Members.form
    text = failure_or_nothing(lambda: call(members))
    return text, Stretch.since(started)


def go_on_as(ranks: Sequence[int], members: Members) -> None:
    """Gives the group these members, and uses it."""
    if own_rank() in ranks:
        join_members(members.number, [members.handles[rank] for rank in ranks])
