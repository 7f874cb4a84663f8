"""What goes on for long: registrations that come and go, older metadata, lists that are prepared for each use."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from nixl_support import descs_of, numbered, register, row_of, run, transfer

from torch_axon.nixl._api import nixl_agent, nixl_xfer_handle
from torch_axon.nixl._bindings import nixlNotAllowedError, nixlNotFoundError

NBYTES = 128


def test_a_live_registration_is_found_beside_one_that_has_ended(initiator: nixl_agent, target: nixl_agent) -> None:
    into, memory = numbered(NBYTES), numbered(8 * NBYTES, seed=1)
    register(initiator, into)
    later_part = memory[2 * NBYTES : 4 * NBYTES]
    descs = register(target, later_part)
    initiator.add_remote_agent(target.get_agent_metadata())
    transfer(initiator, "READ", into, later_part[:NBYTES], "target")
    target.deregister_memory(descs)
    register(target, memory)
    initiator.add_remote_agent(target.get_agent_metadata())
    transfer(initiator, "READ", into, later_part[:NBYTES], "target")
    assert np.array_equal(into, later_part[:NBYTES])


def test_what_is_registered_twice_is_deregistered_twice(initiator: nixl_agent, target: nixl_agent) -> None:
    into, memory = numbered(NBYTES), numbered(NBYTES, seed=1)
    register(initiator, into)
    descs = register(target, memory)
    target.register_memory(descs)
    initiator.add_remote_agent(target.get_agent_metadata())
    target.deregister_memory(descs)
    handle = transfer(initiator, "READ", into, memory, "target")
    target.deregister_memory(descs)
    with pytest.raises(nixlNotAllowedError):
        run(initiator, handle)
    with pytest.raises(nixlNotFoundError):
        target.deregister_memory(descs)


def test_a_list_that_is_not_registered_completely_stays_registered(initiator: nixl_agent, target: nixl_agent) -> None:
    into, memory, other = numbered(NBYTES), numbered(NBYTES, seed=1), numbered(NBYTES, seed=2)
    register(initiator, into)
    register(target, memory)
    initiator.add_remote_agent(target.get_agent_metadata())
    both = target.get_reg_descs([(*row_of(memory), ""), (*row_of(other), "")], "DRAM")
    assert both is not None
    with pytest.raises(nixlNotFoundError):
        target.deregister_memory(both)
    transfer(initiator, "READ", into, memory, "target")
    assert np.array_equal(into, memory)


def test_older_metadata_change_nothing(initiator: nixl_agent, target: nixl_agent) -> None:
    into, first, second = (numbered(NBYTES, seed=seed) for seed in range(3))
    register(initiator, into)
    target.deregister_memory(register(target, first))
    old = target.get_agent_metadata()
    register(target, first)
    descs = register(target, second)
    initiator.add_remote_agent(target.get_agent_metadata())
    initiator.add_remote_agent(old)
    for memory in (first, second):
        transfer(initiator, "READ", into, memory, "target")
        assert np.array_equal(into, memory)
    part = target.get_partial_agent_metadata(descs)
    target.deregister_memory(descs)
    register(target, second)
    initiator.add_remote_agent(target.get_agent_metadata())
    initiator.add_remote_agent(part)
    transfer(initiator, "READ", into, second, "target")


def test_indices_that_change_later_do_not_change_a_transfer(initiator: nixl_agent, target: nixl_agent) -> None:
    into, memory = np.zeros(NBYTES, dtype=np.uint8), numbered(NBYTES, seed=1)
    register(initiator, into)
    register(target, memory)
    initiator.add_remote_agent(target.get_agent_metadata())
    rows = [
        np.array([(address + i * 32, 32, 0) for i in range(4)], dtype=np.uint64)
        for address in (into.ctypes.data, memory.ctypes.data)
    ]
    here = initiator.prep_xfer_dlist("", rows[0], "DRAM")
    there = initiator.prep_xfer_dlist("target", rows[1], "DRAM")
    indices = np.array([1, 2], dtype=np.int32)
    handle = initiator.make_prepped_xfer("READ", here, indices, there, indices)
    indices[:] = 0
    run(initiator, handle)
    assert np.array_equal(into[32:96], memory[32:96])
    assert not into[:32].any()


def test_lists_that_are_prepared_for_each_use_are_freed(initiator: nixl_agent, target: nixl_agent) -> None:
    into, memory = numbered(NBYTES), numbered(NBYTES, seed=1)
    register(initiator, into)
    register(target, memory)
    initiator.add_remote_agent(target.get_agent_metadata())
    there = initiator.prep_xfer_dlist("target", descs_of(initiator, memory))
    sides = []
    for _ in range(5):
        here = initiator.prep_xfer_dlist("", descs_of(initiator, into))
        sides.append(weakref.ref(initiator.agent._sides[here._handle]))
        handle = initiator.make_prepped_xfer("READ", here, [0], there, [0])
        run(initiator, handle)
        initiator.release_xfer_handle(handle)
        initiator.release_dlist_handle(here)
    gc.collect()
    assert [side() for side in sides] == [None] * 5


def _transfer_of(initiator: nixl_agent, target: nixl_agent, verb: str) -> nixl_xfer_handle:
    into, memory = numbered(NBYTES), numbered(NBYTES, seed=1)
    register(initiator, into)
    register(target, memory)
    initiator.add_remote_agent(target.get_agent_metadata())
    handle = initiator.initialize_xfer(verb, descs_of(initiator, into), descs_of(initiator, memory), "target")
    return handle


def test_a_transfer_may_be_posted_again_without_asking_for_its_end(initiator: nixl_agent, target: nixl_agent) -> None:
    handle = _transfer_of(initiator, target, "READ")
    request = initiator.agent._requests[handle._handle]
    initiator.transfer(handle)
    if request._starting is not None:
        request._starting.result(30)
    assert request._repeated is not None
    request._repeated.latest().wait(30)
    run(initiator, handle)


def test_threads_may_ask_while_another_one_posts_again(initiator: nixl_agent, target: nixl_agent) -> None:
    handle = _transfer_of(initiator, target, "WRITE")
    run(initiator, handle)
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            assert initiator.check_xfer_state(handle) in ("DONE", "PROC")

    with ThreadPoolExecutor(2) as threads:
        asking = [threads.submit(ask) for _ in range(2)]
        try:
            for _ in range(300):
                run(initiator, handle)
        finally:
            is_over.set()
        for each in asking:
            each.result(30)
