"""What is wrong, or could be better, in what the ranks have found out; and what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_axon.doctor.facts import Facts
from torch_axon.doctor.paths import Pair, takes_rings
from torch_axon.doctor.probe import Probe

# An engine has 16 descriptors and one a peer of its host; what a job opens itself, workers of DataLoaders above all,
# comes on top.
_SPARE_FILES = 128
# What UCX 1.22 takes of /dev/shm for each rank where it carries the messages within a host. Rings take none of it.
_SHM_MIB_A_RANK = 5


@dataclass(frozen=True)
class Finding:
    is_problem: bool  # jobs will fail; else they may be slow
    text: str
    remedy: str


def findings(size: int, facts: Sequence[Facts], probes: Sequence[Probe], pairs: Sequence[Pair]) -> list[Finding]:
    """Problems first."""
    found = [
        *_missing(size, facts, probes),
        *_broken(facts, probes),
        *_differing(facts),
        *_limits(facts),
        *_untried(probes),
        *_slow(pairs),
    ]
    return sorted(found, key=lambda finding: not finding.is_problem)


def _missing(size: int, facts: Sequence[Facts], probes: Sequence[Probe]) -> Iterator[Finding]:
    for rank in range(size):
        if rank not in {each.rank for each in facts}:
            yield Finding(True, f"rank {rank} has not come", "look at its output: it did not start, or has died")
        elif rank not in {each.rank for each in probes}:
            yield Finding(
                True, f"rank {rank} has not come back from its tests", "look at its output: it has died, or hangs"
            )


def _broken(facts: Sequence[Facts], probes: Sequence[Probe]) -> Iterator[Finding]:
    for failure, ranks in _ranks_by({each.rank: each.failure for each in facts}).items():
        yield Finding(True, f"{ranks}: the extension cannot be loaded: {failure}", "see docs/troubleshooting.md")
    for failure, ranks in _ranks_by({each.rank: each.failure for each in probes}).items():
        yield Finding(True, f"{ranks}: {failure}", "see docs/troubleshooting.md")
    for probe in probes:
        for view in probe.views:
            if view.wrong:
                text = f"rank {probe.rank} has not got back from rank {view.peer} what it sent"
                yield Finding(True, text, "data is damaged on its way: report it with this report")


def _differing(facts: Sequence[Facts]) -> Iterator[Finding]:
    for name in ("torch_axon", "torch", "UCX", "CUDA driver"):
        versions = _ranks_by({each.rank: each.versions[name] for each in facts})
        if len(versions) > 1:
            text = "; ".join(f"{ranks}: {name} {version}" for version, ranks in versions.items())
            yield Finding(name in ("torch_axon", "torch"), text, "install the same on all ranks")
    for names, ranks in _ranks_by({each.rank: ", ".join(each.unknown_settings) for each in facts}).items():
        yield Finding(False, f"{ranks}: nothing reads {names}", "see docs/environment.md for the names")
    for each in facts:
        if each.gpus and each.versions["built with CUDA"] == "no":
            yield Finding(
                False, f"rank {each.rank} has a GPU, but torch_axon was built without CUDA", "build with AXON_CUDA=1"
            )


def _untried(probes: Sequence[Probe]) -> Iterator[Finding]:
    num_pairs = sum(probe.num_untried for probe in probes) // 2
    if num_pairs > 0:
        text = f"{num_pairs} pairs of ranks were not tried: a minute was over"
        yield Finding(False, text, "ask a smaller job about them")


def _limits(facts: Sequence[Facts]) -> Iterator[Finding]:
    by_host: dict[str, list[Facts]] = defaultdict(list)
    for each in facts:
        by_host[each.hostname].append(each)
        limits = each.limits
        if limits.open_files - limits.files_open < _SPARE_FILES + 2 * len(facts):
            text = f"rank {each.rank} may open {limits.open_files} files and has {limits.files_open} open"
            yield Finding(True, text, "ulimit -n 65536 (docker run --ulimit nofile=65536)")
    for host, ranks in by_host.items():
        limits = ranks[0].limits
        needed = _SHM_MIB_A_RANK * sum(not takes_rings(each) for each in ranks)
        if needed > (limits.shm_free_mib or 0):
            free = "no /dev/shm" if limits.shm_free_mib is None else f"{limits.shm_free_mib} MiB free in /dev/shm"
            text = f"{host} has {free}, and its ranks without rings want {needed} MiB: messages between them take TCP"
            yield Finding(False, text, "name rings in AXON_TRANSPORTS; or docker run --shm-size=1g")
        if limits.cpus < len(ranks):
            text = f"{host}: {len(ranks)} ranks share {limits.cpus} CPUs, so that they wait asleep, which is slower"
            yield Finding(False, text, "fewer ranks, or more CPUs for the job (cgroups, taskset)")


def _slow(pairs: Sequence[Pair]) -> Iterator[Finding]:
    """One finding a reason, naming its pairs."""
    by_reason: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        for tensors, obstacle in (
            ("on the CPU", pair.host.obstacle),
            ("on GPUs", pair.gpu.obstacle if pair.gpu else None),
        ):
            if obstacle is not None:
                by_reason[tensors, obstacle.reason, obstacle.remedy].append(pair)
    for (tensors, reason, remedy), slow in by_reason.items():
        first = f"ranks {slow[0].ranks[0]} and {slow[0].ranks[1]}"
        others = f" and {len(slow) - 1} more pairs" if len(slow) > 1 else ""
        yield Finding(False, f"{first}{others}, tensors {tensors}: {reason}", remedy)


def _ranks_by(texts: dict[int, str | None]) -> dict[str, str]:
    """For each text that is not empty: "rank 3", "ranks 0, 2"."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, text in texts.items():
        if text:
            ranks[text].append(rank)
    return {
        text: ("rank " if len(those) == 1 else "ranks ") + ", ".join(map(str, those)) for text, those in ranks.items()
    }
