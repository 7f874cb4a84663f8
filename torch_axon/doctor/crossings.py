"""Describes what carries the data of each pair of hosts, and why not more of it."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch_axon.doctor.facts import Facts
from torch_axon.doctor.paths import Obstacle, Pair, name_of_lanes
from torch_axon.doctor.probe import Probe, Speed, View

_REACH = (
    "let the hosts connect to each other at all TCP ports, or name devices that reach the other hosts in "
    "AXON_RAIL_DEVICES"
)
# Remedies for the engine's reasons, by a part of the reason; the first match counts. All other reasons are deliberate
# choices, which need no remedy.
_REMEDIES = {
    "AXON_RAILS is": "unset AXON_RAILS",
    "file descriptors": "ulimit -n 65536 (docker run --ulimit nofile=65536)",
    "cannot be opened": _REACH,
    "no connection to it can be opened": _REACH,
    "no answer": _REACH,
    "no device of this host leads to it": "give the hosts a route to each other, or check AXON_RAIL_DEVICES",
    "no device": "give the host's devices addresses, or check AXON_RAIL_DEVICES and UCX_NET_DEVICES",
    "none of the devices": "check AXON_RAIL_DEVICES",
}
_REFUSED = "it accepts no rails"  # the other rank tells the reason


@dataclass(frozen=True)
class Crossing:
    """What carries the data between the ranks of two hosts."""

    hosts: tuple[str, str]  # each with its ranks
    carriers: list[str]  # the most frequent first
    speed: Speed | None  # medians over the pairs of ranks
    obstacles: list[Obstacle]  # why not more; the remedy is empty where there is none, or another note has it


def crossings_of(facts: Sequence[Facts], probes: Sequence[Probe], pairs: Sequence[Pair]) -> list[Crossing]:
    """Returns one item for each pair of hosts of which ranks have met; an empty list if there is one host."""
    views = {(view.rank, view.peer): view for probe in probes for view in probe.views}
    hosts = _hosts_of(facts, views)
    met: dict[tuple[int, int], list[Pair]] = defaultdict(list)
    for pair in pairs:
        first, second = (hosts[rank] for rank in pair.ranks)
        if first != second:
            met[min(first, second), max(first, second)].append(pair)
    return [
        Crossing(
            (_name_of(first, facts, hosts), _name_of(second, facts, hosts)),
            _carriers(those, views),
            _speed(those),
            _obstacles(those, views),
        )
        for (first, second), those in sorted(met.items())
    ]


def _hosts_of(facts: Sequence[Facts], views: dict[tuple[int, int], View]) -> dict[int, int]:
    """Returns the lowest rank on the host of each rank."""
    hosts: dict[int, int] = {}
    for rank in sorted(each.rank for each in facts):
        lower = [peer for (one, peer), view in views.items() if one == rank and view.same_host and peer in hosts]
        hosts[rank] = hosts[min(lower)] if lower else rank
    return hosts


def _name_of(host: int, facts: Sequence[Facts], hosts: dict[int, int]) -> str:
    ranks = sorted(rank for rank, its_host in hosts.items() if its_host == host)
    hostname = next(each.hostname for each in facts if each.rank == host)
    numbers = ", ".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]} … {ranks[-1]}, {len(ranks)} in all"
    return f"{hostname} ({'rank' if len(ranks) == 1 else 'ranks'} {numbers})"


def _both_ways(pair: Pair, views: dict[tuple[int, int], View]) -> tuple[View, View]:
    lower, upper = pair.ranks
    return views[lower, upper], views[upper, lower]


def _carriers(pairs: Sequence[Pair], views: dict[tuple[int, int], View]) -> list[str]:
    names = Counter(name_of_lanes(view.lanes) for pair in pairs for view in _both_ways(pair, views))
    return [name for name, _ in names.most_common()]


def _speed(pairs: Sequence[Pair]) -> Speed | None:
    speeds = [pair.host.speed for pair in pairs if pair.host.speed is not None]
    if not speeds:
        return None
    return Speed(
        statistics.median(each.latency_us for each in speeds), statistics.median(each.bandwidth_gbs for each in speeds)
    )


def _obstacles(pairs: Sequence[Pair], views: dict[tuple[int, int], View]) -> list[Obstacle]:
    ways: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pair in pairs:
        if pair.host.obstacle is not None:  # which has a note of its own, with the remedy
            ways[pair.host.obstacle.reason, ""].append(f"ranks {pair.ranks[0]} and {pair.ranks[1]}")
        one, other = _both_ways(pair, views)
        for view, back in ((one, other), (other, one)):
            for reason in view.obstacles:
                if reason != _REFUSED or not back.obstacles:
                    ways[reason, remedy_for(reason)].append(f"rank {view.rank} to rank {view.peer}")
    return [Obstacle(f"{_listed(those)}: {reason}", remedy) for (reason, remedy), those in ways.items()]


def _listed(ways: Sequence[str]) -> str:
    return ways[0] if len(ways) == 1 else f"{ways[0]} and {len(ways) - 1} more"


def remedy_for(reason: str) -> str:
    """Returns what to do about a reason of the engine; an empty text for deliberate choices and unknown reasons."""
    return next((remedy for part, remedy in _REMEDIES.items() if part in reason), "")
