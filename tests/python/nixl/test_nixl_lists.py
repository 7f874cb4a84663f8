"""The lists of descriptors: what they accept and refuse, how they change, and how they travel as bytes."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torch_axon.nixl._api import nixl_agent, nixl_agent_config
from torch_axon.nixl._bindings import (
    nixl_mem_t,
    nixlMismatchError,
    nixlNotFoundError,
    nixlRegDList,
    nixlRemoteDList,
    nixlXferDList,
)

DRAM, VRAM = nixl_mem_t.DRAM_SEG, nixl_mem_t.VRAM_SEG
# Each class, the last element that its tuples have beyond the first three, and how that is given back.
KINDS = [(nixlXferDList, (), ()), (nixlRegDList, ("é",), ("é".encode(),)), (nixlRemoteDList, ("peer",), ("peer",))]
IDS = ["xfer", "reg", "remote"]
ALL = pytest.mark.parametrize(("kind", "extra", "read"), KINDS, ids=IDS)


@pytest.fixture
def agent(make_agent: Callable[..., nixl_agent]) -> nixl_agent:
    return make_agent("lists", nixl_agent_config(backends=[]))


def filled(kind: Any, extra: tuple[Any, ...], count: int = 3) -> Any:
    return kind(DRAM, [(100 * i, i, 0, *extra) for i in range(count)])


def contents(descs: Any) -> list[tuple[Any, ...]]:
    return [descs[i] for i in range(descs.descCount())]


@ALL
def test_lists_are_made_of_tuples_and_give_them_back(kind: Any, extra: tuple[Any, ...], read: tuple[Any, ...]) -> None:
    rows = [(2**64 - 1, 0, 7), (np.uint64(5), np.int32(6), np.int64(0))]
    descs = kind(VRAM, [(*row, *extra) for row in rows])
    assert contents(descs) == [(2**64 - 1, 0, 7, *read), (5, 6, 0, *read)]
    assert all(type(value) is int for value in descs[1][:3])
    assert descs.getType() is VRAM
    assert kind(type=VRAM, descs=[(1, 2, 3, *extra)])[0][:3] == (1, 2, 3)


@ALL
def test_lists_may_be_empty_and_are_true_all_the_same(kind: Any, extra: tuple[Any, ...], read: tuple[Any, ...]) -> None:
    for empty in (kind(DRAM), kind(DRAM, []), kind(type=DRAM, init_size=0)):
        assert (empty.descCount(), empty.isEmpty(), bool(empty)) == (0, True, True)
        with pytest.raises(TypeError):
            len(empty)
        with pytest.raises(TypeError):
            iter(empty)
        with pytest.raises(TypeError, match="unhashable"):
            hash(empty)
        with pytest.raises(IndexError):
            empty[0]


@pytest.mark.parametrize("kind", [nixlXferDList, nixlRegDList])
@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
def test_lists_are_made_of_arrays_by_copy(kind: Any, dtype: Any) -> None:
    array = np.array([[1, 2, 3], [4, 5, 6]], dtype=dtype)
    descs = kind(DRAM, array)
    array[:] = 0
    meta = () if kind is nixlXferDList else (b"",)
    assert contents(descs) == [(1, 2, 3, *meta), (4, 5, 6, *meta)]
    assert kind(DRAM, np.empty((0, 3), dtype=dtype)).isEmpty()


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((2, 3), dtype=np.int32), "descs must be a Nx3 numpy array of uint64 or int64"),
        (np.zeros((2, 3), dtype=np.float64), "descs must be a Nx3 numpy array of uint64 or int64"),
        (np.zeros((2, 4), dtype=np.uint64), "descs must be a Nx3 numpy array"),
        (np.zeros(3, dtype=np.uint64), "descs must be a Nx3 numpy array"),
        (np.zeros((3, 2), dtype=np.uint64).T, "descs must be a C-contiguous numpy array"),
        (np.zeros((4, 3), dtype=np.uint64)[::2], "descs must be a C-contiguous numpy array"),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(array: Any, text: str) -> None:
    for kind in (nixlXferDList, nixlRegDList):
        with pytest.raises(ValueError, match=text):
            kind(DRAM, array)


@ALL
def test_wrong_arguments_are_refused(kind: Any, extra: tuple[Any, ...], read: tuple[Any, ...]) -> None:
    arity = 3 + len(extra)
    with pytest.raises(TypeError):
        kind(0, [])
    with pytest.raises(TypeError):
        kind(DRAM, ((1, 2, 3, *extra),))
    with pytest.raises(TypeError, match="Each descriptor must be a tuple when provided as a list"):
        kind(DRAM, [(1, 2, 3, *extra), [1, 2, 3, *extra]])
    for wrong in [(1, 2), (1, 2, 3, *extra, "more")]:
        with pytest.raises(ValueError, match=f"Each descriptor tuple must have exactly {arity} elements"):
            kind(DRAM, [(1, 2, 3, *extra), wrong])


@ALL
@pytest.mark.parametrize("wrong", [-1, 1.0, 2**64, None, "1", np.float32(1), np.int64(-1)], ids=repr)
def test_what_is_not_an_integer_from_0_to_64_bits_is_refused(
    kind: Any, extra: tuple[Any, ...], read: tuple[Any, ...], wrong: Any
) -> None:
    descs = filled(kind, extra)
    before = contents(descs)
    for position in range(3):
        row = [1, 2, 3]
        row[position] = wrong
        with pytest.raises(RuntimeError):
            kind(DRAM, [(1, 2, 3, *extra), (*row, *extra)])
        with pytest.raises(RuntimeError):
            descs.addDesc((*row, *extra))
        with pytest.raises(RuntimeError):
            descs[1] = (*row, *extra)
    assert contents(descs) == before


def test_texts_of_registrations_are_bytes_and_nothing_else() -> None:
    descs = nixlRegDList(DRAM, [(1, 2, 3, "text"), (1, 2, 3, b"\0\xff")])
    assert [desc[3] for desc in contents(descs)] == [b"text", b"\0\xff"]
    with pytest.raises(RuntimeError):
        nixlRegDList(DRAM, [(1, 2, 3, 4)])
    with pytest.raises(RuntimeError):
        descs.addDesc((1, 2, 3, None))
    assert descs.descCount() == 2


@ALL
def test_descriptors_are_added_replaced_and_removed(kind: Any, extra: tuple[Any, ...], read: tuple[Any, ...]) -> None:
    descs = kind(DRAM)
    assert descs.addDesc((1, 2, 3, *extra)) is None
    assert descs.append((4, 5, 6, *extra)) is None
    descs.addDesc((7, 8, 9, *extra, "ignored"))
    descs[1] = (0, 0, 0, *extra)
    assert contents(descs) == [(1, 2, 3, *read), (0, 0, 0, *read), (7, 8, 9, *read)]
    assert descs.remDesc(0) is None
    assert contents(descs) == [(0, 0, 0, *read), (7, 8, 9, *read)]
    descs.remDesc(1)
    descs.addDesc((4, 4, 4, *extra))
    assert contents(descs) == [(0, 0, 0, *read), (4, 4, 4, *read)]
    for index in (2, -1, 10**6):
        with pytest.raises(IndexError, match="Index is out of range"):
            descs.remDesc(index)
    with pytest.raises(IndexError):
        descs.addDesc((1, 2))
    with pytest.raises(TypeError):
        descs.addDesc([1, 2, 3, *extra])
    with pytest.raises(IndexError):
        descs[2] = (1, 2, 3, *extra)
    descs.clear()
    assert descs.isEmpty()
    descs.addDesc((1, 1, 1, *extra))
    assert contents(descs) == [(1, 1, 1, *read)]


@ALL
def test_a_thousand_descriptors_are_added_one_by_one(kind: Any, extra: tuple[Any, ...], read: tuple[Any, ...]) -> None:
    descs = kind(DRAM)
    for i in range(1000):
        descs.addDesc((i, 2 * i, 3 * i, *extra))
    assert descs.descCount() == 1000
    assert contents(descs) == [(i, 2 * i, 3 * i, *read) for i in range(1000)]


def test_a_list_of_an_initial_size_has_that_many_descriptors_to_replace() -> None:
    descs = nixlXferDList(DRAM, init_size=20)
    assert descs.descCount() == 20
    descs[19] = (1, 2, 3)
    assert descs[19] == (1, 2, 3)
    assert nixlRegDList(DRAM, 2)[1] == (0, 0, 0, b"")


@pytest.mark.parametrize(("kind", "extra"), [(nixlXferDList, ()), (nixlRegDList, ("meta",))], ids=["xfer", "reg"])
def test_descriptors_are_found_by_address_length_and_device(kind: Any, extra: tuple[Any, ...]) -> None:
    descs = kind(DRAM, [(1, 2, 3, *extra), (4, 5, 6, *extra), (4, 5, 6, *extra)])
    assert descs.index((4, 5, 6, *extra)) == 1
    if extra:
        assert descs.index((4, 5, 6, "another text")) == 1
    for missing in [(4, 5, 7), (5, 4, 6), (0, 0, 0)]:
        with pytest.raises(nixlNotFoundError):
            descs.index((*missing, *extra))
    with pytest.raises(nixlNotFoundError):
        kind(DRAM).index((1, 2, 3, *extra))
    assert not hasattr(nixlRemoteDList, "index")


def test_a_trimmed_registration_is_a_list_for_transfers() -> None:
    descs = nixlRegDList(VRAM, [(1, 2, 3, "a"), (4, 5, 6, "b")])
    trimmed = descs.trim()
    assert trimmed == nixlXferDList(VRAM, [(1, 2, 3), (4, 5, 6)])
    trimmed[0] = (0, 0, 0)
    assert descs[0] == (1, 2, 3, b"a")
    assert not hasattr(trimmed, "trim")


@ALL
def test_lists_are_equal_by_class_type_and_all_elements(
    kind: Any, extra: tuple[Any, ...], read: tuple[Any, ...]
) -> None:
    descs = filled(kind, extra)
    assert descs == filled(kind, extra)
    assert descs != filled(kind, extra, 2)
    assert descs != kind(VRAM, contents(descs))
    changed = filled(kind, extra)
    changed[2] = (200, 2, 1, *extra)
    assert descs != changed
    grown = filled(kind, extra)
    grown.addDesc((1, 2, 3, *extra))
    grown.remDesc(3)
    assert descs == grown  # its capacity does not count
    if extra:
        assert descs != kind(DRAM, [(100 * i, i, 0, "other") for i in range(3)])
    for other, others, _ in KINDS:
        assert (descs == filled(other, others)) == (other is kind)
    assert descs != contents(descs)
    assert descs != None  # noqa: E711 (clients compare)


@pytest.mark.parametrize(("kind", "extra"), [(nixlXferDList, ()), (nixlRegDList, (b"\0x",))], ids=["xfer", "reg"])
def test_lists_travel_as_bytes(agent: nixl_agent, kind: Any, extra: tuple[Any, ...]) -> None:
    for descs in (filled(kind, extra, 100), kind(VRAM)):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(descs, protocol)) == descs
        data = agent.get_serialized_descs(descs)
        assert isinstance(data, bytes)
        arrived: Any = agent.deserialize_descs(data)
        assert arrived == descs
        assert pickle.loads(data) == descs
        assert copy.copy(descs) == descs
        arrived.addDesc((1, 2, 3, *extra))
        deep = copy.deepcopy(arrived)
        deep[descs.descCount()] = (3, 2, 1, *extra)
        assert arrived[descs.descCount()][:3] == (1, 2, 3)
        assert arrived != descs


def test_lists_of_several_agents_do_not_travel() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(filled(nixlRemoteDList, ("peer",)))


class _RunsACommand:
    """What an attacker would send."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_bytes_that_would_run_code_are_refused_and_do_not_run(agent: nixl_agent, tmp_path: Any) -> None:
    witness = tmp_path / "ran"
    data = pickle.dumps(_RunsACommand(f"touch {witness}"))
    with pytest.raises(nixlMismatchError, match="system"):
        agent.deserialize_descs(data)
    with pytest.raises(nixlMismatchError):
        agent.deserialize_descs(pickle.dumps([filled(nixlXferDList, ()), _RunsACommand(f"touch {witness}")]))
    assert not witness.exists()


@pytest.mark.parametrize("other", [None, 1, b"bytes", [(1, 2, 3)], np.zeros((2, 3))], ids=repr)
def test_pickles_of_anything_else_are_refused(agent: nixl_agent, other: Any) -> None:
    with pytest.raises(nixlMismatchError):
        agent.deserialize_descs(pickle.dumps(other))


def test_bytes_that_are_cut_short_are_refused(agent: nixl_agent) -> None:
    data = agent.get_serialized_descs(filled(nixlRegDList, ("text",)))
    for length in range(len(data)):
        with pytest.raises(nixlMismatchError):
            agent.deserialize_descs(data[:length])


def test_a_list_keeps_the_tensor_of_each_row_and_no_other(agent: nixl_agent) -> None:
    """Whatever changes the list before it is registered."""

    def made() -> tuple[nixlRegDList, list[torch.Tensor]]:
        tensors = [torch.zeros(8 + i) for i in range(3)]
        descs = agent.get_reg_descs(tensors)
        assert isinstance(descs, nixlRegDList)
        return descs, tensors

    def keeps(descs: nixlRegDList, *owners: object) -> bool:
        return all(descs.owner(i) is owner for i, owner in zip(range(descs.descCount()), owners, strict=True))

    descs, (first, second, third) = made()
    descs.remDesc(0)
    assert keeps(descs, second, third)
    descs.addDesc((1, 2, 0, ""))
    assert keeps(descs, second, third, None)
    descs[1] = (*descs[1][:3], "another text")
    descs[0] = (3, 4, 0, "")
    assert keeps(descs, None, third, None)

    descs, (first, *_) = made()
    life = weakref.ref(first)
    row = descs[1]
    del first, _
    descs.clear()
    gc.collect()
    assert life() is None
    descs.addDesc(row)
    assert keeps(descs, None)
    with pytest.raises(IndexError):
        descs.remDesc(1)
    assert keeps(pickle.loads(pickle.dumps(made()[0])), None, None, None)


def test_lists_print_their_descriptors(capsys: pytest.CaptureFixture[str]) -> None:
    nixlXferDList(DRAM, [(11, 22, 33), (44, 55, 66)]).print()
    printed = capsys.readouterr().out
    assert all(str(number) in printed for number in (11, 22, 33, 44, 55, 66))
