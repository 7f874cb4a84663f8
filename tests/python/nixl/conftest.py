"""Fixtures of the tests of torch_axon.nixl: agents that end with the test, and the lines of the logger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from nixl_support import Recorded

from torch_axon.nixl._api import nixl_agent, nixl_agent_config


@pytest.fixture
def make_agent() -> Iterator[Callable[..., nixl_agent]]:
    """Makes agents of any name and settings."""
    made: list[nixl_agent] = []

    def make(name: str, config: nixl_agent_config | None = None) -> nixl_agent:
        made.append(nixl_agent(name, config))
        return made[-1]

    yield make
    for agent in made:
        agent.agent.close()


@pytest.fixture
def initiator(make_agent: Callable[..., nixl_agent]) -> nixl_agent:
    return make_agent("initiator", nixl_agent_config(capture_telemetry=True))


@pytest.fixture
def target(make_agent: Callable[..., nixl_agent]) -> nixl_agent:
    return make_agent("target")


@pytest.fixture
def log() -> Iterator[Recorded]:
    recorded = Recorded()
    logging.getLogger("nixl").addHandler(recorded)
    yield recorded
    logging.getLogger("nixl").removeHandler(recorded)
