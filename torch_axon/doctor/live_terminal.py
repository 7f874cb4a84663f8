"""Prints the live view on a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from torch_axon.doctor.jobs import Job, progress_of, ranks_text
from torch_axon.doctor.live import View
from torch_axon.doctor.processes import Call, Membership, Process

_WIDEST_TABLE = 200
_MOST_PIDS = 4
_LONGEST_COMMAND = 100
_TITLES = ("rank", "pid", "group", "call", "since", "state", "line")


def show(view: View) -> None:
    """Prints a table per job, and what stands out in it."""
    console = Console(width=_WIDEST_TABLE, highlight=False, markup=False)
    if not view.jobs:
        console.print("No process of this user runs torch_axon on this host.")
    for number, job in enumerate(view.jobs):
        if number:
            console.print()
        console.print(_title(job), style="bold", soft_wrap=True)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in _TITLES:
            table.add_column(title, justify="right" if title == "since" else "left", overflow="fold")
        for row in [*_active_rows(view, job), *_idle_rows(view, job)]:
            table.add_row(*row)
        console.print(table)
        for finding in view.findings(job):
            console.print(f"→ {finding}", style="yellow", soft_wrap=True)
    for note in view.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _title(job: Job) -> str:
    command = job.processes[0].command
    if len(command) > _LONGEST_COMMAND:
        command = command[: _LONGEST_COMMAND - 1] + "…"
    if job.group is None:
        return f"{command}: in no group"
    size = f"{job.group.size} {'rank' if job.group.size == 1 else 'ranks'}"
    elsewhere = f", {job.num_elsewhere} of them on other hosts, which cannot be seen" if job.num_elsewhere else ""
    return f"{command}: group '{job.group.name}' of {size}{elsewhere}"


def _rank(job: Job, process: Process) -> str:
    rank = job.rank_of(process)
    return "–" if rank is None else str(rank)


def _group(job: Job, process: Process, group: Membership) -> str:
    rank = "" if group.rank == job.rank_of(process) else f" (as rank {group.rank})"
    return f"{group.name}{rank}"


def _active_rows(view: View, job: Job) -> Iterator[list[str]]:
    """Returns a row for each call that runs, and for each group that has failed."""
    for process in job.processes:
        for group in process.groups:
            start = [_rank(job, process), str(process.pid), _group(job, process, group)]
            for call in group.active:
                state = f"{call.state}, process {process.stopped}" if process.stopped else call.state
                yield [*start, call.text, _since(view, call), state, view.line_of(process, call)]
            if group.num_unlisted:
                yield [*start, f"{group.num_unlisted} more calls", "", "running", ""]
            if group.num_torn:
                yield [*start, "a call that is being recorded", "", process.stopped or "running", view.line_of(process)]
            if group.failure and not group.active:
                last = "" if group.latest is None else group.latest.text
                yield [*start, last, "", "the group has failed, see below", view.line_of(process)]


def _since(view: View, call: Call) -> str:
    return f"{max(0.0, view.now - call.called_at):.1f} s"


def _is_idle(group: Membership) -> bool:
    return not (group.active or group.failure or group.num_unlisted or group.num_torn)


def _idle_rows(view: View, job: Job) -> Iterator[list[str]]:
    """Returns a row for the processes without a call that runs; those in the same state share one."""
    alike: dict[tuple[str, ...], list[Process]] = defaultdict(list)
    for process in job.processes:
        if all(map(_is_idle, process.groups)):
            alike[(*_idle_state(job, process), view.line_of(process))].append(process)
        for group in process.groups:
            # A GPU may still run what its rank has launched, whatever the rank does.
            if not _is_idle(group) and (text := _on_gpu(job, group)):
                alike[group.name, text, "", view.line_of(process)].append(process)
    for (name, text, stopped, line), those in alike.items():
        ranks = [rank for process in those if (rank := job.rank_of(process)) is not None]
        pids = ", ".join(str(process.pid) for process in those[:_MOST_PIDS]) + ("…" if len(those) > _MOST_PIDS else "")
        numbers = ranks_text(ranks).split(" ", 1)[1] if ranks else "–"
        yield [numbers, pids, name, text, "", stopped, line]


def _idle_state(job: Job, process: Process) -> tuple[str, str, str]:
    """Returns group, call and state of a process that is in no call."""
    used = [group for group in process.groups if group.latest is not None or _on_gpu(job, group)]
    latest = max(used, key=_latest_time, default=None)
    state = process.stopped or "idle"
    if latest is None:
        return ("", "none yet" if process.groups else "", state if process.groups else f"{state}, in no group")
    texts = [f"last {latest.latest.text}" if latest.latest is not None else "", _on_gpu(job, latest)]
    return (latest.name, "; ".join(filter(None, texts)), state)


def _latest_time(group: Membership) -> float:
    calls = (group.latest, group.replay, group.launched, group.message, group.captured)
    return max((call.called_at for call in calls if call is not None), default=0.0)


def _on_gpu(job: Job, group: Membership) -> str:
    """Returns what the group's GPU was given, and how far it is."""
    parts = []
    if group.replay is not None and not group.replay.is_running:
        parts.append(f"replayed {group.replay.text}")
    if group.launched is not None:
        parts.append(f"launched {group.launched.text}")
    if group.message is not None:
        parts.append(f"launched {group.message.text}")
    if group.captured is not None:
        parts.append(f"captured {group.captured.text} in a CUDA graph")
    members = [each for process in job.processes for each in process.groups if each.identity == group.identity]
    progress = progress_of(members).get(group.rank)
    if progress is not None and progress.num_entered:
        last = f", the last {progress.call}" if progress.call else ""
        parts.append(f"its kernels have entered {progress.num_entered} collectives{last}")
    return "; ".join(parts)
