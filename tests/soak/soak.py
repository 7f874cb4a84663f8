"""Draws rounds, runs them on processes, and checks their reports.

    soak = Soak(Settings(seed=7, num_slots=4))
    report = soak.run(minutes=60)                # raises SoakError at the first failure
    assert not report["excess"]                  # what grew

A slot is a process that takes part in rounds again and again. When a round kills it, another process replaces it.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from soak_round import Outcome, Part, Plan, take_part
from soak_rounds import rounds
from soak_slots import Slot, Slots

from support.pool import RankPool
from support.processes import leftovers

# The weight of each fault. The other ranks learn of a stopped rank through their timeout.
FAULTS = {"none": 8, "kill": 3, "abort": 3, "stop": 1}
STOPPED_TIMEOUT_S = 5.0
TIMEOUT_S = 120.0
# The limit until other ranks have learned of a death, or of a rank that gave up. On any machine, more time is an error.
NOTICE_S = 20.0
ROUND_TIMEOUT_S = 300.0


class SoakError(AssertionError):
    """What failed, and in which round."""


@dataclass(frozen=True)
class Settings:
    seed: int
    num_slots: int = 4
    device: str = "cpu"


@dataclass
class _Tally:
    rounds: Counter[str] = field(default_factory=Counter)  # by fault
    num_steps: int = 0
    notices_s: dict[str, list[float]] = field(default_factory=lambda: {"kill": [], "abort": [], "stop": []})


class Soak:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._random = random.Random(settings.seed)
        self._slots = Slots(lambda number: RankPool(1, meeting="none", device=settings.device, first_gpu=number))
        self._tally = _Tally()
        self._files = leftovers()

    def run(self, minutes: float, first_round: int = 0) -> dict[str, Any]:
        """Runs rounds until the time is over, see `rounds`."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="soak-") as folder, self._slots.closing():
            for plan in rounds(lambda number: self._draw(number, f"{folder}/{number}"), minutes, first_round):
                self._run(plan)
        if left := leftovers() - self._files:
            raise SoakError(f"shared memory is left that no process maps: {sorted(left)}")
        return self._report((time.monotonic() - started) / 60)

    def _draw(self, number: int, folder: str) -> Plan:
        draw = random.Random(self._random.random())
        slots = draw.sample(range(self._settings.num_slots), draw.randint(2, self._settings.num_slots))
        fault = draw.choices(list(FAULTS), list(FAULTS.values()))[0]
        parts = tuple(self._draw_part(draw, len(slots), thread) for thread in range(draw.randint(1, 3)))
        return Plan(
            number=number,
            folder=folder,
            slots=tuple(slots),
            parts=parts,
            fault=fault,
            victim=self._draw_victim(draw, slots, fault),
            strike_step=draw.randrange(parts[0].num_steps),
            timeout_s=STOPPED_TIMEOUT_S if fault == "stop" else TIMEOUT_S,
        )

    def _draw_victim(self, draw: random.Random, slots: list[int], fault: str) -> int:
        """Returns the victim's rank, or -1. A kill never hits slot 0: its process sees the deaths of all rounds and
        lives on."""
        if fault == "none":
            return -1
        return draw.choice([rank for rank, slot in enumerate(slots) if fault != "kill" or slot != 0])

    def _draw_part(self, draw: random.Random, size: int, thread: int) -> Part:
        """Draws groups of all ranks, and of some ranks.

        One thread of a rank uses a GPU: more than two groups in flight need one order on all ranks (docs/cuda.md),
        which threads do not give.
        """
        subsets = [tuple(range(size))]
        subsets += [tuple(sorted(draw.sample(range(size), draw.randint(2, size)))) for _ in range(2)]
        device = self._settings.device
        return Part(
            seed=draw.randrange(1 << 32),
            device="cpu" if device == "cpu" or thread > 0 else draw.choice(("cpu", "cuda", "cuda")),
            num_steps=draw.choice((20, 60, 200)),
            subsets=tuple(subsets),
        )

    def _run(self, plan: Plan) -> None:
        os.mkdir(plan.folder)
        slots = [self._slots[number] for number in plan.slots]
        try:
            outcomes = self._go_through(plan, slots)
            self._judge(plan, outcomes)
        except AssertionError as error:
            raise SoakError(f"seed {self._settings.seed}, round {plan.number}, {plan}: {error}") from error
        self._tally.rounds[plan.fault] += 1
        for slot, outcome in zip(slots, outcomes, strict=True):
            if outcome is not None:
                self._tally.num_steps += outcome.num_steps
                slot.rounds.append(outcome.resources)
        if plan.fault == "kill":
            self._slots.replace(plan.slots[plan.victim])

    def _go_through(self, plan: Plan, slots: list[Slot]) -> list[Outcome | None]:
        """Returns the outcomes by rank; a killed rank has none."""
        for rank, slot in enumerate(slots):
            slot.pool.start(take_part, plan, rank)
        outcomes: list[Outcome | None] = [None] * plan.size
        order = sorted(range(plan.size), key=lambda rank: rank == plan.victim)
        for rank in order:
            pool = slots[rank].pool
            is_victim = rank == plan.victim
            if is_victim and plan.fault == "stop":
                os.kill(pool.pids[0], signal.SIGCONT)
            dying = [0] if is_victim and plan.fault == "kill" else []
            outcomes[rank] = pool.finish(ROUND_TIMEOUT_S, dying)[0]
        return outcomes

    def _judge(self, plan: Plan, outcomes: list[Outcome | None]) -> None:
        for rank, outcome in enumerate(outcomes):
            for failure in outcome.failures if outcome else ():
                if failure.is_wrong_data or plan.fault == "none":
                    raise SoakError(f"rank {rank}: {failure.text}")
        if plan.fault == "none":
            return
        struck_s = float(plan.strike_file.read_text())
        accused: set[int] = set()
        for rank, outcome in enumerate(outcomes):
            if outcome is None:
                continue
            if not outcome.failures:
                raise SoakError(f"rank {rank} has not raised")
            if rank == plan.victim:
                continue
            first = outcome.failures[0]
            if not first.accused:
                raise SoakError(f"rank {rank} names no rank in its error: {first.text}")
            accused |= first.accused
            self._note(plan, first.at_s - struck_s)
        # Any of the ranks that wait for a stopped rank, directly or through others, may be the first to time out.
        if plan.fault != "stop" and plan.victim not in accused:
            texts = "\n".join(failure.text for outcome in outcomes if outcome for failure in outcome.failures)
            raise SoakError(f"no error names rank {plan.victim}; they name {accused}:\n{texts}")

    def _note(self, plan: Plan, seconds: float) -> None:
        limit_s = NOTICE_S + (plan.timeout_s if plan.fault == "stop" else 0)
        if seconds > limit_s:
            raise SoakError(f"{seconds:.1f} s until a rank raised; {limit_s:g} s are allowed")
        self._tally.notices_s[plan.fault].append(seconds)

    def _report(self, minutes: float) -> dict[str, Any]:
        tally = self._tally
        notices = {
            fault: {"median": round(sorted(all_s)[len(all_s) // 2], 3), "most": round(max(all_s), 3)}
            for fault, all_s in tally.notices_s.items()
            if all_s
        }
        return {
            "what": "soak",
            "seed": self._settings.seed,
            "device": self._settings.device,
            "slots": self._settings.num_slots,
            "minutes": round(minutes, 1),
            "rounds": dict(tally.rounds),
            "operations": tally.num_steps,
            "wrong": 0,
            "notice_s": notices,
            "excess": self._slots.excess(),
            "processes": self._slots.report(),
        }
