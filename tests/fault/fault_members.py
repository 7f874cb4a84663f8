"""How ranks go on in the group that has failed: `reconfigure` gives it other members.

The survivors leave the victim out while it is stopped or cut off, by handles that they exchanged before. Then it joins
again, or another process in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from fault_case import FORMING_TIMEOUT_S, LAST, Case, Moment, Stretch, leave, set_timeout
from fault_journal import Journal
from fault_operations import make_step
from fault_ranks import Ranks

import torch_axon
from support.pool import BACKEND
from support.reference import failure, same_bits, synchronize

# The numbers of the group's instances: without the victim, and with it or another process.
WITHOUT, WITH = 1, 2


def handle() -> str:
    """Returns this process's handle; one without a group makes one of itself."""
    if not dist.is_initialized():
        dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    return torch_axon.reconfigure_handle()


def go_on(case: Case, number: int, handles: Sequence[str]) -> Stretch:
    """Gives the group these members, and uses it. Before, an abort ends what it does, in some cases."""
    started = Moment.now()
    if number == WITHOUT and case.moment == "after":
        dist.distributed_c10d._get_default_group().abort()
    torch_axon.reconfigure(number, handles, timeout=timedelta(seconds=FORMING_TIMEOUT_S))
    set_timeout(FORMING_TIMEOUT_S)
    _use(len(handles))
    stretch = Stretch.since(started)
    if not case.operation.endswith("_step"):  # a module would need another one
        make_step(case.operation, victim=0)()
    _use(len(handles))
    return stretch


def _use(size: int) -> None:
    rank = dist.get_rank()
    assert dist.get_world_size() == size
    data = torch.full((1000,), float(rank + 1))
    dist.all_reduce(data)
    synchronize()
    same_bits(data, torch.full((1000,), size * (size + 1) / 2))


def endure_as_members(ranks: Ranks, case: Case, journal: Journal) -> None:
    with ranks.breaking():

        def leave_victim_out() -> list[Stretch]:
            return ranks.survivors.run(go_on, case, WITHOUT, case.handles_of(case.survivors))

        outcomes, stretches = ranks.fail(case, leave_victim_out)
        ranks.judge(case, journal, outcomes)
        ranks.end_victim(case)
        handles = case.handles_of(case.survivors)
        handles.insert(case.victim, *ranks.victim.run(handle))
        ranks.victim.start(go_on, case, WITH, handles)
        ranks.survivors.run(go_on, case, WITH, handles)
        ranks.victim.finish()
        ranks.victim.run(leave, case)
        ranks.survivors.run(leave, case)
    journal.note(f"{case.fault}: reconfigure", max(stretch.seconds for stretch in stretches))


# ---- Failures in which no rank ends

Failing = Callable[[], object]


def _mismatch(rank: int) -> Failing:
    count = 7 if rank == LAST else 8
    return lambda: dist.all_reduce(torch.ones(count))


def _timeout(rank: int) -> Failing:
    group = dist.distributed_c10d._get_default_group()
    if rank == LAST:  # it never joins in
        return lambda: dist.recv(torch.ones(1), 0, tag=7)
    return lambda: dist.barrier(group)


def _abort(rank: int) -> Failing:
    group = dist.distributed_c10d._get_default_group()
    if rank != LAST:
        return lambda: dist.all_reduce(torch.ones(8))

    def abort_and_use() -> None:
        group.abort()
        dist.all_reduce(torch.ones(8))

    return abort_and_use


def _split(rank: int) -> Failing:
    """Ranks disagree on how many elements go to each other."""
    splits = [4, 4, 4] if rank != LAST else [3, 5, 4]
    return lambda: dist.all_to_all_single(torch.ones(12), torch.ones(12), splits, splits)


DISAGREEMENTS: dict[str, Callable[[int], Failing]] = {
    "mismatch": _mismatch,
    "timeout": _timeout,
    "abort": _abort,
    "split": _split,
}


def join_members(number: int, handles: Sequence[str]) -> None:
    torch_axon.reconfigure(number, handles, timeout=timedelta(seconds=FORMING_TIMEOUT_S))
    set_timeout(FORMING_TIMEOUT_S)
    _use(len(handles))


def disagree(name: str) -> str:
    if name == "timeout":
        set_timeout(1.0)
    return failure(DISAGREEMENTS[name](dist.get_rank()))
