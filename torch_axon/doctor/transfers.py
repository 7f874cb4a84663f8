"""Describes by which path a rank transfers memory of another one, and why by no better one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_axon.doctor.facts import Facts
from torch_axon.doctor.paths import PTRACE, Obstacle, Pair, takes
from torch_axon.doctor.probe import Probe, View

_BEST = {"CPU": "cma", "GPU": "cuda ipc"}
_TRANSPORT = {"CPU": "cma", "GPU": "cuda"}  # by which the best path goes
_SEE_LOG = "see the log of both ranks at AXON_LOG=info"


@dataclass(frozen=True)
class Transfers:
    """One-sided transfers of a rank with memory of another one."""

    initiator: int
    owner: int
    memory: str  # where the owner's memory is: "CPU" or "GPU"
    path: str  # as `Remote.path` names it; "none" if the memory could not be opened
    obstacle: Obstacle | None  # why they take no better path; None: they do


def transfers_of(facts: Sequence[Facts], probes: Sequence[Probe], pairs: Sequence[Pair]) -> list[Transfers]:
    """Returns one item for each initiator, owner and kind of memory, for the pairs that have results."""
    by_rank = {each.rank: each for each in facts}
    by_ranks = {pair.ranks: pair for pair in pairs}
    found = []
    for view in sorted((view for probe in probes for view in probe.views), key=lambda view: (view.rank, view.peer)):
        pair = by_ranks.get((min(view.rank, view.peer), max(view.rank, view.peer)))
        if pair is None:
            continue
        for memory, path in view.one_sided.items():
            is_best = path == _BEST[memory]
            obstacle = None if is_best else _obstacle(view, memory, pair, (by_rank[view.rank], by_rank[view.peer]))
            found.append(Transfers(view.rank, view.peer, memory, path, obstacle))
        for memory, failure in view.unopened.items():
            obstacle = Obstacle(f"rank {view.rank} cannot open it: {failure}", _SEE_LOG)
            found.append(Transfers(view.rank, view.peer, memory, "none", obstacle))
    return found


def _obstacle(view: View, memory: str, pair: Pair, facts: tuple[Facts, Facts]) -> Obstacle:
    """Returns why the ranks do not take the best path. `facts` are those of the initiator and of the owner."""
    if not view.same_host:
        return pair.host.obstacle or Obstacle(
            "the ranks are on different hosts", "nothing: messages are the path there"
        )
    transport = _TRANSPORT[memory]
    for each in facts:
        if not takes(each, transport):
            return Obstacle(
                f"AXON_TRANSPORTS of rank {each.rank} does not name {transport}", f"add {transport} to AXON_TRANSPORTS"
            )
    if view.memory:
        scope = facts[0].limits.ptrace_scope
        yama = f" (Yama's ptrace_scope is {scope})" if scope else ""
        return Obstacle(f"rank {view.rank} may not read the memory of rank {view.peer}: {view.memory}{yama}", PTRACE)
    path = pair.host if memory == "CPU" else pair.gpu
    if path is not None and path.obstacle is not None:
        return path.obstacle
    return Obstacle(f"rank {view.rank} has not found a better one", _SEE_LOG)
