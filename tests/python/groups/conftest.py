"""Networks between hosts for the tests of this folder."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["rails", "ucx"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Selects what carries messages between the hosts of a test: rails, as by default, or UCX over TCP."""
    name: str = request.param
    if name == "ucx":
        monkeypatch.setenv("AXON_TRANSPORTS", "ucx,rings,cma,cuda")
    return name
