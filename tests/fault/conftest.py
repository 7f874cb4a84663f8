"""Options and ranks of the fault tests; the folder above has the other options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_ranks import Ranks

from support.hosts import two_hosts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--round-fault", action="append", help="by what --fault-rounds fail; not told: by all in turn")
    parser.addoption("--faults-json", type=Path, help="where tests/fault append a line of what they have seen")
    parser.addoption("--faults-commit", help="the commit that was built, for a tree without git")


@pytest.fixture(scope="module")
def ranks(device: str) -> Iterator[Ranks]:
    ranks = Ranks(device)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def ranks_of_two_hosts(device: str) -> Iterator[Ranks]:
    with two_hosts() as hosts:
        ranks = Ranks(device, hosts)
        yield ranks
        ranks.close()
