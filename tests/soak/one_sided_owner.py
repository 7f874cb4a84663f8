"""The owner's side of a round: it exposes regions, closes them while peers use them, and checks what peers have done.

    owner = Owner(runtime, plan, rank)     # exposes regions
    outcome = owner.end()                  # closes them

A thread closes and replaces regions meanwhile, and takes notifications.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from one_sided_layout import MAIL, POISON, Bytes, content, fresh, mails
from one_sided_plan import NOTICE_S, OneSidedPlan, Tag

from torch_axon.runtime import Region, Runtime, RuntimeClosedError

NUM_REGIONS = 3
# Closed memory that is still watched for late writes.
_NUM_WATCHED = 4
_ACCESSES = ("rw", "rw", "rw", "r", "w")


@dataclass(frozen=True)
class _Exposed:
    number: int
    memory: Bytes
    region: Region


@dataclass
class OwnerOutcome:
    failures: list[str] = field(default_factory=list)
    received: Counter[Tag] = field(default_factory=Counter)
    num_closed: int = 0


class Owner:
    def __init__(self, runtime: Runtime, plan: OneSidedPlan, rank: int) -> None:
        self._runtime, self._plan, self._rank = runtime, plan, rank
        self._random = random.Random(f"{plan.seed} owner {rank}")
        self._num_exposed = 0
        self._live: dict[int, _Exposed] = {}
        self._closing: list[_Exposed] = []
        self._watched: list[_Exposed] = []
        self._outcome = OwnerOutcome()
        self._lock = threading.Lock()  # guards _live
        self._ends = threading.Event()
        for _ in range(NUM_REGIONS):
            self._expose()
        self._thread = threading.Thread(target=self._run, name="owner")
        self._thread.start()

    def listed(self, incarnation: int) -> list[list[object]]:
        """Returns number, access and handle of each region, for a peer of this incarnation."""
        with self._lock:
            live = list(self._live.values())
        return [[each.number, each.region.access, each.region.handle(peer=incarnation)] for each in live]

    def is_closed(self, number: int) -> bool:
        with self._lock:
            return number not in self._live

    def end(self) -> OwnerOutcome:
        self._ends.set()
        self._thread.join()
        try:
            self._end()
        except Exception:
            self._outcome.failures.append(traceback.format_exc())
        return self._outcome

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._take_notifications(0.02)
                if self._random.random() < self._plan.closing_share:
                    self._close(self._random.choice(list(self._live)), self._random.choice((0.0, 0.2, 2.0)))
                    self._expose()
                self._bury()
        except RuntimeClosedError:
            if not self._plan.closes_runtime_of(self._rank):
                self._outcome.failures.append(traceback.format_exc())
        except Exception:
            self._outcome.failures.append(traceback.format_exc())

    def _expose(self) -> None:
        number = self._num_exposed
        self._num_exposed += 1
        memory = fresh((self._plan.seed, self._rank, number), self._plan.num_lanes)
        cut = self._random.randrange(1, len(memory))
        parts = self._random.choice((memory, [memory[:cut], memory[cut:]]))
        access = self._random.choice(_ACCESSES)
        region = self._runtime.expose(parts, access, name=f"{self._plan.name_of(self._rank)}.{number}")
        with self._lock:
            self._live[number] = _Exposed(number, memory, region)

    def _close(self, number: int, timeout: float) -> None:
        with self._lock:
            exposed = self._live.pop(number)
        self._closing.append(exposed)
        exposed.region.close(timeout)
        if unknown := set(exposed.region.holders) - {self._plan.name_of(rank) for rank in range(self._plan.size)}:
            self._outcome.failures.append(f"region {number} is held by {unknown}")

    def _bury(self) -> None:
        """Poisons the memory of regions that no peer can touch any more, and checks that it stays like that."""
        for exposed in [each for each in self._closing if each.region.close(0.0)]:
            self._closing.remove(exposed)
            exposed.memory.fill(POISON)
            self._watched.append(exposed)
            self._outcome.num_closed += 1
        while len(self._watched) > _NUM_WATCHED:
            self._check_untouched(self._watched.pop(0))

    def _check_untouched(self, exposed: _Exposed) -> None:
        wrong = np.flatnonzero(exposed.memory != POISON)
        if len(wrong):
            self._outcome.failures.append(
                f"{len(wrong)} bytes of region {exposed.number}, from {wrong[0]} on, were written after close() had "
                "returned True"
            )

    def _end(self) -> None:
        if not self._plan.closes_runtime_of(self._rank):
            while self._take_notifications(0.0):
                pass
        for number in list(self._live):
            self._close(number, 0.0)
        until = time.monotonic() + NOTICE_S
        while self._closing and time.monotonic() < until:
            self._closing[0].region.close(0.1)
            self._bury()
        for each in self._closing:
            self._outcome.failures.append(f"region {each.number} is held for {NOTICE_S} s by {each.region.holders}")
        for each in self._watched:
            self._check_untouched(each)

    def _take_notifications(self, timeout: float) -> int:
        taken = self._runtime.notifications(timeout=timeout)
        for peer, text in taken:
            tag = Tag.decode(text)
            if tag.round != self._plan.number:
                continue  # it was given up in its round
            self._outcome.received[tag] += 1
            if peer.name != self._plan.name_of(tag.rank):
                self._outcome.failures.append(f"'{peer.name}' has sent {tag}")
            if tag.mail >= 0:
                self._check_mail(tag)
        return len(taken)

    def _check_mail(self, tag: Tag) -> None:
        """Checks the bytes that a notification follows, unless they were poisoned since."""
        for exposed in (*self._live.values(), *self._closing):
            if exposed.number != tag.region:
                continue
            lane = self._plan.lane_of(tag.rank, tag.thread)
            place = mails(lane)[tag.mail]
            seed = (self._plan.seed, self._rank, tag.region, lane, tag.mail, MAIL)
            _compare(exposed.memory[place.slice], content(seed, place.num_bytes), tag, self._outcome.failures)


def _compare(found: Bytes, expected: Bytes, tag: Tag, failures: list[str]) -> None:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        failures.append(f"{len(wrong)} of {len(expected)} bytes, from {wrong[0]} on, were missing at {tag}")
