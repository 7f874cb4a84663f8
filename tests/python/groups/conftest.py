"""Hosts, and networks between them, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.hosts import Hosts, two_hosts


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts() as hosts:
        yield hosts


@pytest.fixture(params=["rails", "ucx"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Selects what carries messages between the hosts of a test: rails, as by default, or UCX over TCP."""
    name: str = request.param
    if name == "ucx":
        monkeypatch.setenv("AXON_TRANSPORTS", "ucx,rings,cma,cuda")
    return name
