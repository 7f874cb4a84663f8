"""Runs a short soak; python tests/soak runs long ones."""

from __future__ import annotations

import random

import pytest
from soak import Settings, Soak
from soak_hosts import HostsSoak
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


def _excess(gpu_mib: list[int]) -> list[str]:
    history = [Resources(descriptors=9, threads=9, own_kib=9, shared_kib=9, gpu_kib=each << 10) for each in gpu_mib]
    return Limits().excess(growth(history), num_rounds=len(history), num_deaths=0)


def test_a_gpus_memory_that_a_peer_has_yet_to_release_is_no_growth() -> None:
    assert _excess([1022, 934, 1212, 758, 758, 758, 758, 758, 758, 758, 758, 1276, 944]) == []


def test_four_mib_a_minute_of_a_gpus_memory_are_growth() -> None:
    """The leak lasts eight minutes, with ten rounds each."""
    leaking = [758 + 4 * number // 10 + (500 if number % 3 else 0) for number in range(80)]
    assert _excess(leaking) == ["gpu_kib grew by 9216, allowed are 8192"]
