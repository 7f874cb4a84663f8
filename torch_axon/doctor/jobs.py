"""Groups processes into jobs, and points out the ranks that others wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch_axon.doctor.processes import Call, Membership, Process, Progress

# Ranks are not read at the same moment, and in a healthy job they follow each other within this time.
LONG_S = 1.0


@dataclass(frozen=True)
class Job:
    """Processes that have groups in common. `group` is their largest one; None: the process is in no group."""

    processes: list[Process]
    group: Membership | None
    num_elsewhere: int  # ranks of the group on other hosts
    num_unseen: int  # ranks of the group on this host without a process that can be read

    def rank_of(self, process: Process) -> int | None:
        """Returns the rank in the largest group."""
        if self.group is None:
            return None
        return next((each.rank for each in process.groups if each.identity == self.group.identity), None)


def jobs_of(processes: Sequence[Process]) -> list[Job]:
    """Returns the jobs, each with its processes by rank.

    A group's identity is random and known to its ranks only, so processes with a common identity are of one job.
    """
    jobs: list[list[Process]] = []
    for process in processes:
        identities = {group.identity for group in process.groups}
        joined = [job for job in jobs if any(group.identity in identities for each in job for group in each.groups)]
        jobs = [job for job in jobs if job not in joined]
        jobs.append([*(each for job in joined for each in job), process])
    return sorted(map(_job, jobs), key=lambda job: min(process.pid for process in job.processes))


def _job(processes: list[Process]) -> Job:
    groups = [group for process in processes for group in process.groups]
    if not groups:
        return Job(processes, None, 0, 0)
    # If groups are equally large, the one with most ranks here is taken, or the first one.
    num_seen = {group.identity: sum(each.identity == group.identity for each in groups) for group in groups}
    largest = max(groups, key=lambda group: (group.size, num_seen[group.identity]))
    elsewhere = largest.size - largest.num_on_host
    job = Job(processes, largest, elsewhere, max(0, largest.num_on_host - num_seen[largest.identity]))

    def order(process: Process) -> tuple[bool, int]:
        rank = job.rank_of(process)
        return (True, process.pid) if rank is None else (False, rank)

    processes.sort(key=order)
    return job


def progress_of(members: Iterable[Membership]) -> dict[int, Progress]:
    """Returns how far the GPUs of a group are, by rank. Of what several GPUs know of a rank, the latest counts."""
    latest: dict[int, Progress] = {}
    for each in (each for group in members if group.progress_read_at for each in group.progress):
        known = latest.get(each.rank)
        if (
            known is None
            or _is_after(each.num_entered, known.num_entered)
            or (not known.call and each.num_entered == known.num_entered)
        ):
            latest[each.rank] = each
    return latest


def _is_after(left: int, right: int) -> bool:
    return 0 < (left - right) % 2**32 < 2**31  # they wrap


def ranks_text(ranks: Iterable[int]) -> str:
    """Returns "rank 3" or "ranks 0 to 2, 5"."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}{' to ' if len(run) > 2 else ', '}{run[-1]}" for run in runs]
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(texts)}"


def findings(job: Job, now: float, line_of: Callable[[Process], str] = lambda _: "") -> list[str]:
    """Returns what stands out in a job.

    Args:
        job: the job
        now: time.monotonic()
        line_of: returns the line that a process executes, or an empty text
    """
    found = []
    for process in job.processes:
        name = _name_of(job, process)
        if process.stopped:
            found.append(f"{name} is {process.stopped}: kill -CONT {process.pid} continues it")
        if process.failure:
            found.append(f"{name} cannot be read: {process.failure}")
        if process.num_left_out:
            found.append(f"{name} has {process.num_left_out} more groups, which its status page has no room for")
    members: dict[int, list[tuple[Process, Membership]]] = defaultdict(list)
    for process in job.processes:
        for group in process.groups:
            members[group.identity].append((process, group))
    for those in members.values():
        found += _Group(those, now, line_of).findings()
    if job.group is not None and job.num_unseen:
        ranks = f"{job.num_unseen} of its ranks on this host"
        if job.num_elsewhere == 0:
            seen = {job.rank_of(process) for process in job.processes}
            ranks = ranks_text(rank for rank in range(job.group.size) if rank not in seen)
        found.append(f"{ranks} cannot be seen: ended, or of another user or container")
    return found


def _name_of(job: Job, process: Process) -> str:
    rank = job.rank_of(process)
    return f"process {process.pid}" if rank is None else f"rank {rank} (process {process.pid})"


class _Group:
    """The members of one group that can be seen."""

    def __init__(
        self, members: Sequence[tuple[Process, Membership]], now: float, line_of: Callable[[Process], str]
    ) -> None:
        self._members = {group.rank: group for _, group in members}
        self._processes = {group.rank: process for process, group in members}
        self._group = members[0][1]
        self._now = now
        self._line_of = line_of

    def findings(self) -> list[str]:
        name = f"group '{self._group.name}': "
        found = [
            *self._failures(),
            *self._missing(),
            *self._different(),
            *self._late_on_gpus(),
            *self._late_kernels(),
            *self._unanswered(),
        ]
        return [name + each for each in found]

    def _failures(self) -> list[str]:
        failures: dict[str, list[int]] = defaultdict(list)
        for rank, group in self._members.items():
            if group.failure:
                failures[group.failure].append(rank)
        return [f"it has failed on {ranks_text(ranks)}: {reason}" for reason, ranks in failures.items()]

    def _missing(self) -> list[str]:
        """Finds ranks that have not entered the first collective that others are in."""
        waiting = [
            call
            for group in self._members.values()
            for call in group.active
            if call.sequence != 0 and self._now - call.called_at >= LONG_S
        ]
        if not waiting:
            return []
        first = min(waiting, key=lambda call: (call.sequence, call.called_at))
        missing = [rank for rank, group in self._members.items() if _is_before(group, first.sequence)]
        entered = [rank for rank, group in self._members.items() if rank not in missing and not group.failure]
        ago = f"{self._now - first.called_at:.1f} s ago"
        if missing:
            verb = "has" if len(missing) == 1 else "have"
            which = f"{first.text}, which {ranks_text(entered)} entered {ago}"
            return [f"{ranks_text(missing)} {verb} not entered {which}{self._lines(missing)}"]
        if len(self._members) < self._group.size:
            return [
                f"all ranks that can be seen here have entered {first.text}, the first {ago}: "
                "look at its other ranks if it does not finish"
            ]
        return []

    def _lines(self, ranks: Sequence[int]) -> str:
        lines = [(rank, self._line_of(self._processes[rank])) for rank in ranks]
        named = [f"rank {rank} is at {line}" for rank, line in lines if line]
        return f"; {', '.join(named)}" if named else ""

    def _different(self) -> list[str]:
        """Finds ranks whose latest collectives have one number but differ in kind."""
        calls: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, group in self._members.items():
            if group.latest is not None:
                calls[group.latest.sequence][group.latest.operation].append(rank)
        found = []
        for number, kinds in calls.items():
            if len(kinds) > 1:
                texts = [f"{ranks_text(ranks)} called {operation} #{number}" for operation, ranks in kinds.items()]
                found.append(f"different collectives: {', '.join(texts)}")
        return found

    def _late_on_gpus(self) -> list[str]:
        """Finds ranks whose GPUs were given fewer collectives than those of others."""
        counts = {rank: group.num_launched for rank, group in self._members.items()}
        most = max(counts.values())
        ahead = [rank for rank, count in counts.items() if count == most]
        late = [rank for rank in counts if rank not in ahead]
        latest = self._members[ahead[0]].launched
        if not late or latest is None or self._now - latest.called_at < LONG_S:
            return []
        verb = "has" if len(late) == 1 else "have"
        which = f"{latest.text}, which {ranks_text(ahead)} launched {self._now - latest.called_at:.1f} s ago"
        return [f"{ranks_text(late)} {verb} not launched {which}{self._lines(late)}"]

    def _late_kernels(self) -> list[str]:
        """Finds ranks whose kernels have not entered a collective that others wait in, also in launches of graphs."""
        progress = progress_of(self._members.values())
        first = next(iter(progress.values()), None)
        if first is None or not all(each.is_old for each in progress.values()):
            return []
        most = max(progress.values(), key=lambda each: (each.num_entered - first.num_entered + 2**31) % 2**32)
        ahead = [rank for rank, each in progress.items() if each.num_entered == most.num_entered]
        late = [rank for rank in progress if rank not in ahead and self._is_told(rank)]
        if not late:
            return []
        call = next((progress[rank].call for rank in ahead if progress[rank].call), "a collective")
        verb = ("GPU", "has") if len(late) == 1 else ("GPUs", "have")
        return [
            f"{ranks_text(late)}: the {verb[0]} {verb[1]} not entered {call}, which the kernels of {ranks_text(ahead)} "
            f"entered over {LONG_S:.0f} s ago{self._lines([rank for rank in late if rank in self._processes])}"
        ]

    def _is_told(self, rank: int) -> bool:
        """Returns whether another rank's GPU says what this one has entered. Its own says what it has finished."""
        members = (group for group in self._members.values() if group.rank != rank and group.progress_read_at)
        return any(each.rank == rank for group in members for each in group.progress)

    def _unanswered(self) -> list[str]:
        """Finds sends and receives without a counterpart."""
        found = []
        for rank, group in self._members.items():
            for call in group.running:
                other = self._members.get(call.peer)
                is_old = call.sequence == 0 and self._now - call.called_at >= LONG_S
                if other is None or not is_old or other.num_unlisted or call.operation not in _COUNTERPARTS:
                    continue
                counterpart = _COUNTERPARTS[call.operation]
                if not any(_answers(each, counterpart, rank) for each in other.running):
                    found.append(
                        f"rank {rank} is in {call.text} since {self._now - call.called_at:.1f} s, and rank "
                        f"{call.peer} in no {counterpart} for it{self._lines([call.peer])}"
                    )
        return found


_COUNTERPARTS = {"send": "receive", "receive": "send"}


def _answers(call: Call, operation: str, rank: int) -> bool:
    return call.operation == operation and call.peer in (rank, -1)


def _is_before(group: Membership, sequence: int) -> bool:
    if group.failure:
        return False
    return group.latest is None or _is_after(sequence, group.latest.sequence)
