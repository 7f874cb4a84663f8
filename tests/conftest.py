"""Pools of ranks for the tests: `ranks` (2, 3 and 4 of them), `one_rank`, `two_ranks`, `four_ranks`, `fresh_ranks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.pool import Pools, RankPool


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--torture-operations", type=int, help="how many operations test_torture.py draws")
    parser.addoption("--rank-order-draws", type=int, help="how many reductions test_rank_order.py compares")
    parser.addoption("--all-faults", action="store_true", help="all of tests/fault, not a part of what takes a timeout")
    parser.addoption("--fault-rounds", type=int, default=12, help="how often tests/fault lets a rank fail again")
    parser.addoption("--soak-minutes", type=float, default=1.0, help="how long tests/soak goes on, on each device")
    parser.addoption("--torture-seed", type=int, help="and from what; by default another one each time")


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    with Pools() as pools:
        yield pools


@pytest.fixture
def device() -> str:
    """Selects where the pools of a test keep their tensors; the decorators of devices.py override it."""
    return "cpu"


@pytest.fixture(params=(2, 3, 4), ids=lambda size: f"{size}ranks")
def ranks(request: pytest.FixtureRequest, pools: Pools, device: str) -> RankPool:
    return pools.of(request.param, device)


@pytest.fixture
def one_rank(pools: Pools, device: str) -> RankPool:
    return pools.of(1, device)


@pytest.fixture
def two_ranks(pools: Pools, device: str) -> RankPool:
    return pools.of(2, device)


@pytest.fixture
def three_ranks(pools: Pools, device: str) -> RankPool:
    return pools.of(3, device)


@pytest.fixture
def four_ranks(pools: Pools, device: str) -> RankPool:
    return pools.of(4, device)


@pytest.fixture
def fresh_ranks(device: str) -> Iterator[Callable[..., RankPool]]:
    """Creates a test's own pools, for tests that kill ranks or start groups themselves (meeting="none")."""
    made: list[RankPool] = []

    def make(size: int, meeting: str = "file", group_timeout_s: float = 60.0) -> RankPool:
        made.append(RankPool(size, meeting, group_timeout_s, device))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
