"""Shows which rank of the jobs on this host is in which call, since when, and at which line. No job is stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch_axon.doctor import processes
from torch_axon.doctor.jobs import LONG_S, Job, findings, jobs_of, progress_of
from torch_axon.doctor.processes import Call, Membership, Process, Progress
from torch_axon.doctor.stacks import INSTALL, Stacks, find_tool, stacks_of

# A process answers within 0.1 s, unless it is stopped or its driver is busy.
_LONGEST_ANSWER_S = 0.5


@dataclass(frozen=True)
class View:
    """The jobs at one moment."""

    jobs: list[Job]
    now: float  # time.monotonic() when they had been read
    stacks: Mapping[int, Stacks] = field(default_factory=dict)  # by PID
    notes: list[str] = field(default_factory=list)  # why something is not shown

    def line_of(self, process: Process, call: Call | None = None) -> str:
        """Returns the line that made the call, or else the line at which the process is now."""
        if call is not None and call.call_site:
            return call.call_site
        stacks = self.stacks.get(process.pid)
        return "" if stacks is None else stacks.line(process.pid, 0 if call is None else call.waiter)

    def findings(self, job: Job) -> list[str]:
        """Returns what stands out in a job."""
        return findings(job, self.now, self.line_of)

    def as_dict(self) -> dict[str, Any]:
        """Returns the view as plain values, for JSON."""
        return {"jobs": [self._job(job) for job in self.jobs], "notes": self.notes}

    def _job(self, job: Job) -> dict[str, Any]:
        return {
            "group": None if job.group is None else job.group.name,
            "size": None if job.group is None else job.group.size,
            "num_elsewhere": job.num_elsewhere,
            "num_unseen": job.num_unseen,
            "processes": [self._process(job, process) for process in job.processes],
            "findings": self.findings(job),
        }

    def _process(self, job: Job, process: Process) -> dict[str, Any]:
        row = asdict(process)
        for group in row["groups"]:
            read_at = group.pop("progress_read_at")
            group["progress_age_s"] = round(self.now - read_at, 3) if read_at else None
            group["identity"] = f"{group['identity']:016x}"  # readers of JSON may round large numbers
            for call in (*group["running"], *(group[name] for name in processes.SINGLE_CALLS)):
                if call is not None:
                    call["age_s"] = round(self.now - call.pop("called_at"), 3)
        return {"rank": job.rank_of(process), "line": self.line_of(process), **row}


def look(pid: int | None) -> View:
    """Reads the jobs of this user, or the job of one process.

    Args:
        pid: the process; None for all jobs of this user

    Raises:
        ValueError: the process cannot be read; the message says why
    """
    uid = os.geteuid() if pid is None else processes.check(pid)
    members = [process for job in _jobs(processes.find(uid), pid) for process in job.processes]
    pids = [process.pid for process in members]
    members = _with_progress(members, lambda: processes.read_all(pids))
    now = time.monotonic()
    jobs = _jobs(members, pid)
    stacks, notes = _stacks([process.pid for process in members])
    return View(jobs, now, stacks, notes)


def _jobs(found: Sequence[Process], pid: int | None) -> list[Job]:
    jobs = jobs_of(found)
    if pid is None:
        return jobs
    chosen = [job for job in jobs if any(process.pid == pid for process in job.processes)]
    if not chosen:
        raise ValueError(f"process {pid} has ended")
    return chosen


def _with_progress(found: list[Process], find: Callable[[], list[Process]]) -> list[Process]:
    """Asks the processes how far their GPUs are, and again after a second if some GPUs are later than others."""
    if not any(group.progress for process in found for group in process.groups):
        return found
    found = _ask(found, find)
    before = _progress(found)
    if all(len({each.num_entered for each in ranks.values()}) < 2 for ranks in before.values()):
        return found
    time.sleep(LONG_S)
    found = _ask(found, find)
    after = _progress(found)

    def marked(group: Membership) -> Membership:
        known = before.get(group.identity, {})
        latest = after[group.identity]
        old = [rank for rank in known.keys() & latest if known[rank].num_entered == latest[rank].num_entered]
        return replace(group, progress=[replace(each, is_old=each.rank in old) for each in group.progress])

    return [replace(process, groups=list(map(marked, process.groups))) for process in found]


def _progress(found: Sequence[Process]) -> dict[int, dict[int, Progress]]:
    """Returns the progress of the ranks, by the group's identity."""
    members: dict[int, list[Membership]] = {}
    for group in (group for process in found for group in process.groups):
        members.setdefault(group.identity, []).append(group)
    return {identity: progress_of(groups) for identity, groups in members.items()}


def _ask(found: Sequence[Process], find: Callable[[], list[Process]]) -> list[Process]:
    asked_at = time.monotonic()
    asked = {process.pid for process in found if any(group.progress for group in process.groups)}
    for pid in asked:
        processes.ask_for_progress(pid)
    while True:
        time.sleep(0.02)
        latest = find()
        groups = [group for process in latest if process.pid in asked for group in process.groups if group.progress]
        has_all = all(group.progress_read_at >= asked_at for group in groups)
        if has_all or time.monotonic() > asked_at + _LONGEST_ANSWER_S:
            return latest


def _stacks(pids: Sequence[int]) -> tuple[dict[int, Stacks], list[str]]:
    if not pids:
        return {}, []
    tool = find_tool()
    if tool is None:
        return {}, [INSTALL]
    stacks = stacks_of(pids, tool)
    failures = [each.failure for each in stacks.values() if each.failure]
    if not failures:
        return stacks, []
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return stacks, [f"not all lines of the programs are shown: {failures[0]}{more}"]
