"""Agents: their names and backends, and the memory that they register."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nixl_support import Recorded, descs_of, numbered, register, row_of, transfer

from torch_axon.nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
from torch_axon.nixl._bindings import (
    nixl_mem_t,
    nixlBackendError,
    nixlInvalidParamError,
    nixlNotFoundError,
    nixlNotSupportedError,
    nixlRegDList,
    nixlXferDList,
)

Make = Callable[..., nixl_agent]


def test_agents_need_a_name_and_settings_of_the_right_type(make_agent: Make) -> None:
    with pytest.raises(ValueError, match="Agent needs a non-empty name"):
        nixl_agent("")
    with pytest.raises(TypeError, match=r"sync_mode must be a nixl_thread_sync_t \(got 'int'\)"):
        nixl_agent_config(sync_mode=1)  # type: ignore[arg-type]
    config = nixl_agent_config(True, False, 1234, num_threads=4, sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_RW)
    assert (config.enable_pthread, config.enable_listen, config.port) == (True, False, 1234)
    assert (config.num_threads, config.capture_telemetry, config.backends) == (4, False, ["UCX"])
    assert [make_agent("same", config).name for _ in range(2)] == ["same", "same"]


def test_an_agent_has_the_one_backend_that_clients_ask_for(make_agent: Make, log: Recorded) -> None:
    agent = make_agent("agent", nixl_agent_config(backends=[]))
    assert "UCX" in agent.get_plugin_list()
    assert set(agent.get_plugin_mem_types("UCX")) == {"DRAM_SEG", "VRAM_SEG"}
    assert isinstance(agent.get_plugin_params("UCX"), dict)
    assert (agent.get_plugin_mem_types("NONE"), agent.get_plugin_params("NONE")) == ([], {})
    assert (agent.get_backend_mem_types("UCX"), agent.get_backend_params("UCX")) == ([], {})
    assert log.has("WARNING")
    with pytest.raises(nixlNotFoundError):
        agent.create_backend("UVX")
    with pytest.raises(TypeError):
        agent.create_backend("UCX", {"num_threads": 4})  # type: ignore[dict-item]
    assert agent.backends == {}
    agent.create_backend("UCX", {"num_threads": "4", "a key that no backend has": "x"})
    assert set(agent.get_backend_mem_types("UCX")) == {"DRAM_SEG", "VRAM_SEG"}
    with pytest.raises(nixlInvalidParamError):
        agent.create_backend("UCX")
    assert list(agent.backends) == ["UCX"]


def test_unknown_backends_of_the_settings_are_skipped_with_a_warning(make_agent: Make, log: Recorded) -> None:
    agent = make_agent("agent", nixl_agent_config(backends=["POSIX", "UCX"]))
    assert list(agent.backends) == ["UCX"]
    assert log.has("WARNING: Skipping backend registration")
    with pytest.raises(KeyError):
        agent.register_memory([(*row_of(numbered(8)), "")], "DRAM", backends=["POSIX"])
    with pytest.raises(ValueError, match="POSIX"):
        agent.query_memory([(0, 0, 0, "file")], "POSIX", "FILE")
    with pytest.raises(nixlNotSupportedError):
        agent.query_memory([(0, 0, 0, "file")], "UCX", "FILE")
    with pytest.raises(nixlNotSupportedError):
        agent.prep_mem_view(nixlXferDList(nixl_mem_t.DRAM_SEG))


def test_an_agent_without_backends_registers_and_tells_nothing(make_agent: Make) -> None:
    agent, memory = make_agent("agent", nixl_agent_config(backends=[])), numbered(64)
    with pytest.raises(nixlNotFoundError):
        register(agent, memory)
    with pytest.raises(nixlInvalidParamError):
        agent.get_agent_metadata()
    agent.create_backend("UCX")
    register(agent, memory)
    assert len(agent.get_agent_metadata()) > 0


def test_tensors_become_descriptors_by_their_address_and_bytes(initiator: nixl_agent) -> None:
    tensors = [torch.zeros(3, 5, dtype=torch.float64), torch.nn.Parameter(torch.zeros(7)), torch.zeros(0, 2)]
    rows = [(tensor.data_ptr(), nbytes, 0) for tensor, nbytes in zip(tensors, (120, 28, 0), strict=True)]
    descs = initiator.get_xfer_descs(tensors)
    assert descs == nixlXferDList(nixl_mem_t.DRAM_SEG, rows)
    assert initiator.get_xfer_descs(tuple(tensors)) == descs
    assert initiator.get_xfer_descs(tensors[0]) == nixlXferDList(nixl_mem_t.DRAM_SEG, rows[:1])
    of_regs = nixlRegDList(nixl_mem_t.DRAM_SEG, [(*row, "") for row in rows])
    assert initiator.get_reg_descs(tensors) == of_regs
    assert initiator.get_xfer_descs(descs) is descs
    assert initiator.get_reg_descs(of_regs) is of_regs


@pytest.mark.parametrize("name", ["DRAM", "VRAM", "FILE", "BLOCK", "OBJ", "cpu", "cuda"])
def test_kinds_of_memory_have_names(initiator: nixl_agent, name: str) -> None:
    values = {"DRAM": 0, "VRAM": 1, "FILE": 4, "BLOCK": 2, "OBJ": 3, "cpu": 0, "cuda": 1}
    xfer, reg = initiator.get_xfer_descs([(1, 2, 3)], name), initiator.get_reg_descs([(1, 2, 3, "")], name)
    assert xfer is not None
    assert reg is not None
    assert xfer.getType() == reg.getType() == values[name]
    remote = initiator.get_remote_descs([(1, 2, 3, "peer")], name)
    assert remote is not None
    assert remote[0] == (1, 2, 3, "peer")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: (torch.zeros(4, 4).T, None),
        lambda: ([torch.zeros(4), torch.zeros(4, 4)[:, 0]], None),
        lambda: ([torch.zeros(4), torch.zeros(4, device="meta")], None),
        lambda: ([(1, 2, 3)], None),
        lambda: ([(1, 2)], "DRAM"),
        lambda: ([(1, 2, 3, 4, 5)], "DRAM"),
        lambda: (np.zeros((3, 3), dtype=np.uint64), None),
        lambda: (np.zeros((3, 2), dtype=np.uint64), "DRAM"),
        lambda: (np.zeros(3, dtype=np.uint64), "DRAM"),
        lambda: ([[1, 2, 3]], "DRAM"),
        lambda: ("text", "DRAM"),
    ],
)
def test_what_is_not_memory_is_logged_and_none(initiator: nixl_agent, log: Recorded, wrong: Any) -> None:
    descs, kind = wrong()
    assert initiator.get_xfer_descs(descs, kind) is None
    assert log.has("ERROR")
    assert initiator.get_reg_descs(descs, kind) is None
    with pytest.raises(TypeError):
        initiator.register_memory(descs, kind)
    with pytest.raises(TypeError):
        initiator.prep_xfer_dlist("", descs, kind)


def test_lists_of_the_other_class_are_none(initiator: nixl_agent) -> None:
    xfer, reg = nixlXferDList(nixl_mem_t.DRAM_SEG, [(1, 2, 3)]), nixlRegDList(nixl_mem_t.DRAM_SEG, [(1, 2, 3, "")])
    assert initiator.get_xfer_descs(reg) is None
    assert initiator.get_reg_descs(xfer) is None
    assert initiator.get_remote_descs(xfer) is None


@pytest.mark.parametrize(
    ("descs", "kind", "error"),
    [
        ([(1, 2, 3)], "V-RAM", KeyError),
        ([(1, 2, 3)], "dram", KeyError),
        ([(1, 2, 3), (1, 2)], "DRAM", ValueError),
        ([(1, 2, -3)], "DRAM", RuntimeError),
        ([(1, 2.5, 3)], "DRAM", RuntimeError),
        (np.zeros((3, 3), dtype=np.int32), "DRAM", ValueError),
        ([], "DRAM", IndexError),
        (np.zeros((0, 3), dtype=np.uint64), "DRAM", IndexError),
        (torch.zeros(0), None, IndexError),
        (torch.tensor(1.0), None, IndexError),
        (None, "DRAM", TypeError),
        (((1, 2, 3),), "DRAM", TypeError),
    ],
)
def test_wrong_descriptors_are_refused(initiator: nixl_agent, descs: Any, kind: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        initiator.get_xfer_descs(descs, kind)


def test_an_unknown_kind_is_refused_before_the_elements(initiator: nixl_agent) -> None:
    with pytest.raises(KeyError):
        initiator.get_reg_descs([(1, 2, 3, 4)], "V-RAM")


def test_memory_is_deregistered_as_often_as_it_was_registered(initiator: nixl_agent) -> None:
    memory = numbered(256)
    descs = register(initiator, memory)
    assert initiator.register_memory(descs, backends=["UCX"]) is descs
    inner = register(initiator, memory[64:128])  # overlaps
    initiator.deregister_memory(descs)
    initiator.prep_xfer_dlist("", descs.trim())
    rebuilt = initiator.get_reg_descs([(*row_of(memory), "another text")], "DRAM")
    assert rebuilt is not None
    initiator.deregister_memory(rebuilt, backends=["UCX"])
    with pytest.raises(nixlNotFoundError):
        initiator.deregister_memory(descs)
    with pytest.raises(nixlNotFoundError):
        initiator.prep_xfer_dlist("", descs.trim())
    initiator.prep_xfer_dlist("", inner.trim())
    initiator.register_memory(descs)
    initiator.deregister_memory(descs)


def test_only_exactly_what_was_registered_is_deregistered(initiator: nixl_agent) -> None:
    memory = numbered(256)
    descs = register(initiator, memory)
    address, nbytes, _ = row_of(memory)
    for other in [(address, nbytes - 1, 0), (address + 1, nbytes - 1, 0), (address, nbytes, 1)]:
        wrong = initiator.get_reg_descs([(*other, "")], "DRAM")
        assert wrong is not None
        with pytest.raises(nixlNotFoundError):
            initiator.deregister_memory(wrong)
    for not_registered in (None, descs.trim()):
        with pytest.raises(TypeError):
            initiator.deregister_memory(not_registered)  # type: ignore[arg-type]
    initiator.deregister_memory(descs)


def test_memory_that_cannot_be_registered_is_refused_as_a_whole(initiator: nixl_agent) -> None:
    memory = numbered(256)
    for wrong in [(0, 64, 0, ""), (2**64 - 16, 64, 0, "")]:
        with pytest.raises(nixlBackendError):
            initiator.register_memory([(*row_of(memory), ""), wrong], "DRAM")
        with pytest.raises(nixlNotFoundError):
            initiator.prep_xfer_dlist("", descs_of(initiator, memory))
    with pytest.raises(nixlBackendError):
        initiator.register_memory(nixlRegDList(nixl_mem_t.DRAM_SEG))
    with pytest.raises(nixlNotFoundError):
        initiator.register_memory([(*row_of(memory), "")], "FILE")
    initiator.register_memory([(memory.ctypes.data, 0, 0, "")], "DRAM")  # no bytes at all are accepted


def test_registered_tensors_live_until_they_are_deregistered(initiator: nixl_agent, target: nixl_agent) -> None:
    source, into = numbered(4096, seed=1), numbered(4096, seed=2)
    tensor = torch.from_numpy(source.copy())
    life = weakref.ref(tensor)
    descs = target.register_memory(tensor)
    wanted = pickled = target.get_serialized_descs(descs.trim())
    del tensor
    rows = [descs[0]]
    del descs
    gc.collect()
    assert life() is not None
    register(initiator, into)
    initiator.add_remote_agent(target.get_agent_metadata())
    remote = initiator.deserialize_descs(pickled)
    assert wanted == pickled
    assert isinstance(remote, nixlXferDList)
    handle = initiator.initialize_xfer("READ", descs_of(initiator, into), remote, "target")
    assert initiator.transfer(handle) in ("DONE", "PROC")
    initiator.release_xfer_handle(handle)
    again = target.get_reg_descs(rows, "DRAM")
    assert again is not None
    target.deregister_memory(again)
    gc.collect()
    assert life() is None


def test_an_agent_ends_with_its_last_reference(make_agent: Make) -> None:
    initiator, target, source = make_agent("initiator"), nixl_agent("target"), numbered(64, seed=1)
    into = np.zeros(64, dtype=np.uint8)
    register(initiator, into)
    register(target, source)
    initiator.add_remote_agent(target.get_agent_metadata())
    transfer(initiator, "READ", into, source, "target")
    kept = target.prep_xfer_dlist("", descs_of(target, source))
    life = weakref.ref(target.agent)
    del target
    gc.collect()
    assert life() is not None  # by its handle
    transfer(initiator, "READ", into, source, "target")
    kept.release()
    del kept
    gc.collect()
    assert life() is None
