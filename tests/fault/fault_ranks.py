"""Lets a victim fail among survivors, and checks the survivors' errors.

ranks = Ranks("cpu")
ranks.endure(Case("kill", "inside", "all_reduce", folder), journal)     # raises AssertionError at a wrong result
ranks.survivors.run(function)                                           # still the same processes
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fault_case import LAST, Case, Place, Stretch, be_survivor, be_victim, leave, regroup
from fault_journal import Journal
from fault_operations import names_in_errors

from support.hosts import Hosts, move_to
from support.pool import RankPool

# The limit for abort and destroy.
LEAVE_S = {"cpu": 1.0, "cuda": 5.0}


class Ranks:
    """The survivors, which live through all cases, and a victim, which is replaced after each case that it did not
    survive.

    With two hosts, the victim has its own.
    """

    def __init__(self, device: str, hosts: Hosts | None = None) -> None:
        self._device = device
        self._hosts = hosts
        self._pools: dict[str, RankPool] = {}

    @property
    def survivors(self) -> RankPool:
        return self._pool("survivors", LAST, first_gpu=0)

    @property
    def victim(self) -> RankPool:
        return self._pool("victim", 1, first_gpu=LAST)

    def _pool(self, name: str, size: int, first_gpu: int) -> RankPool:
        if name not in self._pools or self._pools[name].broken:
            if name in self._pools:
                self._pools[name].close()
            self._pools[name] = RankPool(size, meeting="none", device=self._device, first_gpu=first_gpu)
            if self._hosts:
                self._pools[name].run(move_to, self._hosts.names[name == "victim"])
        return self._pools[name]

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Marks the pools as broken if this raises, because their ranks may still be in the middle of a call."""
        try:
            yield
        except BaseException:
            for pool in self._pools.values():
                pool.broken = True
            raise

    def endure(self, case: Case, journal: Journal) -> None:
        with self.breaking():
            outcomes, stretches = self.fail(case, partial(self.survivors.run, leave, case))
            if case.kind.end == "goes on":
                stretches += self.victim.run(leave, case)
            self.judge(case, journal, outcomes)
            self._regroup(case)
        for stretch in stretches:
            journal.leaves_s.append(stretch.seconds)
            assert stretch.is_within(LEAVE_S[self._device]), f"leaving took too long: {stretch}"

    def fail(self, case: Case, go_on: Callable[[], list[Stretch]]) -> tuple[list[tuple[str, Stretch]], list[Stretch]]:
        """Returns the survivors' errors, and what `go_on` returns. It runs while the victim is stopped or cut off."""
        kind, victim = case.kind, self.victim
        victim.start(be_victim, case, Place((case.victim,)))
        self.survivors.start(be_survivor, case, Place(case.survivors))
        with self._link_struck(case):
            outcomes = self.survivors.finish()
            stretches = go_on()
            if kind.then == signal.SIGCONT:
                os.kill(victim.pids[0], kind.then)
            if kind.then != signal.SIGKILL:
                victims = victim.finish(dying=[] if kind.end == "goes on" else [0])
        assert not case.kind.link or any(f"rank {rank}" in victims[0] for rank in case.survivors)
        return outcomes, stretches

    def end_victim(self, case: Case) -> None:
        """Ends a victim that is still stopped."""
        if case.kind.then == signal.SIGKILL:
            os.kill(self.victim.pids[0], signal.SIGKILL)
            self.victim.finish(dying=[0])

    def judge(self, case: Case, journal: Journal, outcomes: list[tuple[str, Stretch]]) -> None:
        victim_starved_s = case.victim_starved_s()
        for message, whole in outcomes:
            stretch = case.since_strike(whole)
            journal.note(case.fault, stretch.seconds)
            assert f"rank {case.victim}" in message, message
            assert stretch.is_within(case.limit_s(self._device), victim_starved_s), f"{stretch}: {message}"
            assert ("Timed out" in message) <= case.is_silent, message
            assert re.search(names_in_errors(case.operation), message), message

    def _regroup(self, case: Case) -> None:
        """Forms another group; a victim that stays stopped must not prevent that."""
        kind = case.kind
        goes_on = kind.end == "goes on"
        if goes_on:
            self.victim.start(regroup, case, Place((case.victim,)))
        self.survivors.run(regroup, case, Place(case.survivors) if goes_on else Place((0, 1), 2))
        if goes_on:
            self.victim.finish()
        else:
            self.end_victim(case)

    @contextmanager
    def _link_struck(self, case: Case) -> Iterator[None]:
        if self._hosts is None or case.kind.link is None:
            yield
            return
        case.hear("struck")
        case.kind.link(self._hosts)
        case.tell("link struck")
        try:
            yield
        finally:
            self._hosts.mend()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
