"""Metadata over the network: agents with a listening thread give, fetch and withdraw them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from nixl_children import Child, listening
from nixl_support import Recorded, descs_of, numbered, received, register, transfer

from support.waiting import until
from torch_axon.nixl._api import nixl_agent, nixl_agent_config

Make = Callable[..., nixl_agent]
HOST = "127.0.0.1"
NBYTES = 4096
ONE_SECRET, OTHER_SECRET = "one secret of many bytes", "another secret of many bytes"


@pytest.fixture(autouse=True)
def _without_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AXON_SECRET", raising=False)


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.end()


def test_agents_of_two_processes_exchange_metadata(make_agent: Make, child: Child) -> None:
    agent, port = listening(make_agent, "here")
    memory = np.zeros(NBYTES, dtype=np.uint8)
    register(agent, memory)
    their_port = child.ask("listen", "there", NBYTES, 7)
    agent.fetch_remote_metadata("there", HOST, their_port)
    until(lambda: agent.check_remote_metadata("there"))
    agent.send_local_metadata(HOST, their_port)
    assert child.ask("knows", "here")
    child.ask("send", "here", b"hello")
    assert received(agent, "there", 1) == [b"hello"]
    child.close()
    assert port != their_port


def test_metadata_are_fetched_given_in_parts_and_withdrawn(make_agent: Make) -> None:
    here, _ = listening(make_agent, "here")
    there, port = listening(make_agent, "there")
    into, first, second = (numbered(NBYTES, seed) for seed in range(3))
    register(there, into)
    both = register(here, first, second)
    parts = [here.get_reg_descs([both[i]], "DRAM") for i in range(2)]
    assert parts[0] is not None
    assert parts[1] is not None
    here.send_partial_agent_metadata(parts[0], True, ["UCX"], HOST, port)
    until(lambda: there.check_remote_metadata("here", descs_of(there, first)))
    transfer(there, "READ", into, first, "here")
    assert np.array_equal(into, first)
    assert not there.check_remote_metadata("here", descs_of(there, second))
    here.send_partial_agent_metadata(parts[1], ip_addr=HOST, port=port)
    until(lambda: there.check_remote_metadata("here", descs_of(there, first, second)))
    here.invalidate_local_metadata(HOST, port)
    until(lambda: not there.check_remote_metadata("here"))
    here.send_local_metadata(ip_addr=HOST, port=port)
    until(lambda: there.check_remote_metadata("here", both.trim()))


def test_an_agent_without_a_listening_thread_gives_and_fetches(make_agent: Make) -> None:
    here = make_agent("here")
    there, port = listening(make_agent, "there")
    here.send_local_metadata(HOST, port)
    until(lambda: there.check_remote_metadata("here"))
    here.fetch_remote_metadata("there", HOST, port)
    until(lambda: here.check_remote_metadata("there"))
    here.send_notif("there", b"there")
    there.send_notif("here", b"here")
    assert received(there, "here", 1) == [b"there"]
    assert received(here, "there", 1) == [b"here"]


def test_a_taken_port_is_refused(make_agent: Make) -> None:
    _, port = listening(make_agent, "here")
    with pytest.raises(RuntimeError, match="Failed to bind metadata listener socket"):
        nixl_agent("other", nixl_agent_config(True, True, port))
    make_agent("any", nixl_agent_config(True, True, 0))


def test_agents_of_different_secrets_exchange_nothing(
    make_agent: Make, monkeypatch: pytest.MonkeyPatch, log: Recorded
) -> None:
    monkeypatch.setenv("AXON_SECRET", ONE_SECRET)
    there, port = listening(make_agent, "there")
    assert not log.has("can read the metadata")
    monkeypatch.setenv("AXON_SECRET", OTHER_SECRET)
    stranger = make_agent("stranger")
    for exchange in (stranger.send_local_metadata, stranger.invalidate_local_metadata):
        log.lines.clear()
        exchange(HOST, port)
        until(lambda: log.has(f"ERROR: metadata exchange with {HOST}:{port} failed"))
    log.lines.clear()
    stranger.fetch_remote_metadata("there", HOST, port)
    until(lambda: log.has(f"ERROR: metadata exchange with {HOST}:{port} failed"))
    assert not there.check_remote_metadata("stranger")
    assert not stranger.check_remote_metadata("there")
    monkeypatch.setenv("AXON_SECRET", ONE_SECRET)
    friend = make_agent("friend")
    friend.fetch_remote_metadata("there", HOST, port)
    until(lambda: friend.check_remote_metadata("there"))


def test_an_agent_without_a_secret_warns_that_it_listens(make_agent: Make, log: Recorded) -> None:
    _, port = listening(make_agent, "here")
    assert log.has(f"WARNING: every process that reaches port {port} can read the metadata of this agent")


@pytest.mark.parametrize("exchange", ["fetch", "send", "invalidate"])
def test_exchanges_with_a_port_that_does_not_listen_are_logged_only(
    make_agent: Make, log: Recorded, exchange: str
) -> None:
    agent = make_agent("here")
    with socket.socket() as taken:  # bound, but not listening
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        if exchange == "fetch":
            agent.fetch_remote_metadata("there", HOST, port)
        elif exchange == "send":
            agent.send_local_metadata(HOST, port)
        else:
            agent.invalidate_local_metadata(HOST, port)
        until(lambda: log.has(f"ERROR: metadata exchange with {HOST}:{port} failed"))
    assert not agent.check_remote_metadata("there")


def test_an_address_that_is_none_is_logged_only(make_agent: Make, log: Recorded) -> None:
    agent = make_agent("here")
    agent.fetch_remote_metadata("there", "256.0.0.1", 1)
    until(lambda: log.has("ERROR: metadata exchange with 256.0.0.1:1 failed"))
