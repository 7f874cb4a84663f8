"""Random operations, compared exactly: pytest test_torture.py --torture-operations 100000 --torture-seed 7"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.devices import on_every_path
from support.pool import RankPool
from support.torture import Torture

# Defaults of the command line. CPU runs have few cores, and run beside other tests.
OPERATIONS = {"cpu": 1000, "cuda": 2000, "staged": 500}


def _torture(seed: int, num_operations: int) -> int:
    torture = Torture(seed)
    torture.run(num_operations)
    return torture.close()


def _torture_in_threads(seed: int, num_threads: int, num_operations: int) -> None:
    """Runs each on groups of its own."""
    tortures = [Torture(seed + thread) for thread in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(lambda torture: torture.run(num_operations), tortures))


@on_every_path
def test_random_operations(ranks: RankPool, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--torture-seed", None)
    num_operations = request.config.getoption("--torture-operations", None) or OPERATIONS[ranks.device]
    if seed is None:
        seed = random.randrange(1 << 32)
    print(f"--torture-operations {num_operations} --torture-seed {seed}")  # shown in a failure report
    num_zero_copy = ranks.run(_torture, seed, num_operations, timeout_s=60 + num_operations / 50)
    print(f"{num_zero_copy} operations on the peers' tensors themselves")
    if ranks.device == "cuda" and num_operations >= OPERATIONS["cuda"]:
        assert all(count > 0 for count in num_zero_copy), "no kernel has run zero-copy"


def test_random_operations_of_16_threads_on_16_groups(two_ranks: RankPool) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    two_ranks.run(_torture_in_threads, seed, 16, 60, timeout_s=120)
