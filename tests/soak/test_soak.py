"""A short soak; python tests/soak runs long ones."""

from __future__ import annotations

import random

import pytest
from devices import on
from pool import BACKEND
from soak import Settings, Soak

pytestmark = pytest.mark.skipif(BACKEND != "axon", reason="what axon promises")


@on("cpu", "cuda")
def test_random_operations_and_faults(device: str, request: pytest.FixtureRequest) -> None:
    seed = random.randrange(1 << 32)
    minutes: float = request.config.getoption("--soak-minutes")
    print(f"python tests/soak --device {device} --seed {seed} --minutes {minutes}")  # shown where it fails
    report = Soak(Settings(seed, device=device)).run(minutes)
    assert report["operations"] > 0
    assert not report["excess"]
