"""Draws rounds of one-sided transfers, runs them on processes, and checks their reports.

    report = OneSidedSoak(seed=7).run(minutes=60)          # raises SoakError at the first failure
    assert not report["excess"]                            # what grew

Within a host, a process is killed, stopped, or closes its runtime or a connection. With `on_hosts`, the processes are
on two emulated hosts. Then rails are reset and taken down in every round, and in some, the link is reset or cut.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from one_sided_initiator import Address
from one_sided_owner import OwnerOutcome
from one_sided_plan import NOTICE_S, InitiatorOutcome, OneSidedPlan, Tag
from one_sided_round import begin, close, end, transfer
from soak import SoakError
from soak_hosts import ADDRESSES as RAILS
from soak_hosts import Faults
from soak_resources import Limits, Resources
from soak_rounds import rounds
from soak_slots import Slot, Slots
from two_hosts import ADDRESSES, Hosts, move_to, two_hosts

from support.pool import RankPool
from support.processes import leftovers, state_of

NUM_SLOTS = 4
# The weight of each fault.
FAULTS = {"none": 6, "kill": 3, "stop": 2, "close": 2, "disconnect": 2}
FAULTS_OF_HOSTS = {"none": 4, "kill": 2, "stop": 1, "close": 1, "disconnect": 1, "reset": 3, "cut": 1}
BEGIN_TIMEOUT_S, ROUND_TIMEOUT_S = 60.0, 300.0
# Longer than it takes to notice that a host is cut off.
CUT_S = 14.0
# Runtimes, and so their connections, live for some rounds: in both directions to three others, by hosts. A connection
# between hosts has a socket and two rails at each end, some of which were broken and are still being closed.
DESCRIPTORS_OF_CONNECTIONS = {False: 2 * 3, True: 2 * 3 * 5}
# As in soak_hosts: faults of rails must not reset connections of short messages.
VARIABLES_OF_HOSTS = (
    ("AXON_RAILS", "2"),
    ("AXON_RAIL_DEVICES", ",".join(RAILS)),
    ("AXON_UCX_NET_DEVICES", "eth0"),
    ("AXON_TRANSPORTS", "ucx,rings,cma,cuda"),
)


@dataclass
class _Tally:
    rounds: Counter[str] = field(default_factory=Counter)  # by fault
    transfers: Counter[str] = field(default_factory=Counter)  # by kind
    errors: Counter[str] = field(default_factory=Counter)  # by class
    links: Counter[str] = field(default_factory=Counter)  # faults of rails and links, by kind
    notices_s: dict[str, list[float]] = field(default_factory=dict)  # by fault
    num_bytes: int = 0
    num_closed: int = 0  # regions


class OneSidedSoak:
    def __init__(self, seed: int, on_hosts: bool = False) -> None:
        self._seed = seed
        self._on_hosts = on_hosts
        self._random = random.Random(seed)
        self._hosts: Hosts | None = None
        few = Limits().constant
        most = few.descriptors + DESCRIPTORS_OF_CONNECTIONS[on_hosts]
        self._slots = Slots(self._start, Limits(constant=replace(few, descriptors=most)))
        self._tally = _Tally()
        self._files = leftovers()

    def run(self, minutes: float, first_round: int = 0) -> dict[str, Any]:
        """Runs rounds until the time is over, see `rounds`."""
        started = time.monotonic()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-"))
            if self._on_hosts:
                self._hosts = stack.enter_context(two_hosts())
                for device, addresses in RAILS.items():
                    self._hosts.add_link(device, addresses)
            stack.enter_context(self._slots.closing())
            for plan in rounds(lambda number: self._draw(number, f"{folder}/{number}"), minutes, first_round):
                self._run(plan)
            for number in range(NUM_SLOTS):
                self._slots[number].pool.run(close)
        if left := leftovers() - self._files:
            raise SoakError(f"shared memory is left that no process maps: {sorted(left)}")
        return self._report((time.monotonic() - started) / 60)

    def _start(self, number: int) -> RankPool:
        pool = RankPool(1, meeting="none")
        if self._hosts is not None:
            pool.run(move_to, self._hosts.names[number % 2])
        return pool

    def _draw(self, number: int, folder: str) -> OneSidedPlan:
        draw = random.Random(self._random.random())
        slots = draw.sample(range(NUM_SLOTS), draw.randint(2, NUM_SLOTS))
        faults = FAULTS_OF_HOSTS if self._on_hosts else FAULTS
        num_steps = draw.choice((50, 150, 400))
        fault = draw.choices(list(faults), list(faults.values()))[0]
        return OneSidedPlan(
            number=number,
            seed=draw.randrange(1 << 32),
            folder=folder,
            slots=tuple(slots),
            hosts=tuple(slot % 2 if self._on_hosts else 0 for slot in slots),
            num_steps=num_steps,
            closing_share=draw.choice((0.02, 0.1, 0.5)),
            fault=fault,
            # A kill never hits slot 0: its process sees the deaths of all rounds and lives on.
            victim=draw.choice([rank for rank, slot in enumerate(slots) if fault != "kill" or slot != 0]),
            strike_step=draw.randrange(num_steps),
            stopped_s=draw.uniform(0.1, 2.0),
            variables=VARIABLES_OF_HOSTS if self._on_hosts else (),
        )

    def _run(self, plan: OneSidedPlan) -> None:
        os.mkdir(plan.folder)
        slots = [self._slots[number] for number in plan.slots]
        try:
            self._go_through(plan, slots)
        except AssertionError as error:
            raise SoakError(f"seed {self._seed}, round {plan.number}, {plan}: {error}") from error
        self._tally.rounds[plan.fault] += 1
        if plan.fault == "kill":
            self._slots.replace(plan.slots[plan.victim])

    def _go_through(self, plan: OneSidedPlan, slots: list[Slot]) -> None:
        addresses = self._begin(plan, slots)
        for rank, slot in enumerate(slots):
            slot.pool.start(transfer, plan, rank, addresses)
        with self._faults_of_rails(plan):
            self._strike(plan, slots)
            dying = plan.victim if plan.fault == "kill" else -1
            initiators = {
                rank: slot.pool.finish(ROUND_TIMEOUT_S, [0] if rank == dying else ())[0]
                for rank, slot in enumerate(slots)
            }
        initiators = {rank: outcomes for rank, outcomes in initiators.items() if outcomes is not None}
        for rank in initiators:
            slots[rank].pool.start(end, plan, rank)
        ends: dict[int, tuple[OwnerOutcome, Resources]] = {
            rank: slots[rank].pool.finish(ROUND_TIMEOUT_S)[0] for rank in initiators
        }
        for rank, (_, resources) in ends.items():
            slots[rank].rounds.append(resources)
        self._judge(plan, initiators, {rank: owner for rank, (owner, _) in ends.items()})

    def _begin(self, plan: OneSidedPlan, slots: list[Slot]) -> list[Address]:
        for rank, slot in enumerate(slots):
            slot.pool.start(begin, plan, rank, ADDRESSES[plan.hosts[rank]] if self._on_hosts else "")
        return [slot.pool.finish(BEGIN_TIMEOUT_S)[0] for slot in slots]

    @contextmanager
    def _faults_of_rails(self, plan: OneSidedPlan) -> Iterator[None]:
        if self._hosts is None:
            yield
            return
        with Faults(self._hosts, tuple(RAILS), plan.seed) as faults:
            yield
        self._tally.links += faults.counts

    def _strike(self, plan: OneSidedPlan, slots: list[Slot]) -> None:
        """Does what the processes cannot do themselves."""
        if plan.fault == "stop":
            pid = slots[plan.victim].pool.pids[0]
            until = time.monotonic() + ROUND_TIMEOUT_S
            while state_of(pid) != "T" and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(plan.stopped_s)
            os.kill(pid, signal.SIGCONT)
        elif plan.fault in ("reset", "cut"):
            assert self._hosts is not None
            time.sleep(plan.stopped_s / 4)
            plan.strike_file.write_text(str(time.monotonic()))
            if plan.fault == "reset":
                self._hosts.reset(0, f"dst {ADDRESSES[1]}")
            else:
                self._hosts.cut()
                time.sleep(CUT_S)
                self._hosts.mend()
            self._tally.links[plan.fault] += 1

    def _judge(
        self, plan: OneSidedPlan, initiators: dict[int, list[InitiatorOutcome]], owners: dict[int, OwnerOutcome]
    ) -> None:
        failures = [f"rank {rank}: {text}" for rank, owner in owners.items() for text in owner.failures]
        for rank, outcomes in initiators.items():
            failures += [f"rank {rank}: {text}" for outcome in outcomes for text in outcome.failures]
        for rank, owner in owners.items():
            if not plan.closes_runtime_of(rank):
                failures += wrong_notifications(rank, owner, initiators)
        if failures:
            raise SoakError("\n".join(failures))
        self._check_notices(plan, initiators)
        tally = self._tally
        tally.num_closed += sum(owner.num_closed for owner in owners.values())
        for outcome in (each for outcomes in initiators.values() for each in outcomes):
            tally.transfers += outcome.transfers
            tally.errors += outcome.errors
            tally.num_bytes += outcome.num_bytes

    def _check_notices(self, plan: OneSidedPlan, initiators: dict[int, list[InitiatorOutcome]]) -> None:
        """Checks that threads have learned in time of a process that was killed or closed its runtime."""
        if plan.fault not in ("kill", "close"):
            return
        struck_s = float(plan.strike_file.read_text())
        for rank, outcomes in initiators.items():
            for outcome in outcomes if rank != plan.victim else ():
                learned_s = outcome.lost_s.get(plan.victim)
                seconds = (learned_s or outcome.ended_s) - struck_s
                if seconds > NOTICE_S:
                    raise SoakError(f"rank {rank} has used rank {plan.victim} for {seconds:.1f} s after the fault")
                if learned_s is not None:
                    self._tally.notices_s.setdefault(plan.fault, []).append(seconds)

    def _report(self, minutes: float) -> dict[str, Any]:
        tally = self._tally
        notices = {
            fault: {"median": round(sorted(all_s)[len(all_s) // 2], 3), "most": round(max(all_s), 3)}
            for fault, all_s in tally.notices_s.items()
        }
        return {
            "what": "soak of one-sided transfers" + (" over hosts" if self._on_hosts else ""),
            "seed": self._seed,
            "device": "cpu",
            "slots": NUM_SLOTS,
            "minutes": round(minutes, 1),
            "rounds": dict(tally.rounds),
            "operations": tally.transfers.total(),
            "transfers": dict(sorted(tally.transfers.items())),
            "gib": round(tally.num_bytes / (1 << 30), 1),
            "closed_regions": tally.num_closed,
            "errors": dict(sorted(tally.errors.items())),
            "wrong": 0,
            "faults_of_links": dict(tally.links),
            "notice_s": notices,
            "excess": self._slots.excess(),
            "processes": self._slots.report(),
        }


def wrong_notifications(
    owner_rank: int, owner: OwnerOutcome, initiators: dict[int, list[InitiatorOutcome]]
) -> list[str]:
    """Returns which notifications were lost, arrived twice, or were never sent."""
    failures = [
        f"{tag} arrived {number} times at rank {owner_rank}" for tag, number in owner.received.items() if number > 1
    ]
    for rank, outcomes in initiators.items():
        received = {tag for tag in owner.received if tag.rank == rank}
        delivered = _tags(outcomes, owner_rank, "delivered")
        failures += [f"{tag} was lost on its way to rank {owner_rank}" for tag in sorted(delivered - received)]
        unsent = received - delivered - _tags(outcomes, owner_rank, "uncertain")
        failures += [f"{tag} arrived at rank {owner_rank}, and was never sent" for tag in sorted(unsent)]
    return failures


def _tags(outcomes: Sequence[InitiatorOutcome], owner: int, which: str) -> set[Tag]:
    every: list[set[Tag]] = [getattr(outcome, which).get(owner, set()) for outcome in outcomes]
    return set().union(*every)
