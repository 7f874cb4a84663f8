"""Agents of two processes: transfers both ways, and peers that are stopped, killed and started again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from nixl_children import Child, dram, same
from nixl_support import Memory, Row, descs_of, finish, numbered, received, register, row_of, run

from support.waiting import until
from torch_axon.nixl._api import nixl_agent
from torch_axon.nixl._bindings import (
    nixlNotAllowedError,
    nixlNotFoundError,
    nixlRemoteDisconnectError,
    nixlRepostActiveError,
)

NBYTES = 3_000_001


@pytest.fixture(scope="module")
def spares() -> Iterator[list[Child]]:
    """Children that have been started at the same time, since each of them takes seconds for that."""
    children = [Child() for _ in range(6)]
    left = list(children)
    yield left
    for child in children:
        child.end()


@pytest.fixture
def child(spares: list[Child]) -> Child:
    return spares.pop()


class Initiator:
    """An agent of this process that knows the one of a child."""

    def __init__(self, agent: nixl_agent, child: Child) -> None:
        self.agent = agent
        self.memory: Memory = numbered(NBYTES, seed=1)
        register(agent, self.memory)
        self.metadata, self.remote = child.ask("make", "peer", NBYTES, 2)
        assert agent.add_remote_agent(self.metadata) == b"peer"

    def handle(self, operation: str = "WRITE", message: bytes = b"", remote: Row | None = None) -> Any:
        descs = descs_of(self.agent, self.memory), dram(remote or self.remote)
        return self.agent.initialize_xfer(operation, *descs, "peer", message)


@pytest.fixture
def initiator_of_child(initiator: nixl_agent, child: Child) -> Initiator:
    return Initiator(initiator, child)


def fails_at_last(call: Callable[[], object], error: type[Exception]) -> None:
    """Calls until it fails: a process may not know at once that another one has ended."""

    def has_failed() -> bool:
        try:
            call()
        except error:
            return True
        return False

    until(has_failed)
    for _ in range(2):
        with pytest.raises(error, match=r"^NIXL_ERR_"):
            call()


def test_bytes_and_messages_move_both_ways(initiator_of_child: Initiator, child: Child) -> None:
    here = initiator_of_child
    run(here.agent, here.handle("READ", b"read"))
    assert same(here.memory, numbered(NBYTES, seed=2))
    here.memory[:] = numbered(NBYTES, seed=3)
    run(here.agent, here.handle("WRITE", b"written"))
    assert child.ask("messages", "initiator", 2) == [b"read", b"written"]
    assert same(child.ask("contents"), here.memory)

    assert child.ask("add", here.agent.get_agent_metadata()) == b"initiator"
    here.memory[:] = numbered(NBYTES, seed=4)
    child.ask("transfer", "READ", "initiator", row_of(here.memory), b"read there")
    assert same(child.ask("contents"), here.memory)
    child.ask("add_memory", NBYTES, 5)
    child.ask("transfer", "WRITE", "initiator", row_of(here.memory), b"written there")
    assert same(here.memory, numbered(NBYTES, seed=5))
    assert received(here.agent, "peer", 2) == [b"read there", b"written there"]

    child.close()  # a peer that ends by itself is lost, too
    fails_at_last(lambda: here.agent.send_notif("peer", b"x"), nixlRemoteDisconnectError)
    with pytest.raises(nixlRemoteDisconnectError):
        run(here.agent, here.handle())


def test_a_peer_that_was_killed_while_idle_is_reported(initiator_of_child: Initiator, child: Child) -> None:
    here = initiator_of_child
    done, fresh = here.handle("READ"), here.handle("WRITE")
    run(here.agent, done)
    child.kill()
    assert here.agent.check_xfer_state(done) == "DONE"
    fails_at_last(lambda: here.agent.send_notif("peer", b"x"), nixlRemoteDisconnectError)
    for handle in (done, fresh, here.handle("READ"), here.handle("WRITE")):
        with pytest.raises(nixlRemoteDisconnectError):
            run(here.agent, handle)
        for call in (here.agent.check_xfer_state, here.agent.transfer):
            with pytest.raises(nixlRemoteDisconnectError, match=r"^NIXL_ERR_REMOTE_DISCONNECT"):
                call(handle)
        here.agent.release_xfer_handle(handle)
    assert here.agent.get_new_notifs() == {}
    here.agent.remove_remote_agent("peer")
    with pytest.raises(nixlNotFoundError):
        here.agent.send_notif("peer", b"x")


def test_a_peer_that_was_killed_during_transfers_is_reported(initiator_of_child: Initiator, child: Child) -> None:
    here = initiator_of_child
    run(here.agent, here.handle("READ"))
    child.signal(signal.SIGSTOP)
    handles = [here.handle("WRITE", b"never") for _ in range(6)]
    for handle in handles:
        assert here.agent.transfer(handle) == "PROC"
    assert {here.agent.check_xfer_state(handle) for handle in handles} == {"PROC"}
    here.agent.send_notif("peer", b"is not awaited")
    child.kill()
    for handle in handles:
        fails_at_last(partial(here.agent.check_xfer_state, handle), nixlRemoteDisconnectError)
        with pytest.raises(nixlRemoteDisconnectError):
            here.agent.transfer(handle)
    with pytest.raises(nixlRemoteDisconnectError):
        here.agent.send_notif("peer", b"x")


def test_transfers_under_way_are_released_dropped_and_removed(initiator_of_child: Initiator, child: Child) -> None:
    here, agent = initiator_of_child, initiator_of_child.agent
    run(agent, here.handle("READ"))
    child.signal(signal.SIGSTOP)
    posted, released, dropped = (here.handle("WRITE", message) for message in (b"posted", b"released", b"dropped"))
    for handle in (posted, released, dropped):
        assert agent.transfer(handle) == "PROC"
    with pytest.raises(nixlRepostActiveError):
        agent.transfer(posted)
    for _ in range(2):
        agent.release_xfer_handle(released)
    del handle, dropped
    assert agent._leaked_xfer_handles == []
    child.signal(signal.SIGCONT)
    finish(agent, posted)
    run(agent, here.handle("WRITE", b"last"))
    assert child.ask("messages", "initiator", 2) == [b"posted", b"last"]
    assert same(child.ask("contents"), here.memory)

    child.signal(signal.SIGSTOP)
    removed = here.handle("WRITE", b"removed")
    assert agent.transfer(removed) == "PROC"
    agent.remove_remote_agent("peer")
    for call in (agent.check_xfer_state, agent.transfer, agent.estimate_xfer_cost):
        with pytest.raises(nixlNotFoundError):
            call(removed)
    assert agent.check_xfer_state(posted) == "DONE"
    agent.release_xfer_handle(removed)
    child.signal(signal.SIGCONT)
    agent.add_remote_agent(here.metadata)
    run(agent, here.handle("READ"))
    assert same(child.ask("contents"), here.memory)


def test_a_peer_that_was_started_again_is_taken_once_the_old_one_is_removed(
    initiator_of_child: Initiator, child: Child, spares: list[Child]
) -> None:
    here, agent, successor = initiator_of_child, initiator_of_child.agent, spares.pop()
    old = here.handle("READ")
    run(agent, old)
    child.kill()
    metadata, remote = successor.ask("make", "peer", NBYTES, 6)
    with pytest.raises(nixlNotAllowedError):
        agent.add_remote_agent(metadata)
    with pytest.raises(nixlRemoteDisconnectError):
        run(agent, here.handle("READ"))
    agent.remove_remote_agent("peer")
    assert agent.add_remote_agent(metadata) == b"peer"
    run(agent, here.handle("READ", b"from the successor", remote))
    assert same(here.memory, numbered(NBYTES, seed=6))
    assert successor.ask("messages", "initiator", 1) == [b"from the successor"]
    with pytest.raises(nixlNotFoundError):
        agent.transfer(old)
    with pytest.raises(nixlNotAllowedError):
        agent.add_remote_agent(here.metadata)  # of the one that has ended
    successor.close()
