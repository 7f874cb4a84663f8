"""Describes the path between two ranks: its name, its speed, and why the ranks use no faster one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch_axon.doctor.facts import Facts
from torch_axon.doctor.probe import Probe, Speed, View

_SHARED_MEMORY = {"posix", "sysv", "xpmem"}
_SINGLE_COPY = {"cma": "CMA", "knem": "KNEM", "xpmem": "XPMEM"}

PTRACE = (
    "let the ranks trace each other: docker run --cap-add=SYS_PTRACE (or a seccomp profile that allows "
    "process_vm_readv and pidfd_getfd); sysctl kernel.yama.ptrace_scope of 0 or 1"
)
_DEFAULT_TRANSPORTS = "auto,rings,cma,cuda"
_NAMESPACES = "give the containers of a host the same namespaces: docker run --ipc=host --pid=host --network=host"
# Remedies for the engine's reasons about a GPU, by a part of the reason; the first match counts.
_GPU_REMEDIES = {
    "AXON_TRANSPORTS": "add cuda to AXON_TRANSPORTS",
    "pidfd_getfd": PTRACE,
    "process_vm_readv": PTRACE,
    "another host": "nothing: between hosts tensors go through host memory",
    "2 to 16 ranks": "nothing: more ranks of a host go through host memory",
    "peer access": "nothing, if these GPUs have no link; otherwise check nvidia-smi topo -p2p r, IOMMU and ACS",
    "arena": "increase AXON_ARENA_MB, or free memory on the GPU",
}


@dataclass(frozen=True)
class Obstacle:
    """Why a faster path is not available, and what to do about it."""

    reason: str
    remedy: str


@dataclass(frozen=True)
class Path:
    """A path between two ranks."""

    name: str
    speed: Speed | None
    obstacle: Obstacle | None  # why the ranks use no faster path; None: they do


@dataclass(frozen=True)
class Pair:
    """Two ranks and the paths between them."""

    ranks: tuple[int, int]
    host: Path
    gpu: Path | None


def pairs_of(facts: Sequence[Facts], probes: Sequence[Probe]) -> list[Pair]:
    """Returns all pairs for which both ranks have results."""
    by_rank = {each.rank: each for each in facts}
    views = {(view.rank, view.peer): view for probe in probes for view in probe.views}
    return [
        _pair((view, views[peer, rank]), (by_rank[rank], by_rank[peer]))
        for (rank, peer), view in sorted(views.items())
        if rank < peer and (peer, rank) in views and {rank, peer} <= by_rank.keys()
    ]


def takes(facts: Facts, transport: str) -> bool:
    """Returns whether the settings of a rank name this transport."""
    return transport in facts.settings.get("AXON_TRANSPORTS", _DEFAULT_TRANSPORTS).split(",")


def uses_ucx(facts: Facts) -> bool:
    """Returns whether UCX may carry messages of this rank. Without it, rails carry all that rings do not."""
    return takes(facts, "ucx") or (takes(facts, "auto") and bool(facts.rdma))


def _pair(views: tuple[View, View], facts: tuple[Facts, Facts]) -> Pair:
    view = views[0]
    gpu = None if view.kernels is None else Path(_gpu_name(view), view.gpu, _gpu_obstacle(views))
    return Pair((view.rank, view.peer), Path(name_of_lanes(view.lanes), view.host, _host_obstacle(views, facts)), gpu)


def _lanes(view: View) -> set[str]:
    """Returns the names of the lanes other than rails for long messages."""
    return {name for name, _ in view.lanes if name != "rail"}


def name_of_lanes(lanes: Sequence[tuple[str, str]]) -> str:
    """Returns a name such as "rings + CMA", "shared memory + CMA" or "TCP (eth0) + 2 rails (eth0 to 10.0.0.2)"."""
    names = {name for name, _ in lanes}
    copies = [title for name, title in _SINGLE_COPY.items() if name in names]
    if "ring" in names:
        return " + ".join(["rings", *copies])
    if names & _SHARED_MEMORY:
        return " + ".join(["shared memory", *copies])
    networks = {
        f"{name.upper() if name == 'tcp' else name} ({device})"
        for name, device in lanes
        if name not in _SINGLE_COPY and name != "rail"
    }
    rails = Counter(route for name, route in lanes if name == "rail")
    by_route = [f"{number} {'rail' if number == 1 else 'rails'} ({route})" for route, number in sorted(rails.items())]
    return " + ".join([*copies, *sorted(networks), *by_route]) or "unknown"


def _host_obstacle(views: tuple[View, View], facts: tuple[Facts, Facts]) -> Obstacle | None:
    lanes = _lanes(views[0])
    if views[0].same_host:
        return _obstacle_within_a_host(views, facts)
    if facts[0].boot == facts[1].boot:
        different = [name for name, number in facts[0].namespaces.items() if number != facts[1].namespaces[name]]
        if different:
            return Obstacle(f"the ranks share a host, but not the {' and '.join(different)} namespaces", _NAMESPACES)
    if lanes <= {"tcp"} and all(each.rdma for each in facts):
        devices = ", ".join(facts[0].rdma)
        build = "build torch_axon with a UCX that has verbs (AXON_UCX_ROOT)"
        if any(takes(each, "rails") for each in facts):
            reason = f"rails, which AXON_TRANSPORTS names, cannot use {devices}"
            return Obstacle(reason, f"name auto instead of rails in AXON_TRANSPORTS, and {build}")
        return Obstacle(f"UCX does not connect the ranks over {devices}", f"check that a port is up, and {build}")
    return None


def _obstacle_within_a_host(views: tuple[View, View], facts: tuple[Facts, Facts]) -> Obstacle | None:
    lanes = _lanes(views[0])
    if lanes & {"ring", *_SHARED_MEMORY} and lanes & _SINGLE_COPY.keys():
        return None
    refusals = [view.memory for view in views if view.memory]
    if "ring" in lanes and not all(takes(each, "cma") for each in facts):
        return Obstacle("AXON_TRANSPORTS does not name cma", "add cma to AXON_TRANSPORTS")
    if "ring" in lanes:
        return Obstacle("a rank may not read the other's memory: " + (refusals or ["the kernel has no CMA"])[0], PTRACE)
    have_rings = all(takes(each, "rings") for each in facts)
    if not have_rings and not all(uses_ucx(each) for each in facts):
        return Obstacle("AXON_TRANSPORTS does not name rings", "add rings and cma to AXON_TRANSPORTS")
    chosen = [
        f"{name}={each.settings[name]}"
        for each in facts
        for name in ("AXON_UCX_TLS", "UCX_TLS")
        if name in each.settings and uses_ucx(each)
    ]
    missing = "CMA" if lanes & _SHARED_MEMORY else "shared memory"
    if chosen:
        return Obstacle(f"UCX was not given {missing}: {chosen[0]}", f"unset {chosen[0].partition('=')[0]}")
    if missing == "shared memory" and have_rings:
        reason = "a rank does not accept rings of the other: see its log at AXON_LOG=info"
        return Obstacle(reason, "run the ranks of a host as one user that may read /proc/PID/fd, with enough memory")
    if missing == "shared memory":
        return Obstacle("UCX finds no shared memory", "check the size and the permissions of /dev/shm")
    return Obstacle("a rank may not read the other's memory: " + (refusals or ["UCX offers no CMA"])[0], PTRACE)


def _gpu_name(view: View) -> str:
    if not view.kernels:
        return "through host memory"
    return "kernels, zero-copy" if view.direct else "kernels, over the arena"


def _gpu_obstacle(views: tuple[View, View]) -> Obstacle | None:
    if not views[0].kernels:
        reason = next((view.obstacle for view in views if view.obstacle), "the GPUs cannot access each other")
        remedy = next((remedy for part, remedy in _GPU_REMEDIES.items() if part in reason), "see docs/cuda.md")
        return Obstacle(reason, remedy)
    if views[0].direct:
        return None
    return Obstacle("a rank's large tensors cannot be mapped by the other", "see docs/cuda.md, Segments")
