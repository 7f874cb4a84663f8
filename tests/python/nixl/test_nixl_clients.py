"""The sequences of calls of the programs that use NIXL, one test for each of them."""

from __future__ import annotations

import asyncio
import pickle
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from nixl_support import Memory, finish, numbered, received

from support.waiting import DEADLINE_S, until
from torch_axon.nixl import _api, _bindings
from torch_axon.nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

Make = Callable[..., nixl_agent]
NUM_BLOCKS, BLOCK_BYTES, NUM_LAYERS = 32, 512, 3
# As of key-value caches: each layer is an own allocation, whose blocks lie one after the other.
CACHE_BYTES = NUM_BLOCKS * BLOCK_BYTES


class Cache:
    """A worker of an inference server: its cache of several layers, and its agent."""

    def __init__(self, agent: nixl_agent, seed: int) -> None:
        self.agent = agent
        self.layers: list[Memory] = [numbered(CACHE_BYTES, seed + layer) for layer in range(NUM_LAYERS)]
        self.bases = [layer.ctypes.data for layer in self.layers]

    def regions(self, text: str = "") -> list[tuple[int, int, int, str]]:
        return [(base, CACHE_BYTES, 0, text) for base in self.bases]

    def strided(self) -> npt.NDArray[np.uint64]:
        rows = [(base, BLOCK_BYTES, 0, BLOCK_BYTES, NUM_BLOCKS) for base in self.bases]
        return np.array(rows, dtype=np.uint64)

    def rows(self, blocks: list[int]) -> npt.NDArray[np.uint64]:
        rows = [(base + block * BLOCK_BYTES, BLOCK_BYTES, 0) for base in self.bases for block in blocks]
        return np.array(rows, dtype=np.uint64)

    def blocks(self, blocks: list[int]) -> list[bytes]:
        parts = [layer.reshape(NUM_BLOCKS, BLOCK_BYTES)[blocks] for layer in self.layers]
        return [part.tobytes() for part in parts]


def numbers_of(blocks: list[int]) -> npt.NDArray[np.int64]:
    """Returns the numbers of these blocks in all layers."""
    return np.concatenate([np.array(blocks) + layer * NUM_BLOCKS for layer in range(NUM_LAYERS)]).astype(np.int64)


class VllmWorker(Cache):
    """A worker that registers its cache once, and shakes hands in a background thread."""

    def __init__(self, make: Make, seed: int) -> None:
        config = nixl_agent_config(num_threads=4, capture_telemetry=True)
        assert config.backends == ["UCX"]
        super().__init__(make(str(uuid.uuid4()), config), seed)
        self.descs = self.agent.get_reg_descs(self.regions(), "DRAM")
        assert self.descs is not None
        self.agent.register_memory(self.descs, backends=["UCX"])
        self.own_side = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self.strided(), mem_type="DRAM")
        self.hello = (self.agent.get_agent_metadata(), self.strided())

    def shake_hands(self, hello: tuple[bytes, npt.NDArray[np.uint64]]) -> tuple[bytes, Any]:
        """Runs on a background thread; the name stays as bytes."""

        def run() -> tuple[bytes, Any]:
            name = self.agent.add_remote_agent(hello[0])
            return name, self.agent.prep_xfer_dlist(name, hello[1], mem_type="DRAM")

        with ThreadPoolExecutor(1) as pool:
            shaken = pool.submit(run)
            self.agent.get_new_notifs()  # the main thread goes on
            return shaken.result(DEADLINE_S)

    def move(self, operation: str, side: Any, here: list[int], there: list[int], message: bytes) -> None:
        numbers = numbers_of(here), numbers_of(there)
        handle = self.agent.make_prepped_xfer(operation, self.own_side, numbers[0], side, numbers[1], notif_msg=message)
        self.agent.transfer(handle)
        finish(self.agent, handle)
        telemetry = self.agent.get_xfer_telemetry(handle)
        assert telemetry.totalBytes == NUM_LAYERS * len(here) * BLOCK_BYTES
        assert telemetry.descCount >= 1
        assert telemetry.xferDuration >= telemetry.postDuration > 0
        self.agent.release_xfer_handle(handle)

    def leave(self, name: Any, side: Any) -> None:
        assert self.agent.check_remote_metadata(name)
        self.agent.release_dlist_handle(side)
        self.agent.remove_remote_agent(name)
        self.agent.release_dlist_handle(self.own_side)
        assert self.descs is not None
        self.agent.deregister_memory(self.descs)


def test_vllm_pulls_blocks_and_sends_heartbeats(make_agent: Make) -> None:
    prefill, decode = VllmWorker(make_agent, 10), VllmWorker(make_agent, 20)
    name, side = decode.shake_hands(prefill.hello)
    assert name == prefill.agent.name.encode()
    decode.move("READ", side, [0, 1, 9], [5, 6, 2], b"request-1:1")
    assert decode.blocks([0, 1, 9]) == prefill.blocks([5, 6, 2])
    decode.agent.send_notif(name, notif_msg=b"HB:request-1")
    messages = received(prefill.agent, decode.agent.name, 2)
    assert [message.decode("utf-8") for message in messages] == ["request-1:1", "HB:request-1"]
    decode.leave(name, side)
    with pytest.raises(_bindings.nixlNotFoundError):
        decode.agent.send_notif(name, notif_msg=b"HB:request-1")


def test_vllm_pushes_blocks_and_registers_again_after_sleep(make_agent: Make) -> None:
    prefill, decode = VllmWorker(make_agent, 10), VllmWorker(make_agent, 20)
    name, side = prefill.shake_hands(decode.hello)
    for i in range(3):
        here, there = [i, i + 1], [20 - i, 30 - i]
        prefill.move("WRITE", side, here, there, b"request-%d:2" % i)
        assert received(decode.agent, prefill.agent.name, 1) == [b"request-%d:2" % i]
        assert decode.blocks(there) == prefill.blocks(here)
    prefill.leave(name, side)
    assert prefill.descs is not None
    prefill.agent.register_memory(prefill.descs, backends=["UCX"])
    prefill.own_side = prefill.agent.prep_xfer_dlist("NIXL_INIT_AGENT", prefill.strided(), mem_type="DRAM")
    name, side = prefill.shake_hands(decode.hello)
    prefill.move("WRITE", side, [7], [8], b"")
    assert decode.blocks([8]) == prefill.blocks([7])


def test_vllm_exchanges_experts_by_tensors(make_agent: Make) -> None:
    tensors = [torch.from_numpy(numbered(1024, seed)) for seed in range(2)]
    agents = [make_agent(f"rank {rank}", nixl_agent_config(capture_telemetry=False)) for rank in range(2)]
    for agent, tensor in zip(agents, tensors, strict=True):
        descs = agent.get_reg_descs([tensor])
        assert descs is not None
        agent.register_memory(descs)
    names = [agents[1 - rank].add_remote_agent(agents[rank].get_agent_metadata()) for rank in range(2)]
    handles, deadline = set(), time.monotonic() + DEADLINE_S
    there = agents[0].get_xfer_descs([(tensors[1].data_ptr() + 256 * i, 256, 0) for i in range(2)], "DRAM")
    here = agents[0].get_xfer_descs([(tensors[0].data_ptr() + 256 * i, 256, 0) for i in range(2)], "DRAM")
    sides = agents[0].prep_xfer_dlist("NIXL_INIT_AGENT", here), agents[0].prep_xfer_dlist(names[1], there)
    ids = np.arange(2, dtype=np.int32)
    handle = agents[0].make_prepped_xfer("READ", sides[0], ids, sides[1], ids)
    assert agents[0].transfer(handle) in ("PROC", "DONE")
    handles.add(handle)
    while handles:
        done = {each for each in handles if agents[0].check_xfer_state(each) == "DONE"}
        for each in done:
            agents[0].release_xfer_handle(each)
        handles -= done
        assert time.monotonic() < deadline
    for side in sides:
        agents[0].release_dlist_handle(side)
    assert torch.equal(tensors[0][:512], tensors[1][:512])
    assert not torch.equal(tensors[0][512:], tensors[1][512:])


def sglang_manager(make: Make, seed: int) -> Cache:
    config = nixl_agent_config(backends=[], num_threads=8, sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
    cache = Cache(make(str(uuid.uuid4()), config), seed)
    assert "UCX" in cache.agent.get_plugin_list()
    cache.agent.create_backend("UCX", {"num_threads": "8", "device_list": "mlx5_0, mlx5_1"})
    descs = cache.agent.register_memory(cache.regions(), "DRAM")
    assert descs
    return cache


def test_sglang_writes_chunks_without_notifications(make_agent: Make) -> None:
    prefill, decode = sglang_manager(make_agent, 10), sglang_manager(make_agent, 20)
    agent, peer = prefill.agent, decode.agent.name
    peer.encode("ascii")
    agent.add_remote_agent(decode.agent.get_agent_metadata())

    def send(here: list[int], there: list[int]) -> None:
        """Runs on a thread of the pool; the handle is never released explicitly."""
        source = agent.get_xfer_descs(prefill.rows(here), "DRAM")
        into = agent.get_xfer_descs(np.vstack([decode.rows(there)]), "DRAM")
        assert source is not None
        assert into is not None
        handle = agent.initialize_xfer("WRITE", source, into, peer)
        assert handle
        assert agent.transfer(handle) != "ERR"
        finish(agent, handle)

    chunks = [([4 * i, 4 * i + 1], [31 - i, 15 - i]) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for sent in [pool.submit(send, *chunk) for chunk in chunks]:
            sent.result(2 * DEADLINE_S)
    for here, there in chunks:
        assert decode.blocks(there) == prefill.blocks(here)

    sides = agent.prep_xfer_dlist("", prefill.strided(), "DRAM"), agent.prep_xfer_dlist(peer, decode.strided(), "DRAM")
    handle = agent.make_prepped_xfer("WRITE", sides[0], numbers_of([3]), sides[1], numbers_of([2]))
    assert handle
    assert agent.transfer(handle) != "ERR"
    finish(agent, handle)
    assert decode.blocks([2]) == prefill.blocks([3])
    assert decode.agent.get_new_notifs() == {}
    agent.remove_remote_agent(peer)
    assert not agent.check_remote_metadata(peer)
    agent.add_remote_agent(decode.agent.get_agent_metadata())
    assert agent.check_remote_metadata(peer)


def test_verl_reads_buckets_and_answers_with_keys(make_agent: Make) -> None:
    agents = [make_agent(f"rank-{rank}") for rank in range(3)]
    buckets = [[torch.from_numpy(numbered(2048, 10 * rank + i)) for i in range(2)] for rank in range(3)]
    regs = [[agent.register_memory(bucket) for bucket in mine] for agent, mine in zip(agents, buckets, strict=True)]
    descs: Any = [[agent.get_xfer_descs(each) for each in mine] for agent, mine in zip(agents, buckets, strict=True)]
    for rank in (1, 2):  # a chain: each one reads from the one before, and is read from
        for a, b in ((rank, rank - 1), (rank - 1, rank)):
            assert agents[a].add_remote_agent(agents[b].get_agent_metadata()).decode("utf-8") == agents[b].name

    async def read(rank: int, i: int, remote: bytes, key: bytes) -> None:
        agent = agents[rank]
        handle = agent.initialize_xfer("READ", descs[rank][i], pickle.loads(remote), agents[rank - 1].name, key)
        assert agent.transfer(handle) != "ERR"
        while (state := agent.check_xfer_state(handle)) != "DONE":
            assert state != "ERR"
            await asyncio.sleep(0)
        agent.release_xfer_handle(handle)

    async def hear(rank: int, key: bytes) -> None:
        sender = agents[rank + 1].name
        while not (found := agents[rank].get_new_notifs()):
            await asyncio.sleep(0)
        assert found == {sender: [key]}

    async def step(rank: int, i: int) -> None:
        key = uuid.uuid4().bytes
        await asyncio.gather(read(rank, i, pickle.dumps(descs[rank - 1][i]), key), hear(rank - 1, key))
        assert torch.equal(buckets[rank][i], buckets[rank - 1][i])

    async def chain() -> None:
        for i in range(2):
            await step(1, i)
            await step(2, i)
        for a, b in ((0, 1), (1, 0)):  # keys go both ways
            agents[a].send_notif(agents[b].name, b"\0key")
            await asyncio.sleep(0)
        await asyncio.gather(hear(0, b"\0key"))

    asyncio.run(asyncio.wait_for(chain(), DEADLINE_S))
    assert received(agents[1], "rank-0", 1) == [b"\0key"]
    agents[1].remove_remote_agent("rank-0")
    for agent, mine in zip(agents, regs, strict=True):
        for reg in mine:
            agent.deregister_memory(reg)


def test_ray_adds_the_agent_before_each_transfer_and_leaves_messages_unread(make_agent: Make) -> None:
    source = make_agent("actor-1", nixl_agent_config(backends=["UCX"]))
    reader = make_agent("actor-2", nixl_agent_config(backends=["UCX"]))
    count = 300
    for i in range(count):
        sent = [torch.from_numpy(numbered(64 * (1 + part), seed=2 * i + part)) for part in range(2)]
        into = [torch.zeros_like(tensor) for tensor in sent]
        regs = []
        for agent, tensors in ((source, sent), (reader, into)):
            rows = [(tensor.data_ptr(), tensor.nbytes, max(tensor.get_device(), 0), "") for tensor in tensors]
            regs.append(agent.register_memory(rows, mem_type="cpu"))
        message = source.get_serialized_descs(source.get_xfer_descs(sent)), source.get_agent_metadata()  # type: ignore[arg-type]

        remote, local = reader.deserialize_descs(message[0]), reader.get_xfer_descs(into)
        assert isinstance(remote, _bindings.nixlXferDList)
        assert local is not None
        name: Any = reader.add_remote_agent(message[1])
        handle = reader.initialize_xfer("READ", local, remote, name.decode(), b"UUID")
        assert reader.transfer(handle) != "ERR"
        if i % 3:
            finish(reader, handle)
            assert all(torch.equal(a, b) for a, b in zip(sent, into, strict=True))
        if handle:
            reader.release_xfer_handle(handle)  # also of transfers that are given up
        for agent, reg in zip((source, reader), regs, strict=True):
            agent.deregister_memory(reg)
        reader.remove_remote_agent(name)  # since memory was deregistered
    unread = source.get_new_notifs().get("actor-2", [])
    assert set(unread) == {b"UUID"}
    assert 2 * count // 3 <= len(unread) <= count


def test_dynamo_calls_with_keywords_and_scans_kept_messages(make_agent: Make) -> None:
    worker, encoder = (
        make_agent("worker"),
        make_agent("encoder", nixl_agent_config(num_threads=8, capture_telemetry=True)),
    )
    buffer, embedding = numbered(1024, seed=1), torch.from_numpy(numbered(1024, seed=2))
    worker.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "DRAM")], "DRAM")
    encoder.register_memory(embedding)
    name: Any = encoder.add_remote_agent(worker.get_agent_metadata())
    name = name.decode("utf-8") if isinstance(name, bytes) else name
    remote = worker.get_xfer_descs(descs=[(buffer.ctypes.data, buffer.nbytes, 0)], mem_type="DRAM")
    local = encoder.get_xfer_descs(descs=[(embedding.data_ptr(), embedding.nbytes, 0)], mem_type="cpu")
    assert remote is not None
    assert local is not None
    assert str(local) != ""

    def has_key(key: bytes) -> bool:
        return key in worker.update_notifs().get("encoder", [])

    for i in range(3):
        key = b"key-%d\0" % i
        handle = encoder.initialize_xfer(
            operation="WRITE", local_descs=local, remote_descs=remote, remote_agent=name, notif_msg=key
        )
        embedding += 1
        encoder.transfer(handle, key)
        finish(encoder, handle)
        until(partial(has_key, key))
        assert np.array_equal(buffer, embedding.numpy())
        encoder.release_xfer_handle(handle)
    assert worker.update_notifs() == {"encoder": [b"key-%d\0" % i for i in range(3)]}
    encoder.send_notif(name, notif_msg=b"\x81\xa2id\x01")
    until(partial(has_key, b"\x81\xa2id\x01"))
    encoder.remove_remote_agent(name)


@pytest.mark.parametrize("message", ["a text", ""])
def test_tensorrt_llm_deregisters_rebuilt_descriptors(make_agent: Make, message: str) -> None:
    config = nixl_agent_config(enable_prog_thread=True, backends=["UCX"], num_threads=1)
    context, generation = Cache(make_agent("context", config), 10), Cache(make_agent("generation", config), 20)
    for cache in (context, generation):
        descs = cache.agent.get_reg_descs(cache.regions("name of the layer"), "DRAM")
        cache.agent.register_memory(descs)
    context.agent.add_remote_agent(generation.agent.get_agent_metadata())
    source = context.agent.get_xfer_descs([tuple(map(int, row)) for row in context.rows([1, 2])], "DRAM")
    into = context.agent.get_xfer_descs([tuple(map(int, row)) for row in generation.rows([8, 3])], "DRAM")
    assert source is not None
    assert into is not None
    handle: _api.nixl_xfer_handle = context.agent.initialize_xfer("WRITE", source, into, "generation", message)
    assert context.agent.transfer(handle) in ("PROC", "DONE")
    finish(context.agent, handle)
    assert generation.blocks([8, 3]) == context.blocks([1, 2])
    if message:
        assert received(generation.agent, "context", 1) == [message.encode()]
    assert generation.agent.get_new_notifs() == {}
    for cache in (context, generation):
        rebuilt = cache.agent.get_reg_descs(cache.regions(), "DRAM")
        assert rebuilt is not None
        cache.agent.deregister_memory(rebuilt)
        with pytest.raises(_bindings.nixlNotFoundError):
            cache.agent.deregister_memory(rebuilt)
    with pytest.raises(_bindings.nixlNotFoundError):
        context.agent.transfer(handle)
