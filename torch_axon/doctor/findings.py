"""Derives problems and notes, each with a remedy, from the results of the ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_axon.doctor.crossings import Crossing, remedy_for
from torch_axon.doctor.facts import Facts
from torch_axon.doctor.paths import Pair, takes, uses_ucx
from torch_axon.doctor.probe import Probe

# An engine has 16 descriptors and one per peer on its host. The job itself needs more, above all for the workers of
# DataLoaders.
_SPARE_FILES = 128
# UCX 1.22 uses this much of /dev/shm per rank if it carries the messages within a host. Rings do not use /dev/shm.
_SHM_MIB_PER_RANK = 5


@dataclass(frozen=True)
class Finding:
    """A problem or a note, and what to do about it."""

    is_problem: bool  # jobs will fail; otherwise they may be slow
    text: str
    remedy: str


def findings(size: int, facts: Sequence[Facts], probes: Sequence[Probe], pairs: Sequence[Pair]) -> list[Finding]:
    """Returns all findings, problems first."""
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
            yield Finding(True, f"rank {rank} did not report", "look at its output: it did not start, or it died")
        elif rank not in {each.rank for each in probes}:
            yield Finding(
                True, f"rank {rank} did not finish its tests", "look at its output: it died, or it does not respond"
            )


def _broken(facts: Sequence[Facts], probes: Sequence[Probe]) -> Iterator[Finding]:
    for failure, ranks in _ranks_by({each.rank: each.failure for each in facts}).items():
        yield Finding(True, f"{ranks}: the extension cannot be loaded: {failure}", "see docs/troubleshooting.md")
    for failure, ranks in _ranks_by({each.rank: each.failure for each in probes}).items():
        yield Finding(True, f"{ranks}: {failure}", remedy_for(failure) or "see docs/troubleshooting.md")
    for probe in probes:
        for view in probe.views:
            if view.wrong:
                text = f"rank {probe.rank} sent data to rank {view.peer} and received different data back"
                yield Finding(True, text, "data was corrupted in transit: file a bug with this report")


def _differing(facts: Sequence[Facts]) -> Iterator[Finding]:
    for name in ("torch_axon", "torch", "UCX", "CUDA driver"):
        versions = _ranks_by({each.rank: each.versions[name] for each in facts if name != "UCX" or uses_ucx(each)})
        if len(versions) > 1:
            text = "; ".join(f"{ranks}: {name} {version}" for version, ranks in versions.items())
            yield Finding(name in ("torch_axon", "torch"), text, "install the same version on all ranks")
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
        text = f"{num_pairs} pairs of ranks were not tried within a minute"
        yield Finding(False, text, "run the doctor in a smaller job")


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
        needed = _SHM_MIB_PER_RANK * sum(uses_ucx(each) and not takes(each, "rings") for each in ranks)
        if needed > (limits.shm_free_mib or 0):
            free = "no /dev/shm" if limits.shm_free_mib is None else f"{limits.shm_free_mib} MiB free in /dev/shm"
            text = f"{host} has {free}, and its ranks without rings need {needed} MiB: they use TCP"
            yield Finding(False, text, "add rings to AXON_TRANSPORTS, or use docker run --shm-size=1g")
        if limits.cpus < len(ranks):
            text = f"{host}: {len(ranks)} ranks share {limits.cpus} CPUs, so they sleep while waiting, which is slower"
            yield Finding(False, text, "start fewer ranks, or give the job more CPUs (cgroups, taskset)")


def _slow(pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Yields one finding per reason, which names its pairs of ranks."""
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


def notes_on(crossings: Sequence[Crossing]) -> list[Finding]:
    """Returns a note for each obstacle between hosts that has a remedy."""
    return [
        Finding(False, f"between {' and '.join(crossing.hosts)}: {obstacle.reason}", obstacle.remedy)
        for crossing in crossings
        for obstacle in crossing.obstacles
        if obstacle.remedy
    ]


def _ranks_by(texts: dict[int, str | None]) -> dict[str, str]:
    """Maps each non-empty text to its ranks, such as "rank 3" or "ranks 0, 2"."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, text in texts.items():
        if text:
            ranks[text].append(rank)
    return {
        text: ("rank " if len(those) == 1 else "ranks ") + ", ".join(map(str, those)) for text, those in ranks.items()
    }
