"""Prepared sides: blocks that are named by their numbers, strided descriptors, and posts on several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from nixl_support import Memory, descs_of, numbered, received, register, row_of, run

from support.waiting import DEADLINE_S, until
from torch_axon.nixl._api import nixl_agent
from torch_axon.nixl._bindings import nixl_mem_t, nixlInvalidParamError, nixlNotFoundError, nixlXferDList

COUNT, NBYTES, STRIDE = 24, 64, 96


def strided(memory: Memory, first: int = 0, count: int = COUNT) -> npt.NDArray[np.uint64]:
    """Returns one row of a strided list: blocks of an array."""
    return np.array([[memory.ctypes.data + first * STRIDE, NBYTES, 0, STRIDE, count]], dtype=np.uint64)


def blocks_of(memory: Memory) -> Memory:
    return memory.reshape(COUNT, STRIDE)[:, :NBYTES]


class Pair:
    """Two agents with prepared blocks; the first one knows the second one."""

    def __init__(self, initiator: nixl_agent, target: nixl_agent) -> None:
        self.here, self.there = initiator, target
        self.local, self.remote = numbered(COUNT * STRIDE, seed=1), numbered(COUNT * STRIDE, seed=2)
        register(initiator, self.local)
        register(target, self.remote)
        initiator.add_remote_agent(target.get_agent_metadata())
        self.local_side = initiator.prep_xfer_dlist("NIXL_INIT_AGENT", strided(self.local), "DRAM")
        self.remote_side = initiator.prep_xfer_dlist("target", strided(self.remote), "DRAM")

    def handle(self, here: Any, there: Any, operation: str = "READ", message: bytes | str = b"") -> Any:
        return self.here.make_prepped_xfer(operation, self.local_side, here, self.remote_side, there, message)


@pytest.fixture
def pair(initiator: nixl_agent, target: nixl_agent) -> Pair:
    return Pair(initiator, target)


def test_blocks_are_read_and_written_by_their_numbers(pair: Pair) -> None:
    here, there = [5, 0, 23, 7], [1, 2, 3, 0]
    expected = pair.local.copy()
    blocks_of(expected)[here] = blocks_of(pair.remote)[there]
    run(pair.here, pair.handle(here, there))
    assert np.array_equal(pair.local, expected)  # also between the blocks
    expected = pair.remote.copy()
    blocks_of(expected)[[10, 11]] = blocks_of(pair.local)[[3, 4]]
    run(pair.here, pair.handle([3, 4], [10, 11], "WRITE"))
    assert np.array_equal(pair.remote, expected)


def test_strided_rows_are_numbered_one_after_the_other(pair: Pair) -> None:
    rows = np.concatenate([strided(pair.remote, 20, 3), strided(pair.remote, 4, 1), strided(pair.remote, 0, 2)])
    order = [20, 21, 22, 4, 0, 1]
    for array in (rows, rows.astype(np.int64)):
        side = pair.here.prep_xfer_dlist(b"target", array, mem_type="cpu")
        pair.local[:] = 0
        handle = pair.here.make_prepped_xfer("READ", pair.local_side, range(6), side, range(6))
        run(pair.here, handle)
        assert np.array_equal(blocks_of(pair.local)[:6], blocks_of(pair.remote)[order])
        with pytest.raises(nixlInvalidParamError):
            pair.here.make_prepped_xfer("READ", pair.local_side, [6], side, [6])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_indices_are_of_any_type_of_integers(pair: Pair, dtype: str) -> None:
    here, there = np.array([3, 1, 2], dtype=dtype), np.array([9, 0, 8, 0, 7, 0], dtype=dtype)[::2]
    run(pair.here, pair.handle(here, there))
    assert np.array_equal(blocks_of(pair.local)[[3, 1, 2]], blocks_of(pair.remote)[[9, 8, 7]])


def test_indices_are_lists_tuples_and_ranges_too(pair: Pair) -> None:
    several: list[tuple[Any, Any]] = [
        ([0, 1], (2, 3)),
        (range(2), [np.int64(2), np.int32(3)]),
        ((0, 1), np.array([2, 3])),
    ]
    for here, there in several:
        pair.local[:] = 0
        run(pair.here, pair.handle(here, there))
        assert np.array_equal(blocks_of(pair.local)[:2], blocks_of(pair.remote)[2:4])
    run(pair.here, pair.handle([0, 1], [2, 2]))  # a block may be read twice
    assert np.array_equal(blocks_of(pair.local)[1], blocks_of(pair.remote)[2])


def test_indices_that_name_no_pairs_are_refused(pair: Pair) -> None:
    wrong: list[tuple[Any, Any]] = [
        ([0, 1], [0]),
        ([], []),
        ([COUNT], [0]),
        ([0], [COUNT]),
        ([-1], [0]),
        ([0], [-1]),
        ([0], np.array([2**64 - 1], dtype=np.uint64)),
        ([2**32], [0]),
    ]
    for here, there in wrong:
        with pytest.raises(nixlInvalidParamError):
            pair.handle(here, there)
    for not_flat in (np.zeros((1, 1), dtype=np.int64), np.array(0)):
        with pytest.raises(ValueError, match="indices numpy array must be 1D"):
            pair.handle(not_flat, [0])


def test_pairs_of_different_lengths_are_refused(pair: Pair) -> None:
    rows = [(pair.remote.ctypes.data, nbytes, 0) for nbytes in (NBYTES, NBYTES + 1, 0)]
    side = pair.here.prep_xfer_dlist("target", rows, "DRAM")
    run(pair.here, pair.here.make_prepped_xfer("READ", pair.local_side, [0], side, [0]))
    for index in (1, 2):
        with pytest.raises(nixlInvalidParamError):
            pair.here.make_prepped_xfer("READ", pair.local_side, [0, 0], side, [0, index])


def test_sides_that_are_exchanged_or_released_are_refused(pair: Pair) -> None:
    for here, there in (
        (pair.remote_side, pair.local_side),
        (pair.local_side, pair.local_side),
        (pair.remote_side, pair.remote_side),
    ):
        with pytest.raises(nixlInvalidParamError):
            pair.here.make_prepped_xfer("READ", here, [0], there, [0])
    with pytest.raises(KeyError):
        pair.here.make_prepped_xfer("RD", 1, [0], 2, [0])  # type: ignore[arg-type]
    handle = pair.handle([0], [1])
    for side in (pair.local_side, pair.remote_side):
        for _ in range(2):
            pair.here.release_dlist_handle(side)
        side.release()
        assert "released=True" in repr(side)
    with pytest.raises(nixlInvalidParamError):
        pair.handle([0], [1])
    for _ in range(2):
        run(pair.here, handle)  # goes on without the released sides
    assert np.array_equal(blocks_of(pair.local)[0], blocks_of(pair.remote)[1])


def test_sides_are_prepared_from_all_that_makes_descriptors(pair: Pair) -> None:
    row = row_of(pair.remote[:NBYTES])
    array = np.array([row], dtype=np.uint64)
    for descs, kind in (([row], "DRAM"), (array, "cpu"), (descs_of(pair.here, pair.remote[:NBYTES]), None)):
        side = pair.here.prep_xfer_dlist("target", descs, kind, backends=["UCX"])
        pair.local[:] = 0
        run(pair.here, pair.here.make_prepped_xfer("READ", pair.local_side, [0], side, [0]))
        assert np.array_equal(pair.local[:NBYTES], pair.remote[:NBYTES])


def test_strided_lists_of_another_form_are_refused(pair: Pair) -> None:
    right = strided(pair.remote)
    with pytest.raises(ValueError, match="Please specify a mem type for strided descriptors"):
        pair.here.prep_xfer_dlist("target", right)
    for wrong in (right.astype(np.int32), right.astype(np.float64), np.asfortranarray(np.repeat(right, 2, axis=0))):
        with pytest.raises(ValueError, match="descs must be a Nx5 numpy array of uint64 or int64"):
            pair.here.prep_xfer_dlist("target", wrong, "DRAM")
    with pytest.raises(KeyError):
        pair.here.prep_xfer_dlist("target", right, "dram")
    with pytest.raises(nixlNotFoundError):
        pair.here.prep_xfer_dlist("target", right, "VRAM")
    with pytest.raises(nixlNotFoundError):
        pair.here.prep_xfer_dlist("an unknown agent", right, "DRAM")


@pytest.mark.parametrize(
    ("column", "value"),
    [(0, 1 << 40), (1, NBYTES + STRIDE), (2, 1), (3, NBYTES - 1), (3, 0), (3, STRIDE + 2), (4, 0), (4, COUNT + 1)],
)
def test_strided_blocks_outside_of_registered_memory_are_refused(pair: Pair, column: int, value: int) -> None:
    wrong = strided(pair.remote)
    wrong[0, column] = value
    with pytest.raises(nixlNotFoundError):
        pair.here.prep_xfer_dlist("target", wrong, "DRAM")
    with pytest.raises(nixlNotFoundError):
        pair.here.prep_xfer_dlist("target", np.concatenate([strided(pair.remote), wrong]), "DRAM")
    with pytest.raises(nixlNotFoundError):
        pair.here.prep_xfer_dlist("target", np.empty((0, 5), dtype=np.uint64), "DRAM")


def test_strides_that_exceed_64_bits_name_no_memory_outside(pair: Pair) -> None:
    address = pair.remote.ctypes.data
    for stride in (2**63, 2**64 - NBYTES, 2**64 - address):
        wrong = np.array([[address + NBYTES, NBYTES, 0, stride, 3]], dtype=np.uint64)
        with pytest.raises(nixlNotFoundError):
            pair.here.prep_xfer_dlist("target", wrong, "DRAM")


def test_neighbours_that_move_as_one_count_as_one(initiator: nixl_agent, target: nixl_agent) -> None:
    local, remote = numbered(1024, seed=1), numbered(1024, seed=2)
    register(initiator, local)
    register(target, remote)
    initiator.add_remote_agent(target.get_agent_metadata())
    here, there = (
        initiator.prep_xfer_dlist(name, [(memory.ctypes.data + 64 * i, 64, 0) for i in range(16)], "DRAM")
        for name, memory in (("", local), ("target", remote))
    )
    for ids, count in (([0, 1, 2, 3], 1), ([3, 2, 1], 3), ([0, 1, 5, 6], 2)):
        handle = initiator.make_prepped_xfer("READ", here, ids, there, ids)
        run(initiator, handle)
        telemetry = initiator.get_xfer_telemetry(handle)
        assert (telemetry.descCount, telemetry.totalBytes) == (count, 64 * len(ids))
        for i in ids:
            assert np.array_equal(local[64 * i : 64 * i + 64], remote[64 * i : 64 * i + 64])


def test_sides_of_a_removed_agent_stay_invalid(pair: Pair) -> None:
    done, fresh = pair.handle([0], [0]), pair.handle([1], [1])
    run(pair.here, done)
    pair.here.remove_remote_agent("target")
    for _ in range(2):
        assert pair.here.check_xfer_state(done) == "DONE"
        for handle in (done, fresh):
            with pytest.raises(nixlNotFoundError):
                pair.here.transfer(handle)
        with pytest.raises(nixlNotFoundError):
            pair.here.estimate_xfer_cost(fresh)
        with pytest.raises(nixlNotFoundError):
            pair.handle([0], [0])
        pair.here.add_remote_agent(pair.there.get_agent_metadata())
        done = pair.here.make_prepped_xfer(
            "READ", pair.local_side, [0], pair.here.prep_xfer_dlist("target", strided(pair.remote), "DRAM"), [0]
        )
        run(pair.here, done)
        pair.here.remove_remote_agent(b"target")


def test_four_threads_post_prepared_transfers_of_one_agent(pair: Pair) -> None:
    rounds = 50

    def post(thread: int) -> None:
        own = range(6 * thread, 6 * thread + 6)
        for i in range(rounds):
            handle = pair.handle(own, own, message=f"{thread}:{i}")
            run(pair.here, handle)
            handle.release()

    with ThreadPoolExecutor(4) as pool:
        posted = [pool.submit(post, thread) for thread in range(4)]
        messages = received(pair.there, "initiator", 4 * rounds)
        for each in posted:
            each.result(DEADLINE_S)
    for number in range(4):
        mine = [message for message in messages if message.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, i) for i in range(rounds)]
    assert np.array_equal(blocks_of(pair.local), blocks_of(pair.remote))


def test_threads_add_and_remove_agents_while_others_transfer(pair: Pair, make_agent: Any) -> None:
    others = [make_agent(f"other {i}") for i in range(2)]
    memories = [numbered(NBYTES, seed=10 + i) for i in range(2)]
    for other, memory in zip(others, memories, strict=True):
        register(other, memory)

    def shake_hands(i: int) -> None:
        into = numbered(NBYTES, seed=20 + i)
        register(pair.here, into)
        for _ in range(20):
            name = pair.here.add_remote_agent(others[i].get_agent_metadata())
            there = pair.here.prep_xfer_dlist(name, [row_of(memories[i])], "DRAM")
            here = pair.here.prep_xfer_dlist("", [row_of(into)], "DRAM")
            into[:] = 0
            run(pair.here, pair.here.make_prepped_xfer("READ", here, [0], there, [0]))
            assert np.array_equal(into, memories[i])
            pair.here.remove_remote_agent(name)

    def transfer_meanwhile() -> bool:
        run(pair.here, pair.handle([0], [1]))
        return all(each.done() for each in shaken)

    with ThreadPoolExecutor(2) as pool:
        shaken = [pool.submit(shake_hands, i) for i in range(2)]
        until(transfer_meanwhile)
        for each in shaken:
            each.result()


def test_the_bindings_prepare_local_sides_without_a_name(pair: Pair) -> None:
    row = row_of(pair.local[:NBYTES])
    here = pair.here.agent.prepXferDlist(nixlXferDList(nixl_mem_t.DRAM_SEG, [row]), backend=[1])
    there = pair.here.agent.prepXferDlist("target", nixl_mem_t.DRAM_SEG, strided(pair.remote))
    request = pair.here.agent.makeXferReq(0, here, [0], there, [3])  # type: ignore[arg-type]
    assert request != 0
    pair.here.agent.releasedDlistH(here)
    pair.here.agent.releasedDlistH(there)
    pair.here.agent.releaseXferReq(request)
