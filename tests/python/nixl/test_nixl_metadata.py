"""Metadata: what an agent tells about itself, and what another one makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nixl_support import descs_of, numbered, received, register, transfer

from torch_axon.nixl._api import nixl_agent
from torch_axon.nixl._bindings import (
    nixl_mem_t,
    nixlInvalidParamError,
    nixlMismatchError,
    nixlNotAllowedError,
    nixlNotFoundError,
    nixlRegDList,
)

Make = Callable[..., nixl_agent]
NBYTES = 128


def test_metadata_change_with_registrations_only(target: nixl_agent) -> None:
    empty = target.get_agent_metadata()
    assert isinstance(empty, bytes)
    assert target.get_agent_metadata() == empty
    memory = numbered(NBYTES)
    descs = register(target, memory)
    filled = target.get_agent_metadata()
    assert filled != empty
    assert target.get_agent_metadata() == filled
    target.deregister_memory(descs)
    assert len(target.get_agent_metadata()) == len(empty)


def test_agents_are_known_by_their_metadata(initiator: nixl_agent, target: nixl_agent) -> None:
    assert not initiator.check_remote_metadata("target")
    for data in (target.get_agent_metadata(), bytearray(target.get_agent_metadata())):
        assert initiator.add_remote_agent(data) == b"target"  # type: ignore[arg-type]
    for name in ("target", b"target"):
        assert initiator.check_remote_metadata(name)
        initiator.make_connection(name)
    initiator.send_notif("target", b"an agent without memory hears")
    assert received(target, "initiator", 1) == [b"an agent without memory hears"]
    initiator.remove_remote_agent("target")
    assert not initiator.check_remote_metadata("target")
    for name in ("target", "initiator", b"an unknown agent"):
        initiator.remove_remote_agent(name)  # does nothing
    with pytest.raises(nixlNotFoundError):
        initiator.make_connection("target")
    with pytest.raises(nixlNotFoundError):
        initiator.send_notif("target", b"x")


def test_later_metadata_add_memory_and_leave_handles_valid(initiator: nixl_agent, target: nixl_agent) -> None:
    into, first, second = (numbered(NBYTES, seed) for seed in range(3))
    register(initiator, into)
    first_descs = register(target, first)
    initiator.add_remote_agent(target.get_agent_metadata())
    handle = transfer(initiator, "READ", into, first, "target")
    register(target, second)
    assert not initiator.check_remote_metadata("target", descs_of(initiator, second))
    with pytest.raises(nixlNotFoundError):
        transfer(initiator, "READ", into, second, "target")
    for _ in range(2):
        initiator.add_remote_agent(target.get_agent_metadata())
    assert initiator.check_remote_metadata("target", descs_of(initiator, first, second))
    transfer(initiator, "READ", into, second, "target")
    assert np.array_equal(into, second)
    initiator.transfer(handle)
    assert initiator.check_xfer_state(handle) in ("DONE", "PROC")
    target.deregister_memory(first_descs)
    initiator.add_remote_agent(target.get_agent_metadata())
    assert not initiator.check_remote_metadata("target", descs_of(initiator, first))  # the newest are complete


def test_parts_of_metadata_add_up(initiator: nixl_agent, target: nixl_agent) -> None:
    into, first, second = (numbered(NBYTES, seed) for seed in range(3))
    register(initiator, into)
    both = register(target, first, second)
    parts = [target.get_reg_descs([both[i]], "DRAM") for i in range(2)]
    assert parts[0] is not None
    assert parts[1] is not None
    alone = target.get_partial_agent_metadata(parts[1])
    with pytest.raises(nixlNotFoundError):
        initiator.add_remote_agent(alone)  # it does not say how to connect
    assert not initiator.check_remote_metadata("target")
    assert initiator.add_remote_agent(target.get_partial_agent_metadata(parts[0], True, ["UCX"])) == b"target"
    transfer(initiator, "READ", into, first, "target")
    with pytest.raises(nixlNotFoundError):
        transfer(initiator, "READ", into, second, "target")
    assert initiator.add_remote_agent(alone) == b"target"
    transfer(initiator, "READ", into, second, "target")
    assert initiator.check_remote_metadata("target", both.trim())


def test_parts_without_memory_tell_how_to_connect(initiator: nixl_agent, target: nixl_agent) -> None:
    nothing = nixlRegDList(nixl_mem_t.DRAM_SEG)
    initiator.add_remote_agent(target.get_partial_agent_metadata(nothing, inc_conn_info=True))
    initiator.send_notif("target", b"hello")
    assert received(target, "initiator", 1) == [b"hello"]
    missing = nixlRegDList(nixl_mem_t.DRAM_SEG, [(1, 2, 3, "")])
    with pytest.raises(nixlNotFoundError):
        target.get_partial_agent_metadata(missing, True)
    with pytest.raises(TypeError):
        target.get_partial_agent_metadata(missing.trim())  # type: ignore[arg-type]


def test_incomplete_metadata_are_refused_without_effect(initiator: nixl_agent, target: nixl_agent) -> None:
    into, source = numbered(NBYTES, seed=1), numbered(NBYTES, seed=2)
    register(initiator, into)
    register(target, source)
    data = target.get_agent_metadata()
    for length in range(len(data)):
        with pytest.raises(nixlMismatchError):
            initiator.add_remote_agent(data[:length])
    with pytest.raises(nixlMismatchError):
        initiator.add_remote_agent(data + b"\0")
    assert not initiator.check_remote_metadata("target")
    assert initiator.add_remote_agent(data) == b"target"
    transfer(initiator, "READ", into, source, "target")
    for length in range(0, len(data), 7):
        with pytest.raises(nixlMismatchError):
            initiator.add_remote_agent(data[:length])
    transfer(initiator, "READ", into, source, "target")


@pytest.mark.parametrize("garbage", [b"", b"\0" * 500, b"nixl" * 200, "text", numbered(1000).tobytes()])
def test_bytes_that_are_no_metadata_are_refused(initiator: nixl_agent, garbage: Any) -> None:
    with pytest.raises(nixlMismatchError, match=r"^NIXL_ERR_MISMATCH"):
        initiator.add_remote_agent(garbage)


def test_own_metadata_and_other_types_are_refused(initiator: nixl_agent) -> None:
    with pytest.raises(nixlInvalidParamError):
        initiator.add_remote_agent(initiator.get_agent_metadata())
    for wrong in (None, 5):
        with pytest.raises(TypeError):
            initiator.add_remote_agent(wrong)  # type: ignore[arg-type]


def test_another_agent_of_a_known_name_is_refused_until_that_is_removed(
    initiator: nixl_agent, make_agent: Make
) -> None:
    into = numbered(NBYTES)
    register(initiator, into)
    memories = [numbered(NBYTES, seed) for seed in (1, 2)]
    twins = [make_agent("twin") for _ in memories]
    for twin, memory in zip(twins, memories, strict=True):
        register(twin, memory)
    initiator.add_remote_agent(twins[0].get_agent_metadata())
    handle = transfer(initiator, "READ", into, memories[0], "twin")
    with pytest.raises(nixlNotAllowedError):
        initiator.add_remote_agent(twins[1].get_agent_metadata())
    initiator.transfer(handle)
    initiator.remove_remote_agent("twin")
    initiator.add_remote_agent(twins[1].get_agent_metadata())
    transfer(initiator, "READ", into, memories[1], "twin")
    assert np.array_equal(into, memories[1])
    with pytest.raises(nixlNotFoundError):
        transfer(initiator, "READ", into, memories[0], "twin")
    with pytest.raises(nixlNotFoundError):
        initiator.transfer(handle)


def test_exchanges_need_an_address(initiator: nixl_agent) -> None:
    with pytest.raises(nixlInvalidParamError):
        initiator.send_local_metadata()
    with pytest.raises(nixlInvalidParamError):
        initiator.invalidate_local_metadata()
    with pytest.raises(nixlInvalidParamError):
        initiator.fetch_remote_metadata("target")
