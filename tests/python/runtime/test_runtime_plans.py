"""Plans: one-sided transfers of blocks that are named by their numbers."""

from __future__ import annotations

import gc
import multiprocessing
import random
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch

from torch_axon.runtime import AccessDenied, Blocks, BlockTable, Peer, Remote, Runtime

DEADLINE_S = 30.0
NBYTES = 4096
COUNT = 600
STRIDE = NBYTES + 64


def _own(pipe: Connection) -> None:
    memory = np.arange(COUNT * STRIDE, dtype=np.uint64).astype(np.uint8)
    with Runtime("owner") as runtime:
        region = runtime.expose([memory[: 100 * STRIDE], memory[100 * STRIDE :]], "rw", name="cache")
        pipe.send((runtime.address, region.handle()))
        while pipe.recv():
            pipe.send((memory, [tag for _, tag in runtime.notifications()]))


class Owner:
    """A process that owns the blocks."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_own, args=(there,))
        self._process.start()
        self.address, self.handle = self._pipe.recv()

    def memory(self) -> tuple[Any, list[bytes]]:
        self._pipe.send(True)
        memory, tags = self._pipe.recv()
        return memory, tags

    def close(self) -> None:
        self._pipe.send(False)
        self._process.join(DEADLINE_S)
        assert self._process.exitcode == 0


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.close()


@pytest.fixture(scope="module")
def opened(owner: Owner) -> Iterator[tuple[Peer, Remote]]:
    with Runtime("initiator") as runtime:
        peer = runtime.connect(owner.address)
        yield peer, peer.open(owner.handle)


def _shuffled(count: int, seed: int) -> list[int]:
    ids = list(range(count))
    random.Random(seed).shuffle(ids)
    return ids


def _blocks_of(memory: Any) -> Any:
    return memory[: COUNT * STRIDE].reshape(COUNT, STRIDE)[:, :NBYTES]


def test_blocks_are_read_and_written_by_their_numbers(owner: Owner, opened: tuple[Peer, Remote]) -> None:
    peer, remote = opened
    before, _ = owner.memory()
    into = [torch.zeros(200, NBYTES, dtype=torch.uint8), np.zeros((400, NBYTES), dtype=np.uint8)]
    there = Blocks(remote, NBYTES, stride=STRIDE)
    plan = peer.plan("read", Blocks(into, NBYTES), there)
    here_ids, there_ids = np.array(_shuffled(COUNT, 1), dtype=np.int32), torch.tensor(_shuffled(COUNT, 2)).int()
    transfer = plan.post(here_ids, there_ids)
    transfer.result(DEADLINE_S)
    assert (transfer.stats().nbytes, transfer.stats().blocks) == (COUNT * NBYTES, COUNT)
    here = np.concatenate([np.asarray(part) for part in into])
    assert np.array_equal(here[here_ids], _blocks_of(before)[there_ids.numpy()])

    source = np.random.default_rng(3).integers(0, 256, (50, NBYTES), dtype=np.uint8)
    writing = peer.plan("write", Blocks(source, NBYTES), there)
    targets = _shuffled(COUNT, 4)[:50]
    writing.post(range(50), targets, notify=b"written").result(DEADLINE_S)
    after, tags = owner.memory()
    assert tags == [b"written"]
    expected = before.copy()
    _blocks_of(expected)[targets] = source
    assert np.array_equal(after, expected)  # also between the blocks
    plan.post([], []).result(DEADLINE_S)


def test_a_plan_keeps_its_memory_until_its_transfers_have_ended(opened: tuple[Peer, Remote]) -> None:
    peer, remote = opened
    plan = peer.plan("read", Blocks(torch.zeros(COUNT, NBYTES, dtype=torch.uint8), NBYTES), Blocks(remote, NBYTES))
    transfers = [plan.post(range(500), range(500)) for _ in range(10)]
    del plan
    gc.collect()
    for transfer in transfers:
        transfer.result(DEADLINE_S)


def test_misuse_of_plans_is_refused_with_names(opened: tuple[Peer, Remote]) -> None:
    peer, remote = opened
    memory = torch.zeros(4, NBYTES, dtype=torch.uint8)
    here, there = Blocks(memory, NBYTES), Blocks(remote, NBYTES, count=10)
    with pytest.raises(ValueError, match="verb is 'put'; allowed: 'read' and 'write'"):
        peer.plan("put", here, there)
    with pytest.raises(TypeError, match="remote is in memory of type Tensor; allowed: Remote"):
        peer.plan("read", here, here)
    with pytest.raises(TypeError, match="local is of type Tensor; allowed: Blocks and BlockTable"):
        peer.plan("read", memory, there)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="local blocks have 4096 bytes, and remote ones 64"):
        peer.plan("read", here, Blocks(remote, 64))
    with pytest.raises(ValueError, match="stride 100; allowed: 1 byte or more, and no overlap"):
        peer.plan("read", here, Blocks(remote, NBYTES, stride=100))
    with pytest.raises(ValueError, match=r"5 local blocks of 4096 bytes.* exceed the memory of 16384 bytes"):
        peer.plan("read", Blocks(memory, NBYTES, count=5), there)
    with pytest.raises(ValueError, match="exceed the memory"):
        peer.plan("read", here, Blocks(remote, NBYTES, stride=1 << 62, count=1 << 62))
    with pytest.raises(ValueError, match="local block 1 crosses the end of part 0"):
        peer.plan("read", Blocks([bytearray(6000), bytearray(6000)], NBYTES), there)
    with pytest.raises(ValueError, match="read-only"):
        peer.plan("read", Blocks(bytes(NBYTES), NBYTES), there)


def test_wrong_numbers_are_refused_at_the_post(opened: tuple[Peer, Remote]) -> None:
    peer, remote = opened
    plan = peer.plan("read", Blocks(bytearray(4 * NBYTES), NBYTES), Blocks(remote, NBYTES, count=10))
    with pytest.raises(ValueError, match="2 local and 1 remote ids"):
        plan.post([0, 1], [0])
    with pytest.raises(ValueError, match=r"local_ids\[1\] is 4; allowed: 0 to 4, exclusive"):
        plan.post([0, 4], [0, 1])
    with pytest.raises(ValueError, match=r"remote_ids\[0\] is -1"):
        plan.post([0], [-1])
    with pytest.raises(TypeError, match="local_ids has elements of format 'l'; allowed: 'i'"):
        plan.post(np.zeros(1, dtype=np.int64), [0])
    with pytest.raises(TypeError, match=r"remote_ids is a tensor of torch.int64"):
        plan.post([0], torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="number beyond 32 bits"):
        plan.post([1 << 40], [0])


def test_a_plan_of_a_closed_region_is_denied() -> None:
    with Runtime("itself") as runtime:
        peer = runtime.connect(runtime.address)
        region = runtime.expose(np.zeros((8, NBYTES), dtype=np.uint8))
        into = np.zeros((8, NBYTES), dtype=np.uint8)
        plan = peer.plan("read", Blocks(into, NBYTES), Blocks(peer.open(region.handle()), NBYTES))
        plan.post([1, 2], [3, 4]).result(DEADLINE_S)
        assert region.close(DEADLINE_S)
        with pytest.raises(AccessDenied, match="closed"):
            plan.post([1], [3]).result(DEADLINE_S)


def test_a_table_names_blocks_of_any_length_in_several_memories() -> None:
    generator = np.random.default_rng(5)
    here = [torch.zeros(300, dtype=torch.uint8), np.zeros(5000, dtype=np.uint8)]
    there = [generator.integers(0, 256, size, dtype=np.uint8) for size in (4000, 100, 7)]
    with Runtime("itself") as runtime:
        peer = runtime.connect(runtime.address)
        remotes = [peer.open(runtime.expose(memory).handle()) for memory in there]
        remotes[0] = remotes[0][1000:]
        local = BlockTable(here, [(1, 4990, 10), (0, 0, 300), (1, 0, 7), (1, 7, 0)])
        remote = BlockTable(remotes, np.array([(2, 0, 7), (0, 5, 300), (1, 100, 0), (1, 90, 10)], dtype=np.uint64))
        transfer = peer.plan("read", local, remote).post([2, 1, 0, 3], [0, 1, 3, 2])
        transfer.result(DEADLINE_S)
        assert transfer.stats().nbytes == 317
    assert np.array_equal(here[0].numpy(), there[0][1005:1305])
    assert np.array_equal(here[1][4990:], there[1][90:])
    assert np.array_equal(here[1][:7], there[2])
    assert not here[1][7:4990].any()


def test_misuse_of_tables_is_refused_with_names(opened: tuple[Peer, Remote]) -> None:
    peer, remote = opened
    there = BlockTable([remote], [(0, 0, 8), (0, 8, 16)])
    memory = bytearray(64)
    with pytest.raises(ValueError, match=r"table has shape \[2\]; allowed: \[n, 3\]"):
        peer.plan("read", BlockTable([memory], [1, 2]), there)
    with pytest.raises(TypeError, match=r"table is of torch.float32; allowed: integers"):
        peer.plan("read", BlockTable([memory], [(0.0, 1.0, 2.0)]), there)
    with pytest.raises(ValueError, match="local block 0 is in memory 1; allowed: 0 to 1, exclusive"):
        peer.plan("read", BlockTable([memory], [(1, 0, 8)]), there)
    with pytest.raises(ValueError, match="local block 0, of 65 bytes at offset 0, exceeds memory 0 of 64 bytes"):
        peer.plan("read", BlockTable([memory], [(0, 0, 65)]), there)
    with pytest.raises(TypeError, match="remote is in memory of type bytearray; allowed: Remote"):
        peer.plan("read", there, BlockTable([memory], [(0, 0, 8)]))
    plan = peer.plan("read", BlockTable([memory], [(0, 0, 8)]), there)
    with pytest.raises(ValueError, match="pair 1 is a local block of 8 bytes and a remote one of 16"):
        plan.post([0, 0], [0, 1])


def test_neighbouring_blocks_move_as_one(owner: Owner, opened: tuple[Peer, Remote]) -> None:
    peer, remote = opened
    into = np.zeros(8 * NBYTES, dtype=np.uint8)
    plan = peer.plan("read", Blocks(into, NBYTES), Blocks(remote, NBYTES))
    transfer = plan.post(range(8), [20, 21, 22, 23, 30, 31, 32, 34])
    transfer.result(DEADLINE_S)
    assert (transfer.stats().nbytes, transfer.stats().blocks) == (8 * NBYTES, 3)
    before, _ = owner.memory()
    assert np.array_equal(into[: 4 * NBYTES], before[20 * NBYTES : 24 * NBYTES])
    assert np.array_equal(into[7 * NBYTES :], before[34 * NBYTES : 35 * NBYTES])


def test_a_region_is_local_memory_too(owner: Owner, opened: tuple[Peer, Remote]) -> None:
    peer, remote = opened
    runtime = peer._runtime
    parts = [np.zeros(NBYTES, dtype=np.uint8), torch.zeros(2 * NBYTES, dtype=torch.uint8)]
    region = runtime.expose(parts, name="destination")
    plan = peer.plan("read", Blocks(region, NBYTES), Blocks(remote, NBYTES))
    plan.post([0, 2], [5, 6]).result(DEADLINE_S)
    before, _ = owner.memory()
    assert np.array_equal(parts[0], before[5 * NBYTES : 6 * NBYTES])
    assert np.array_equal(parts[1][NBYTES:].numpy(), before[6 * NBYTES : 7 * NBYTES])
    with Runtime("another") as another, pytest.raises(ValueError, match="of another runtime; allowed: regions of"):
        peer.plan("read", Blocks(another.expose(bytearray(NBYTES)), NBYTES), Blocks(remote, NBYTES))
    assert region.close(DEADLINE_S)
    with pytest.raises(AccessDenied, match="the region 'destination' is closed"):
        plan.post([0], [0])
