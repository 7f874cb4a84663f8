"""Prints the report on a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from torch_axon.config import size_text
from torch_axon.doctor.crossings import Crossing
from torch_axon.doctor.facts import Facts
from torch_axon.doctor.paths import Pair, uses_ucx
from torch_axon.doctor.probe import Choice, Speed
from torch_axon.doctor.report import Report
from torch_axon.doctor.transfers import Transfers

_WIDEST_TABLE = 160
_MOST_WAYS = 4
_MOST_PAIRS = 36  # all 28 pairs of eight ranks, and eight more


def show(report: Report) -> None:
    """Prints the tables and the findings."""
    console = Console(width=_WIDEST_TABLE, highlight=False)
    for title, table in _tables(report):
        console.print(f"\n[bold]{title}[/bold]")
        console.print(table)
    console.print()
    for finding in report.findings:
        kind = "[red]problem[/red]" if finding.is_problem else "[yellow]note[/yellow]"
        console.print(f"{kind}: ", end="")
        console.print(f"{finding.text}\n    → {finding.remedy}", markup=False, soft_wrap=True)
    if not report.findings:
        console.print("No problems found.")


def _tables(report: Report) -> list[tuple[str, Table]]:
    tables = []
    if report.ranks:
        first = report.ranks[0]
        places = {f"{name} from": place for name, place in first.places.items()}
        found = {**first.versions, **places, **first.settings}
        if not uses_ucx(first):  # although the doctor has loaded it
            found |= dict.fromkeys(("UCX", "UCX from"), "not used")
        tables.append((f"What rank {first.rank} found", _table(["", ""], [[*row] for row in found.items()])))
        tables.append(("Ranks and their limits", _ranks(report.ranks)))
    if report.pairs:
        slowest = sorted(report.pairs, key=_latency, reverse=True)[:_MOST_PAIRS]
        left_out = len(report.pairs) - len(slowest)
        title = f"Paths: the slowest; {left_out} more in --json" if left_out else "Paths"
        tables.append((title, _paths(sorted(slowest, key=lambda pair: pair.ranks))))
    if report.between_hosts:
        shown = report.between_hosts[:_MOST_PAIRS]
        left_out = len(report.between_hosts) - len(shown)
        title = f"Between hosts; {left_out} more pairs in --json" if left_out else "Between hosts"
        tables.append((title, _crossings(shown)))
    if report.one_sided:
        tables.append(("One-sided transfers", _transfers(report.one_sided)))
    if report.choices:
        tables.append(("Algorithms, by the size of the operation", _choices(report.choices)))
    return tables


def _ranks(ranks: Sequence[Facts]) -> Table:
    titles = ["rank", "host", "pid", "CPUs", "/dev/shm free of MiB", "files open of", "locked KiB", "ptrace", "GPU"]
    rows = [
        [
            str(each.rank),
            each.hostname,
            str(each.pid),
            str(each.limits.cpus),
            f"{each.limits.shm_free_mib} of {each.limits.shm_mib}" if each.limits.shm_mib is not None else "none",
            f"{each.limits.files_open} of {each.limits.open_files}",
            "unlimited" if each.limits.locked_kib is None else str(each.limits.locked_kib),
            "no Yama" if each.limits.ptrace_scope is None else f"scope {each.limits.ptrace_scope}",
            "none" if each.gpu is None else f"{each.gpu}: {each.gpus[each.gpu]}",
        ]
        for each in ranks
    ]
    return _table(titles, rows)


def _paths(pairs: Sequence[Pair]) -> Table:
    titles = ["ranks", "tensors", "path", "8 B, µs", "large, GB/s"]
    rows = []
    for pair in pairs:
        for tensors, path in (("CPU", pair.host), ("GPU", pair.gpu)):
            if path is not None:
                rows.append([f"{pair.ranks[0]}, {pair.ranks[1]}", tensors, path.name, *_figures(path.speed)])
    return _table(titles, rows)


def _crossings(crossings: Sequence[Crossing]) -> Table:
    rows = [
        [
            "\n".join(each.hosts),
            "\n".join(each.carriers),
            *_figures(each.speed),
            "\n".join(obstacle.reason for obstacle in each.obstacles) or "–",
        ]
        for each in crossings
    ]
    return _table(["hosts", "carried by", "8 B, µs", "large, GB/s", "why not more"], rows)


def _transfers(transfers: Sequence[Transfers]) -> Table:
    """Returns a table with one row per kind of memory, path and reason, which names the first of its ranks."""
    ranks: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for each in transfers:
        reason = "–" if each.obstacle is None else each.obstacle.reason
        ranks[each.memory, each.path, reason].append(f"{each.initiator} to {each.owner}")
    rows = []
    for (memory, path, reason), those in ranks.items():
        more = len(those) - _MOST_WAYS
        shown = ", ".join(those[:_MOST_WAYS]) + (f" and {more} more" if more > 0 else "")
        rows.append([shown, memory, path, reason])
    return _table(["initiator to owner", "memory", "Remote.path", "why no better one"], rows)


def _choices(choices: Sequence[Choice]) -> Table:
    """Returns a table with one column per size, and one row per operation and device."""
    sizes = list(dict.fromkeys(choice.num_bytes for choice in choices))
    names: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        if choice.algorithm:
            names.setdefault((choice.operation, "CPU"), []).append(choice.algorithm)
        if choice.kernel is not None:
            names.setdefault((choice.operation, "GPU"), []).append(choice.kernel or "through host memory")
    rows = [[*row, *chosen] for row, chosen in names.items()]
    return _table(["operation", "tensors", *(size_text(size) for size in sizes)], rows)


def _figures(speed: Speed | None) -> list[str]:
    if speed is None:
        return ["–", "–"]
    return [f"{speed.latency_us:.1f}", f"{speed.bandwidth_gbs:.1f}"]


def _latency(pair: Pair) -> float:
    return pair.host.speed.latency_us if pair.host.speed else 0.0


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(titles))
    for title in titles:
        table.add_column(title, justify="right" if "/" in title or "µ" in title else "left")
    for row in rows:
        table.add_row(*row)
    return table
