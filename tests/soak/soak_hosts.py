"""Runs ranks on two emulated hosts while links are throttled or go down, and rails are reset.

    report = HostsSoak(seed=7).run(minutes=60)   # raises SoakError at the first failure
    assert not report["excess"]                  # what grew

Each round draws the number of ranks and of rails, their devices, and whether they compress. UCX has a device of its
own, which is only throttled: a reset connection of UCX would end the peer, as it should.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from soak import SoakError
from soak_hosts_round import HostsOutcome, HostsPlan, num_sent, take_part
from soak_resources import Limits
from soak_rounds import rounds
from two_hosts import Hosts, move_to, two_hosts

from support.pool import RankPool

ADDRESSES = {"eth1": ("10.213.78.1", "10.213.78.2"), "eth2": ("10.213.79.1", "10.213.79.2")}
ROUND_S = 12.0
# Beyond the round's own time. Throttled links and a busy machine take some of it.
ROUND_TIMEOUT_S = 150.0
# The weight of each fault.
FAULTS = {"reset one": 6, "reset all": 2, "down": 2, "throttle": 3}
RATES = ("50mbit", "200mbit", "1gbit", "4gbit")
# Rails over another device take the stripes. Without one, the peer is given up after two seconds without rails.
LONGEST_DOWN_S = 3.0
LONGEST_DOWN_ALONE_S = 1.0


@dataclass
class _Tally:
    rounds: Counter[str] = field(default_factory=Counter)  # by what was drawn
    faults: Counter[str] = field(default_factory=Counter)
    num_steps: int = 0
    num_rail_bytes: int = 0
    excess: list[str] = field(default_factory=list)


class Faults:
    """Draws faults and causes them, on a thread of its own, while the context lasts."""

    def __init__(self, hosts: Hosts, devices: tuple[str, ...], seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._hosts, self._devices, self._random = hosts, devices, random.Random(seed)
        self._throttled: set[str] = set()
        self._ends = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for device in self._throttled:
            self._hosts.lift_limit(device)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ends.wait(self._random.uniform(0.05, 1.5)):
                self._strike(self._random.choices(list(FAULTS), list(FAULTS.values()))[0])
        except BaseException as failure:
            self._failure = failure

    def _strike(self, fault: str) -> None:
        host, device = self._random.randrange(2), self._random.choice(self._devices)
        if fault == "throttle":
            self._throttle(self._random.choice(("eth0", *self._devices)))
        elif fault == "down":
            self._take_down(host, device)
        elif not self._reset(host, device, fault == "reset all"):
            return
        self.counts[fault] += 1

    def _reset(self, host: int, device: str, is_for_all: bool) -> int:
        """Resets one rail over the device, or all rails over all devices. Returns the number of connections."""
        if is_for_all:
            others = " or ".join(f"dst {ADDRESSES[each][1 - host]}" for each in self._devices)
            return self._hosts.reset(host, others)
        other = f"dst {ADDRESSES[device][1 - host]}"
        command = [*self._hosts.prefix(host), "ss", "-tnH", "state", "established", other]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        if not lines:
            return 0
        port = self._random.choice(lines).split()[2].rpartition(":")[2]
        return self._hosts.reset(host, f"sport = :{port} and {other}")

    def _take_down(self, host: int, device: str) -> None:
        link = ["ip", "-n", self._hosts.names[host], "link", "set", device]
        subprocess.run([*link, "down"], check=True)
        is_alone = len(self._devices) == 1
        if not is_alone and self._random.random() < 0.5:
            self._reset_all_over(device)
        time.sleep(self._random.uniform(0, LONGEST_DOWN_ALONE_S if is_alone else LONGEST_DOWN_S))
        subprocess.run([*link, "up"], check=True)

    def _reset_all_over(self, device: str) -> None:
        """Also resets connections whose other end cannot be told."""
        for host in range(2):
            self._hosts.reset(host, f"dst {ADDRESSES[device][1 - host]}")

    def _throttle(self, device: str) -> None:
        """Throttles a link, or lifts that."""
        if device in self._throttled:
            self._throttled.remove(device)
            self._hosts.lift_limit(device)
        else:
            self._hosts.limit(self._random.choice(RATES), device)
            self._throttled.add(device)


class HostsSoak:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._tally = _Tally()

    def run(self, minutes: float, first_round: int = 0) -> dict[str, Any]:
        """Runs rounds until the time is over, see `rounds`."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="soak-") as folder, two_hosts() as hosts:
            for device, addresses in ADDRESSES.items():
                hosts.add_link(device, addresses)
            for plan in rounds(lambda number: self._draw(number, f"{folder}/{number}", ROUND_S), minutes, first_round):
                self._run(hosts, plan)
        return self._report((time.monotonic() - started) / 60)

    def _draw(self, number: int, store: str, seconds: float) -> HostsPlan:
        draw = random.Random(self._random.random())
        return HostsPlan(
            number=number,
            seed=draw.randrange(1 << 32),
            store=store,
            ranks_per_host=draw.choice((1, 1, 2)),
            seconds=seconds,
            devices=tuple(draw.sample(list(ADDRESSES), draw.randint(1, len(ADDRESSES)))),
            num_rails=draw.randint(1, 4),
            compression=draw.choice(("auto", "always")),
        )

    def _run(self, hosts: Hosts, plan: HostsPlan) -> None:
        try:
            with ExitStack() as stack:
                pools = [stack.enter_context(RankPool(plan.ranks_per_host, meeting="none")) for _ in hosts.names]
                for pool, name in zip(pools, hosts.names, strict=True):
                    pool.run(move_to, name)
                before = pools[0].run(num_sent, plan.devices)[0]
                with Faults(hosts, plan.devices, plan.seed) as faults:
                    outcomes = _outcomes(pools, plan)
                sent = pools[0].run(num_sent, plan.devices)[0] - before
        except AssertionError as error:
            raise SoakError(f"seed {self._seed}, round {plan.number}, {plan}: {error}") from error
        self._count(plan, outcomes, faults.counts, sent)

    def _count(self, plan: HostsPlan, outcomes: list[HostsOutcome], faults: Counter[str], num_sent: int) -> None:
        tally = self._tally
        tally.rounds[f"{plan.num_rails} rails, compress {plan.compression}"] += 1
        tally.faults += faults
        tally.num_rail_bytes += num_sent
        tally.num_steps += sum(each.num_steps for each in outcomes)
        # Rails that were broken in the second third of the rounds, to and from each process of the other host.
        num_reopened = 2 * plan.num_rails * plan.ranks_per_host
        few = Limits().constant
        limits = Limits(constant=replace(few, descriptors=few.descriptors + num_reopened))
        tally.excess += [
            f"in round {plan.number} {each}"
            for outcome in outcomes
            for each in limits.excess(outcome.growth, num_rounds=0, num_deaths=0)
        ]

    def _report(self, minutes: float) -> dict[str, Any]:
        tally = self._tally
        return {
            "what": "soak over hosts",
            "seed": self._seed,
            "minutes": round(minutes, 1),
            "rounds": dict(sorted(tally.rounds.items())),
            "operations": tally.num_steps,
            "wrong": 0,
            "faults": dict(tally.faults),
            "rail_mib": tally.num_rail_bytes >> 20,
            "excess": tally.excess,
        }


def _outcomes(pools: list[RankPool], plan: HostsPlan) -> list[HostsOutcome]:
    """Runs the round. Raises with the errors of both hosts if any rank fails."""
    for host, pool in enumerate(pools):
        pool.start(take_part, plan, host)
    outcomes, errors = [], []
    for host, pool in enumerate(pools):
        try:
            outcomes += pool.finish(plan.seconds + ROUND_TIMEOUT_S)
        except AssertionError as error:
            errors.append(f"host {host}: {error}")
    if errors:
        raise SoakError("\n".join(errors))
    return outcomes
