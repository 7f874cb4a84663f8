"""Notifications: those of transfers and those that agents send, in order, complete, and never before the data."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from nixl_support import descs_of, finish, numbered, received, register, run, transfer

from support.waiting import DEADLINE_S, until
from torch_axon.nixl._api import nixl_agent
from torch_axon.nixl._bindings import nixlNotFoundError

NBYTES = 256


class Pair:
    """Two agents with memory; the first one knows the second one, but not the reverse."""

    def __init__(self, initiator: nixl_agent, target: nixl_agent) -> None:
        self.here, self.there = initiator, target
        self.local, self.remote = numbered(NBYTES, seed=1), numbered(NBYTES, seed=2)
        register(initiator, self.local)
        register(target, self.remote)
        initiator.add_remote_agent(target.get_agent_metadata())

    def handle(self, operation: str = "WRITE", message: Any = b"") -> Any:
        sides = descs_of(self.here, self.local), descs_of(self.here, self.remote)
        return self.here.initialize_xfer(operation, *sides, "target", message)


@pytest.fixture
def pair(initiator: nixl_agent, target: nixl_agent) -> Pair:
    return Pair(initiator, target)


@pytest.mark.parametrize("message", [b"bytes", "a text: é", bytearray(b"array"), b"with\0NUL\xff", "n\0", b"x" * 2**16])
def test_messages_are_any_bytes_or_text(pair: Pair, message: Any) -> None:
    expected = message.encode() if isinstance(message, str) else bytes(message)
    pair.here.send_notif("target", message)
    assert received(pair.there, "initiator", 1) == [expected]
    for operation in ("READ", "WRITE"):
        run(pair.here, pair.handle(operation, message))
        assert received(pair.there, "initiator", 1) == [expected]
        run(pair.here, pair.handle(operation), message)
        assert received(pair.there, "initiator", 1) == [expected]


def test_messages_of_other_types_are_refused(pair: Pair) -> None:
    with pytest.raises(TypeError):
        pair.here.send_notif("target", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        pair.handle("READ", 5)
    with pytest.raises(nixlNotFoundError):
        pair.here.send_notif("an unknown agent", b"x")
    with pytest.raises(nixlNotFoundError):
        pair.there.send_notif("initiator", b"x")  # hearing from an agent does not make it known


def test_sent_messages_arrive_in_order_and_once_even_if_empty_or_equal(pair: Pair) -> None:
    sent = [b"first", b"", b"same", b"same", *(b"%d" % i for i in range(500))]
    for message in sent:
        pair.here.send_notif(b"target", message)
    pair.here.send_notif("target", b"last", backend="UCX")
    assert received(pair.there, "initiator", len(sent) + 1) == [*sent, b"last"]
    assert pair.there.get_new_notifs() == {}
    assert pair.there.get_new_notifs(backends=["UCX"]) == {}


def test_messages_of_transfers_arrive_in_the_order_of_their_ends(pair: Pair) -> None:
    for i in range(100):
        run(pair.here, pair.handle("READ" if i % 2 else "WRITE", b"%d" % i))
    assert received(pair.there, "initiator", 100) == [b"%d" % i for i in range(100)]


def test_a_transfer_keeps_its_message_until_it_gets_another_one(pair: Pair) -> None:
    handle = pair.handle("WRITE", b"made with")
    for message in (b"", "posted with", b"", b"other", ""):
        run(pair.here, handle, message)
    expected = [b"made with", b"posted with", b"posted with", b"other", b"other"]
    assert received(pair.there, "initiator", 5) == expected


def test_a_transfer_without_a_message_tells_nothing(pair: Pair) -> None:
    for operation in ("READ", "WRITE"):
        run(pair.here, pair.handle(operation))
    pair.here.send_notif("target", b"the only one")
    assert received(pair.there, "initiator", 1) == [b"the only one"]
    assert pair.there.get_new_notifs() == {}


def test_a_message_never_arrives_before_its_data(initiator: nixl_agent, target: nixl_agent) -> None:
    source, remote = np.zeros(1 << 20, dtype=np.uint8), np.zeros(1 << 20, dtype=np.uint8)
    register(initiator, source)
    register(target, remote)
    initiator.add_remote_agent(target.get_agent_metadata())
    handle = initiator.initialize_xfer("WRITE", descs_of(initiator, source), descs_of(initiator, remote), "target")
    for i in range(1, 30):
        source[:] = i
        initiator.transfer(handle, b"%d" % i)
        assert received(target, "initiator", 1) == [b"%d" % i]
        assert (remote == i).all()
        finish(initiator, handle)


def test_messages_are_sorted_by_their_senders(pair: Pair, make_agent: Callable[..., nixl_agent]) -> None:
    other = make_agent("other")
    other.add_remote_agent(pair.there.get_agent_metadata())
    found: dict[str, list[bytes]] = {}

    def has_all() -> bool:
        for sender, messages in pair.there.get_new_notifs().items():
            assert messages != []
            found.setdefault(sender, []).extend(messages)
        return sum(map(len, found.values())) == 40

    for i in range(20):
        pair.here.send_notif("target", b"%d" % i)
        other.send_notif("target", b"%d" % -i)
    until(has_all)
    assert found == {"initiator": [b"%d" % i for i in range(20)], "other": [b"%d" % -i for i in range(20)]}


def test_an_agent_sends_to_itself(initiator: nixl_agent) -> None:
    memory = numbered(NBYTES)
    register(initiator, memory)
    initiator.send_notif("initiator", b"sent")
    assert received(initiator, "initiator", 1) == [b"sent"]
    transfer(initiator, "WRITE", memory[:64], memory[64:128], "initiator", b"written")
    assert received(initiator, "initiator", 1) == [b"written"]


def test_kept_messages_are_taken_by_their_begin_or_by_a_part(pair: Pair) -> None:
    for message in (b"key:1", b"other", b"a key:2", b"key:3", b"end"):
        pair.here.send_notif("target", message)
    until(lambda: b"end" in pair.there.update_notifs().get("initiator", []))
    assert pair.there.get_new_notifs() == {}  # `notifs` has them
    assert not pair.there.check_remote_xfer_done("initiator", b"none of these")
    assert not pair.there.check_remote_xfer_done("an unknown agent", b"key")
    with pytest.raises(TypeError):
        pair.there.check_remote_xfer_done("initiator", "key")  # type: ignore[arg-type]
    for _ in range(2):
        assert pair.there.check_remote_xfer_done("initiator", b"key:")
    assert not pair.there.check_remote_xfer_done("initiator", b"key:")
    assert pair.there.check_remote_xfer_done(b"initiator", b"key:", tag_is_prefix=False)
    assert pair.there.notifs["initiator"] == [b"other", b"end"]
    assert all(pair.there.check_remote_xfer_done("initiator", b"", backends=["UCX"]) for _ in range(2))
    assert pair.there.notifs == {"initiator": []}
    pair.here.send_notif("target", b"key:4")
    until(lambda: pair.there.check_remote_xfer_done("initiator", b"key:4"))
    assert pair.there.update_notifs() is pair.there.notifs


def test_threads_take_each_message_once(pair: Pair) -> None:
    count, lock = 2000, threading.Lock()
    taken: list[bytes] = []

    def take() -> None:
        def has_all() -> bool:
            messages = pair.there.get_new_notifs().get("initiator", [])
            with lock:
                taken.extend(messages)
                return len(taken) >= count

        until(has_all)

    with ThreadPoolExecutor(3) as pool:
        takers = [pool.submit(take) for _ in range(3)]
        for i in range(count):
            pair.here.send_notif("target", b"%d" % i)
        for taker in takers:
            taker.result(2 * DEADLINE_S)
    assert sorted(map(int, taken)) == list(range(count))
