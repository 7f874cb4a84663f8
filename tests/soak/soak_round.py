"""One round of the soak, as its ranks see it: they form a group, use it from several threads, and may lose one another.

    outcome = take_part(plan, rank)        # on every rank of the plan; the one that is killed never returns

The Outcome holds what a rank observes. The driver, which knows all ranks, checks it.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from soak_resources import Resources, measure

from support.pool import BACKEND
from support.torture import Torture

FORMING_TIMEOUT_S = 120.0

# The ranks that an error names: "rank 2 is gone: …", "rank 1 reports: …", "Not entered by: rank 0 (…), rank 3 (…)".
_ACCUSED = re.compile(r"rank (\d+) (?:is gone|reports|cannot be reached|has not used a GPU)")
_MISSING = re.compile(r"(?:Not entered by|Still awaited here): (.*?)(?=Entered by|Still awaited|$)", re.DOTALL)
_SIGNATURE = re.compile(r"\[rank \d+ of group '([^']*)'\]")


@dataclass(frozen=True)
class Part:
    """The steps of one thread of each rank; the same on all ranks."""

    seed: int
    device: str
    num_steps: int
    subsets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Plan:
    """`fault` is what rank `victim` does to itself before step `strike_step` of its first thread, or empty."""

    number: int
    folder: str
    slots: tuple[int, ...]  # by rank
    parts: tuple[Part, ...]  # by thread
    fault: str
    victim: int
    strike_step: int
    timeout_s: float

    @property
    def size(self) -> int:
        return len(self.slots)

    @property
    def strike_file(self) -> Path:
        return Path(self.folder, "struck")


@dataclass(frozen=True)
class Failure:
    """The first error of a thread. `accused` are the ranks that its text names, numbered as in the default group."""

    text: str
    is_wrong_data: bool
    accused: frozenset[int]
    at_s: float


@dataclass(frozen=True)
class Outcome:
    failures: list[Failure]  # in order
    num_steps: int
    resources: Resources


@dataclass
class _Life:
    """The state of this rank in a round, which its threads share."""

    plan: Plan
    rank: int
    gpu: torch.device | None
    tortures: list[Torture]
    lock: threading.Lock = field(default_factory=threading.Lock)
    failures: list[Failure] = field(default_factory=list)
    num_steps: int = 0

    def run(self, thread: int, device: torch.device) -> None:
        if self.gpu is not None:
            torch.cuda.set_device(self.gpu)  # also where the tensors are on the CPU: torch's barrier makes one on a GPU
        with device:
            try:
                self.tortures[thread].run(self.plan.parts[thread].num_steps, lambda step: self._before(thread, step))
                for group, _ in self.tortures[thread].own_groups:
                    dist.barrier(group)  # a rank that has lost another one finds out here at the latest
            except Exception as error:
                self._fail(error)

    def _before(self, thread: int, step: int) -> None:
        self.num_steps += 1
        if thread == 0 and self.rank == self.plan.victim and step == self.plan.strike_step:
            self._strike()

    def _strike(self) -> None:
        self.plan.strike_file.write_text(str(time.monotonic()))
        if self.plan.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.plan.fault == "stop":
            # The signal goes to this thread: a signal to the process would stop it only once its main thread runs.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        else:
            raise RuntimeError("the victim gives up")

    def _fail(self, error: Exception) -> None:
        """Aborts all groups of this rank at the first failure, so that ranks waiting for it in any group are told."""
        now = time.monotonic()
        with self.lock:
            is_first = not self.failures
            self.failures.append(self._describe(error, now))
        if is_first:
            with suppress(RuntimeError):
                dist.distributed_c10d._abort_process_group()

    def _describe(self, error: Exception, now: float) -> Failure:
        text = str(error)
        signature = _SIGNATURE.search(text)
        accused: frozenset[int] = frozenset()
        if signature is not None:
            members = self._members_of(signature[1])
            rest = text.replace(signature[0], "")
            numbers = _ACCUSED.findall(rest)
            for listed in _MISSING.findall(rest):
                numbers += re.findall(r"rank (\d+)", listed)
            accused = frozenset(members[int(number)] for number in numbers)
        return Failure(f"{type(error).__name__}: {text}", isinstance(error, AssertionError), accused, now)

    def _members_of(self, name: str) -> list[int]:
        for torture in self.tortures:
            for group, members in torture.own_groups:
                if group.group_name == name:
                    return members
        return list(range(self.plan.size))


def take_part(plan: Plan, rank: int) -> Outcome:
    torch._C._set_print_stack_traces_on_fatal_signal(True)  # also of threads that Python does not know
    dist.init_process_group(
        BACKEND,
        init_method=f"file://{plan.folder}/store",
        rank=rank,
        world_size=plan.size,
        timeout=timedelta(seconds=FORMING_TIMEOUT_S),
    )
    failures, num_steps = _live(plan, rank)
    if dist.is_initialized():
        dist.destroy_process_group()
    return Outcome(failures, num_steps, measure())


def _live(plan: Plan, rank: int) -> tuple[list[Failure], int]:
    home = torch.get_default_device()
    devices = [torch.device("cpu") if part.device == "cpu" else home for part in plan.parts]
    tortures = []
    for part, device in zip(plan.parts, devices, strict=True):
        with device:
            tortures.append(Torture(part.seed, part.subsets, timedelta(seconds=plan.timeout_s)))
    life = _Life(plan, rank, home if home.type == "cuda" else None, tortures)
    threads = [threading.Thread(target=life.run, args=(number, device)) for number, device in enumerate(devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return life.failures, life.num_steps
