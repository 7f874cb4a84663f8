"""Runs a short soak; python tests/soak runs long ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import one_sided_layout
import one_sided_owner
import pytest
from one_sided_owner import OwnerOutcome
from one_sided_plan import InitiatorOutcome, OneSidedPlan
from one_sided_round import begin, close, end, transfer
from soak import Settings, Soak
from soak_hosts import HostsSoak
from soak_one_sided import OneSidedSoak, wrong_notifications
from soak_resources import Limits, Resources, growth

from support.devices import on
from support.hosts import two_hosts
from support.pool import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "axon", reason="what axon promises")


@on("cpu", "cuda")
def test_random_operations_and_faults(device: str, request: pytest.FixtureRequest) -> None:
    seed = random.randrange(1 << 32)
    minutes: float = request.config.getoption("--soak-minutes")
    print(f"python tests/soak --device {device} --seed {seed} --minutes {minutes}")  # shown in a failure report
    report = Soak(Settings(seed, device=device)).run(minutes)
    assert report["operations"] > 0
    assert not report["excess"]


def test_random_operations_between_hosts_whose_rails_fail(request: pytest.FixtureRequest) -> None:
    with two_hosts():  # skips where there are none
        pass
    seed = random.randrange(1 << 32)
    minutes: float = request.config.getoption("--soak-minutes") / 2
    print(f"python tests/soak --hosts --seed {seed} --minutes {minutes}")  # shown in a failure report
    report = HostsSoak(seed).run(minutes)
    assert report["operations"] > 0
    assert report["faults"]
    assert report["rail_mib"] > 0
    assert not report["excess"]


@pytest.mark.parametrize("on_hosts", [False, True], ids=["one host", "two hosts"])
def test_random_one_sided_transfers_and_faults(on_hosts: bool, request: pytest.FixtureRequest) -> None:
    if on_hosts:
        with two_hosts():  # skips where there are none
            pass
    seed = random.randrange(1 << 32)
    minutes: float = request.config.getoption("--soak-minutes") / 2
    hosts = " --hosts" if on_hosts else ""
    print(f"python tests/soak --one-sided{hosts} --seed {seed} --minutes {minutes}")  # shown in a failure report
    report = OneSidedSoak(seed, on_hosts).run(minutes)
    assert report["operations"] > 0
    assert report["closed_regions"] > 0
    assert report["errors"]
    assert not report["excess"]


def test_wrong_bytes_of_a_region_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def damaged(seed: Sequence[int], num_lanes: int) -> one_sided_layout.Bytes:
        memory = one_sided_layout.fresh(seed, num_lanes)
        memory[1000] ^= 1
        return memory

    monkeypatch.setattr(one_sided_owner, "fresh", damaged)
    [outcome, _] = _transfers_of_one_process(tmp_path)
    assert "1 bytes of region" in outcome.failures[0]
    assert "are wrong, from byte" in outcome.failures[0]


def test_lost_and_repeated_notifications_are_found(tmp_path: Path) -> None:
    outcomes = _transfers_of_one_process(tmp_path)
    sent = sorted(outcomes[0].delivered[0])
    owner = OwnerOutcome(received=Counter([*sent[1:], sent[-1], *outcomes[1].delivered[0]]))
    assert wrong_notifications(0, owner, {0: outcomes}) == [
        f"{sent[-1]} arrived 2 times at rank 0",
        f"{sent[0]} was lost on its way to rank 0",
    ]


def _transfers_of_one_process(folder: Path) -> list[InitiatorOutcome]:
    plan = OneSidedPlan(
        number=0,
        seed=5,
        folder=str(folder),
        slots=(0,),
        hosts=(0,),
        num_steps=100,
        closing_share=0.0,
        fault="none",
        victim=0,
        strike_step=0,
        stopped_s=0.0,
        variables=(),
    )
    address = begin(plan, 0, "")
    try:
        return transfer(plan, 0, [address])
    finally:
        end(plan, 0)
        close()


def _excess(gpu_mib: list[int]) -> list[str]:
    history = [Resources(descriptors=9, threads=9, own_kib=9, shared_kib=9, gpu_kib=each << 10) for each in gpu_mib]
    return Limits().excess(growth(history), num_rounds=len(history), num_deaths=0)


def test_a_gpus_memory_that_a_peer_has_yet_to_release_is_no_growth() -> None:
    assert _excess([1022, 934, 1212, 758, 758, 758, 758, 758, 758, 758, 758, 1276, 944]) == []


def test_four_mib_a_minute_of_a_gpus_memory_are_growth() -> None:
    """The leak lasts eight minutes, with ten rounds each."""
    leaking = [758 + 4 * number // 10 + (500 if number % 3 else 0) for number in range(80)]
    assert _excess(leaking) == ["gpu_kib grew by 9216, allowed are 8192"]
