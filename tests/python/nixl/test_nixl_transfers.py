"""Transfers between two agents of a process: their data, states, checks and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nixl_support import Memory, descs_of, finish, numbered, register, row_of, run, transfer

from torch_axon.nixl._api import nixl_agent, nixl_agent_config
from torch_axon.nixl._bindings import (
    nixl_mem_t,
    nixlBackendError,
    nixlInvalidParamError,
    nixlNotAllowedError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlXferDList,
)

Make = Callable[..., nixl_agent]
NBYTES = 4096
TEXT = "the text of the message"


class Pair:
    """Two agents that have registered memory; the first one knows the second one."""

    def __init__(self, initiator: nixl_agent, target: nixl_agent) -> None:
        self.here, self.there = initiator, target
        self.local, self.remote = numbered(NBYTES, seed=1), numbered(NBYTES, seed=2)
        self.local_reg = register(initiator, self.local)
        self.remote_reg = register(target, self.remote)
        assert initiator.add_remote_agent(target.get_agent_metadata()) == b"target"

    def handle(self, operation: str = "READ", message: bytes = b"") -> Any:
        sides = descs_of(self.here, self.local), descs_of(self.here, self.remote)
        return self.here.initialize_xfer(operation, *sides, "target", message)


@pytest.fixture
def pair(initiator: nixl_agent, target: nixl_agent) -> Pair:
    return Pair(initiator, target)


def dram(*rows: tuple[int, int, int]) -> nixlXferDList:
    return nixlXferDList(nixl_mem_t.DRAM_SEG, list(rows))


def test_only_the_first_use_of_memory_takes_a_thread(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pair.here, pair.handle())
    monkeypatch.setattr("threading.Thread.start", lambda thread: pytest.fail(f"{thread.name} is started"))
    run(pair.here, pair.handle())
    transfer(pair.here, "WRITE", pair.local[:100], pair.remote[100:200], "target")
    assert np.array_equal(pair.local[:100], pair.remote[100:200])


def test_a_post_raises_only_errors_of_nixl(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the GPU fails")

    run(pair.here, pair.handle())
    monkeypatch.setattr("torch_axon.runtime.Plan.__init__", fail)
    handle = pair.handle()
    for attempt in (pair.here.transfer, pair.here.check_xfer_state):
        with pytest.raises(nixlBackendError, match="the GPU fails"):
            attempt(handle)


@pytest.mark.parametrize("name", ["target", b"target"])
def test_bytes_are_read_and_written(pair: Pair, name: Any) -> None:
    remote = pair.remote.copy()
    transfer(pair.here, "READ", pair.local, pair.remote, name)
    assert np.array_equal(pair.local, remote)
    pair.local[:] = numbered(NBYTES, seed=3)
    transfer(pair.here, "WRITE", pair.local[100:200], pair.remote[300:400], name)
    remote[300:400] = pair.local[100:200]
    assert np.array_equal(pair.remote, remote)  # also around the written bytes


def test_tensors_are_read_into_tensors(initiator: nixl_agent, target: nixl_agent) -> None:
    sources = [torch.arange(1000, dtype=torch.float64), torch.ones(3, 7, dtype=torch.int16)]
    into = [torch.zeros_like(source) for source in sources]
    initiator.register_memory(into)
    target.register_memory(sources)
    initiator.add_remote_agent(target.get_agent_metadata())
    local, remote = initiator.get_xfer_descs(into), target.get_xfer_descs(sources)
    assert local is not None
    assert remote is not None
    run(initiator, initiator.initialize_xfer("READ", local, remote, "target"))
    assert all(torch.equal(a, b) for a, b in zip(sources, into, strict=True))


def test_descriptors_of_no_bytes_are_allowed(pair: Pair) -> None:
    here, there = pair.local.ctypes.data, pair.remote.ctypes.data
    local, remote = dram((here + 5, 0, 0), (here, 16, 0)), dram((there + 9, 0, 0), (there, 16, 0))
    run(pair.here, pair.here.initialize_xfer("READ", local, remote, "target"))
    assert np.array_equal(pair.local[:16], pair.remote[:16])


def test_a_transfer_is_posted_again_after_its_end(pair: Pair) -> None:
    handle = pair.handle()
    with pytest.raises(nixlNotPostedError):
        pair.here.check_xfer_state(handle)
    with pytest.raises(nixlNotPostedError):
        pair.here.get_xfer_telemetry(handle)
    for seed in range(3, 6):
        pair.remote[:] = numbered(NBYTES, seed)
        run(pair.here, handle)
        assert [pair.here.check_xfer_state(handle) for _ in range(3)] == ["DONE"] * 3
        assert np.array_equal(pair.local, pair.remote)
    assert pair.here.estimate_xfer_cost(handle) == (0, 0, "UNKNOWN")
    assert pair.here.query_xfer_backend(handle) == "UCX"


def test_an_agent_transfers_within_its_own_memory(initiator: nixl_agent) -> None:
    memory = numbered(NBYTES)
    assert not initiator.check_remote_metadata("initiator")
    register(initiator, memory)
    assert initiator.check_remote_metadata("initiator")
    for operation, remote in (("READ", memory[1024:2048]), ("WRITE", memory[2048:3072])):
        transfer(initiator, operation, memory[:1024], remote, "initiator")
        assert np.array_equal(memory[:1024], remote)
    later = numbered(64, seed=9)  # is known without its metadata
    register(initiator, later)
    local = initiator.prep_xfer_dlist("", descs_of(initiator, memory[:64]))
    own = initiator.prep_xfer_dlist("initiator", descs_of(initiator, later))
    run(initiator, initiator.make_prepped_xfer("READ", local, [0], own, [0]))
    assert np.array_equal(memory[:64], later)


@pytest.mark.parametrize(
    ("offset", "nbytes", "device"),
    [
        (0, NBYTES + 1, 0),
        (1, NBYTES, 0),
        (-1, 16, 0),
        (NBYTES, 1, 0),
        (NBYTES - 1, 2, 0),
        (0, 2**64 - 1, 0),
        (0, 2**63, 0),
        (16, 2**64 - 16, 0),
        (16, 2**64 - 8, 0),
        (0, 16, 1),
        (0, 16, 2**64 - 1),
    ],
)
def test_ranges_that_are_not_registered_are_refused_on_both_sides(
    pair: Pair, offset: int, nbytes: int, device: int
) -> None:
    before = pair.local.copy(), pair.remote.copy()
    for operation in ("READ", "WRITE"):
        for is_remote in (False, True):
            base = (pair.remote if is_remote else pair.local).ctypes.data
            wrong = dram((base, 16, 0), (base + offset, nbytes, device))
            other = (pair.local if is_remote else pair.remote).ctypes.data
            right = dram((other, 16, 0), (other, nbytes, 0))
            with pytest.raises(nixlNotFoundError):
                pair.here.prep_xfer_dlist("target" if is_remote else "", wrong)
            with pytest.raises(nixlNotFoundError):
                pair.here.initialize_xfer(operation, *((right, wrong) if is_remote else (wrong, right)), "target")
    assert not pair.here.check_remote_metadata("target", dram((pair.remote.ctypes.data + offset, nbytes, device)))
    assert np.array_equal(pair.local, before[0])
    assert np.array_equal(pair.remote, before[1])


def test_a_range_across_two_registrations_is_refused(initiator: nixl_agent, target: nixl_agent) -> None:
    memory, remote = numbered(128), numbered(128)
    register(initiator, memory[:64], memory[64:])
    register(target, remote[:64], remote[64:])
    initiator.add_remote_agent(target.get_agent_metadata())
    for local, there in ((memory[32:96], remote[:64]), (memory[:64], remote[32:96])):
        with pytest.raises(nixlNotFoundError):
            transfer(initiator, "READ", local, there, "target")
    transfer(initiator, "READ", memory[:64], remote[64:], "target")
    register(initiator, memory)  # all in one
    register(target, remote)
    initiator.add_remote_agent(target.get_agent_metadata())
    transfer(initiator, "READ", memory[32:96], remote[32:96], "target")
    assert np.array_equal(memory[32:96], remote[32:96])


def test_devices_of_host_memory_are_names_that_must_agree(initiator: nixl_agent, target: nixl_agent) -> None:
    local, remote = numbered(64, seed=1), numbered(64, seed=2)
    initiator.register_memory([(*row_of(local, 3), "")], "DRAM")
    target.register_memory([(*row_of(remote, 5), "")], "DRAM")
    initiator.add_remote_agent(target.get_agent_metadata())
    run(initiator, initiator.initialize_xfer("READ", dram(row_of(local, 3)), dram(row_of(remote, 5)), "target"))
    assert np.array_equal(local, remote)
    for here, there in ((3, 3), (5, 5), (0, 0)):
        with pytest.raises(nixlNotFoundError):
            initiator.initialize_xfer("READ", dram(row_of(local, here)), dram(row_of(remote, there)), "target")


def test_wrong_lists_are_refused(pair: Pair) -> None:
    local, remote = dram(row_of(pair.local)), dram(row_of(pair.remote))
    shorter = dram(row_of(pair.remote[:16]))
    twice = dram(row_of(pair.remote), row_of(pair.remote))
    for wrong in (shorter, twice):
        with pytest.raises(nixlInvalidParamError):
            pair.here.initialize_xfer("READ", local, wrong, "target")
    with pytest.raises(nixlInvalidParamError):
        pair.here.initialize_xfer("READ", local, shorter, "an unknown agent")
    with pytest.raises(nixlNotFoundError):
        pair.here.initialize_xfer("READ", local, remote, "an unknown agent")
    with pytest.raises(nixlNotFoundError):
        pair.here.initialize_xfer("READ", dram(), dram(), "target")
    on_gpu = nixlXferDList(nixl_mem_t.VRAM_SEG, [row_of(pair.remote)])
    with pytest.raises(nixlNotFoundError):
        pair.here.initialize_xfer("READ", local, on_gpu, "target")
    with pytest.raises(KeyError):
        pair.here.initialize_xfer("COPY", local, remote, "target")
    for not_descs in (pair.remote_reg, [row_of(pair.remote)], None):
        with pytest.raises(TypeError):
            pair.here.initialize_xfer("READ", local, not_descs, "target")  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        pair.here.initialize_xfer("READ", local, remote, "target", backends=["NONE"])


@pytest.mark.parametrize("operation", ["READ", "WRITE"])
def test_memory_that_the_peer_has_deregistered_is_not_touched(pair: Pair, operation: str) -> None:
    handle = pair.handle(operation, b"never sent")
    used = pair.handle(operation)
    run(pair.here, used)
    pair.there.deregister_memory(pair.remote_reg)
    pair.local[:], pair.remote[:] = numbered(NBYTES, seed=7), numbered(NBYTES, seed=8)
    for each in (handle, used, pair.handle(operation)):
        with pytest.raises(nixlNotAllowedError, match=r"^NIXL_ERR_NOT_ALLOWED"):
            run(pair.here, each)
        for _ in range(2):
            with pytest.raises(nixlNotAllowedError):
                pair.here.check_xfer_state(each)
    assert np.array_equal(pair.local, numbered(NBYTES, seed=7))
    assert np.array_equal(pair.remote, numbered(NBYTES, seed=8))
    assert pair.there.get_new_notifs() == {}
    pair.there.register_memory(pair.remote_reg)  # has another handle, of which the initiator must be told
    with pytest.raises(nixlNotAllowedError):
        run(pair.here, pair.handle(operation))
    pair.here.add_remote_agent(pair.there.get_agent_metadata())
    run(pair.here, pair.handle(operation))
    assert np.array_equal(pair.local, pair.remote)


def test_memory_that_was_deregistered_here_is_not_touched(pair: Pair) -> None:
    handle, before = pair.handle(), pair.local.copy()
    pair.here.deregister_memory(pair.local_reg)
    with pytest.raises(nixlNotFoundError):
        pair.here.transfer(handle)
    with pytest.raises(nixlNotFoundError):
        pair.handle()
    assert np.array_equal(pair.local, before)
    pair.here.register_memory(pair.local_reg)
    run(pair.here, pair.handle())
    assert np.array_equal(pair.local, pair.remote)


def test_handles_are_released_once_and_may_be_put_in_sets(pair: Pair) -> None:
    handles = {pair.handle() for _ in range(3)}
    assert len(handles) == 3
    assert all(handles)
    for handle in handles:
        run(pair.here, handle)
        assert "released=False" in repr(handle)
        for _ in range(2):
            pair.here.release_xfer_handle(handle)
        handle.release()
        assert "released=True" in repr(handle)
        with pytest.raises(nixlInvalidParamError):
            pair.here.transfer(handle)
        with pytest.raises(nixlInvalidParamError):
            pair.here.check_xfer_state(handle)
    never_posted = pair.handle()
    pair.here.release_xfer_handle(never_posted)


def test_a_large_transfer_may_be_released_or_dropped_at_any_time(initiator: nixl_agent, target: nixl_agent) -> None:
    source: Memory = np.ones(8 << 20, dtype=np.uint8)
    into = np.zeros_like(source)
    register(initiator, into)
    register(target, source)
    initiator.add_remote_agent(target.get_agent_metadata())
    local, remote = descs_of(initiator, into), descs_of(initiator, source)
    for _ in range(5):
        handle = initiator.initialize_xfer("READ", local, remote, "target")
        initiator.transfer(handle)
        initiator.release_xfer_handle(handle)
        dropped = initiator.initialize_xfer("WRITE", local, remote, "target")
        initiator.transfer(dropped)
        del dropped
    assert initiator._leaked_xfer_handles == []


def test_telemetry_counts_bytes_and_descriptors(pair: Pair) -> None:
    here, there = pair.local.ctypes.data, pair.remote.ctypes.data
    local, remote = dram((here, 64, 0), (here + 64, 64, 0)), dram((there, 64, 0), (there + 64, 64, 0))
    handle = pair.here.initialize_xfer("READ", local, remote, "target")
    for _ in range(2):
        run(pair.here, handle)
        telemetry = pair.here.get_xfer_telemetry(handle)
        assert (telemetry.totalBytes, telemetry.descCount) == (128, 2)
        assert 0 < telemetry.postDuration <= telemetry.xferDuration
        assert telemetry.startTime > 0


@pytest.mark.parametrize(
    ("variable", "is_captured", "is_on"),
    [("", False, False), ("", True, True), ("y", False, True), ("n", True, False), ("no", True, False)],
)
def test_telemetry_is_off_unless_settings_or_the_environment_turn_it_on(
    make_agent: Make, monkeypatch: pytest.MonkeyPatch, variable: str, is_captured: bool, is_on: bool
) -> None:
    monkeypatch.setenv("NIXL_TELEMETRY_ENABLE", variable)
    if not variable:
        monkeypatch.delenv("NIXL_TELEMETRY_ENABLE")
    agent, memory = make_agent("agent", nixl_agent_config(capture_telemetry=is_captured)), numbered(64)
    register(agent, memory)
    handle = transfer(agent, "READ", memory[:32], memory[32:], "agent")
    finish(agent, handle)
    if is_on:
        assert agent.get_xfer_telemetry(handle).totalBytes == 32
    else:
        with pytest.raises(nixlNoTelemetryError):
            agent.get_xfer_telemetry(handle)
