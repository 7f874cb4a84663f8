"""Fixtures that runtime tests share: a server in another process, a runtime, and the server as its peer;
and a runtime that is its own peer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.runtime_clients import Server
from torch_axon.runtime import Peer, Runtime


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
    assert server.process.returncode == 0


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime("client") as runtime:
        yield runtime


@pytest.fixture(scope="module")
def peer(server: Server, runtime: Runtime) -> Peer:
    return runtime.connect(server.address)


@pytest.fixture
def itself() -> Iterator[tuple[Runtime, Peer]]:
    with Runtime("itself") as runtime:
        yield runtime, runtime.connect(runtime.address)
