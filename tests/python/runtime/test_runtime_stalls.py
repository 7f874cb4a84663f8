"""A server is stopped, as by a debugger or a freezing container: it does not run calls that have been cancelled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from support.processes import state_of
from support.runtime_clients import Server
from torch_axon.runtime import Runtime

NUM_CALLS = 1200  # more than a connection's call slots at its peer
SIZES = (10, 1000, 10_000, 50_000)


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    pid = server.process.pid
    os.kill(pid, signal.SIGSTOP)
    while any(state_of(f"{pid}/task/{thread}") != "T" for thread in os.listdir(f"/proc/{pid}/task")):
        pass  # each of its threads stops when it is next given a core
    yield
    os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module", params=["rings", "rails"])
def stalling(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(**({"AXON_TRANSPORTS": "rails"} if request.param == "rails" else {}))
    yield server
    server.close()


@pytest.mark.parametrize("where", ["on the runtime's thread", "in an executor", "on a loop"])
def test_calls_given_up_while_their_server_is_stopped_do_not_begin(stalling: Server, where: str) -> None:
    with Runtime("client") as client:
        peer = client.connect(stalling.address)
        peer.invoke(f"count {where}", torch.ones(10)).result()
        ran = peer.invoke("ran").result()
        with stopped(stalling):
            calls = [
                peer.invoke(f"count {where}", torch.ones(SIZES[i % len(SIZES)]), timeout=0.5) for i in range(NUM_CALLS)
            ]
            assert {type(call.exception(60)) for call in calls} == {TimeoutError}
        again = [peer.invoke(f"count {where}", torch.ones(10)) for _ in range(NUM_CALLS)]
        assert all(call.exception(60) is None for call in again)
        assert peer.invoke("ran").result() == ran + NUM_CALLS


def test_calls_cancelled_while_their_server_is_stopped_do_not_begin() -> None:
    server = Server()
    with Runtime("client") as client:
        peer = client.connect(server.address)
        peer.invoke("ran").result()
        with stopped(server):
            calls = [peer.invoke("count in an executor", torch.ones(SIZES[i % len(SIZES)])) for i in range(NUM_CALLS)]
            assert all(call.cancel() for call in calls)
        peer.invoke("count in an executor", torch.ones(10)).result()
        assert peer.invoke("ran").result() == 1
    server.close()
