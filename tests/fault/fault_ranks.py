"""Lets a victim fail amid survivors, and judges what those have to say.

ranks = Ranks("cpu")
ranks.endure(Case("kill", "inside", "all_reduce", folder), journal)     # raises AssertionError at what is wrong
ranks.survivors.run(function)                                           # still the same processes
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from fault_case import Case, Place, Stretch, be_survivor, be_victim, leave, regroup
from fault_journal import Journal
from fault_operations import names_in_errors
from hosts import Hosts, move_to
from pool import RankPool

NUM_SURVIVORS = 2
VICTIM = NUM_SURVIVORS
ALL = NUM_SURVIVORS + 1
# Abort and destroy.
LEAVE_S = {"cpu": 1.0, "cuda": 5.0}


class Ranks:
    """Those that survive everything, and a victim that is made anew whenever it has not. Where there are two hosts, it
    has one of its own."""

    def __init__(self, device: str, hosts: Hosts | None = None) -> None:
        self._device = device
        self._hosts = hosts
        self._pools: dict[str, RankPool] = {}

    @property
    def survivors(self) -> RankPool:
        return self._pool("survivors", NUM_SURVIVORS, first=0)

    @property
    def victim(self) -> RankPool:
        return self._pool("victim", 1, first=NUM_SURVIVORS)

    def _pool(self, name: str, size: int, first: int) -> RankPool:
        if name not in self._pools or self._pools[name].broken:
            if name in self._pools:
                self._pools[name].close()
            self._pools[name] = RankPool(size, meeting="none", device=self._device, first_gpu=first)
            if self._hosts:
                self._pools[name].run(move_to, self._hosts.names[name == "victim"])
        return self._pools[name]

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Whatever they are in the middle of when this raises, they are not asked again."""
        try:
            yield
        except BaseException:
            for pool in self._pools.values():
                pool.broken = True
            raise

    def endure(self, case: Case, journal: Journal) -> None:
        with self.breaking():
            outcomes, stretches = self._fail(case)
            self._judge(case, journal, outcomes)
            self._regroup(case)
        for stretch in stretches:
            journal.leaves_s.append(stretch.seconds)
            assert stretch.is_within(LEAVE_S[self._device]), f"to leave took long: {stretch}"

    def _fail(self, case: Case) -> tuple[list[tuple[str, Stretch]], list[Stretch]]:
        """What survivors raise, and how they leave, while whoever stands still does so and what is cut is cut."""
        kind, victim = case.kind, self.victim
        victim.start(be_victim, case, Place(VICTIM, ALL))
        self.survivors.start(be_survivor, case, Place(0, ALL))
        with self._link_struck(case):
            outcomes = self.survivors.finish()
            stretches = self.survivors.run(leave, case)
            if kind.then == signal.SIGCONT:
                os.kill(victim.pids[0], kind.then)
            if kind.then != signal.SIGKILL:
                victims = victim.finish(dying=[] if kind.end == "goes on" else [0])
        assert not case.kind.link or re.search("rank [01]", victims[0])
        if kind.end == "goes on":
            stretches += victim.run(leave, case)
        return outcomes, stretches

    def _judge(self, case: Case, journal: Journal, outcomes: list[tuple[str, Stretch]]) -> None:
        victim_starved_s = case.victim_starved_s()
        for message, whole in outcomes:
            stretch = case.since_strike(whole)
            journal.note(case.fault, stretch.seconds)
            assert f"rank {VICTIM}" in message
            assert stretch.is_within(case.limit_s(self._device), victim_starved_s), f"{stretch}: {message}"
            assert ("Timed out" in message) <= case.kind.is_silent, message
            assert re.search(names_in_errors(case.operation), message), message

    def _regroup(self, case: Case) -> None:
        """One that stands still and will never go on is in nobody's way."""
        kind = case.kind
        size = ALL if kind.end == "goes on" else NUM_SURVIVORS
        if kind.end == "goes on":
            self.victim.start(regroup, case, Place(VICTIM, size))
        self.survivors.run(regroup, case, Place(0, size))
        if kind.end == "goes on":
            self.victim.finish()
        elif kind.then == signal.SIGKILL:
            os.kill(self.victim.pids[0], signal.SIGKILL)
            self.victim.finish(dying=[0])

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
