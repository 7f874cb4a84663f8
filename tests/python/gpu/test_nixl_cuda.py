"""NIXL's names over memory of GPUs, in one process and in two."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch

from torch_axon.nixl import nixl_agent

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

DEADLINE_S = 60.0
NUM_BLOCKS = 20_000  # several launches of a plan
BLOCK_BYTES = 256
LAYERS = 3


def _finish(agent: nixl_agent, handle: Any) -> None:
    until = time.monotonic() + DEADLINE_S
    state = agent.transfer(handle)
    while state != "DONE":
        assert time.monotonic() < until, state
        state = agent.check_xfer_state(handle)


def _caches(seed: int, device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    caches = [
        torch.randint(0, 256, (NUM_BLOCKS, BLOCK_BYTES), dtype=torch.uint8, generator=generator) for _ in range(LAYERS)
    ]
    return [cache.to(device) for cache in caches]


def _strided(caches: list[torch.Tensor]) -> Any:
    """Returns descriptors of the blocks of all layers: [layers, 5]."""
    return np.array(
        [(cache.data_ptr(), BLOCK_BYTES, max(cache.get_device(), 0), BLOCK_BYTES, NUM_BLOCKS) for cache in caches],
        dtype=np.uint64,
    )


def _own(pipe: Connection, device: str) -> None:
    caches = _caches(1, device)
    agent = nixl_agent("owner")
    agent.register_memory(caches)
    pipe.send((agent.get_agent_metadata(), _strided(caches)))
    while pipe.recv():
        torch.cuda.synchronize()
        copies = [cache.cpu().numpy().copy() for cache in caches]  # a tensor that is sent would move to shared memory
        pipe.send((copies, agent.get_new_notifs()))


@pytest.fixture(scope="module", params=["cuda", "cpu"])
def owner(request: pytest.FixtureRequest) -> Iterator[tuple[Connection, bytes, Any, str]]:
    device = "cuda:0" if request.param == "cuda" else "cpu"
    context = multiprocessing.get_context("spawn")
    pipe, there = context.Pipe()
    process = context.Process(target=_own, args=(there, device))
    process.start()
    metadata, blocks = pipe.recv()
    yield pipe, metadata, blocks, "VRAM" if request.param == "cuda" else "DRAM"
    pipe.send(False)
    process.join(DEADLINE_S)
    assert process.exitcode == 0


def _memory_of(pipe: Connection) -> tuple[list[torch.Tensor], dict[str, list[bytes]]]:
    pipe.send(True)
    copies, notifications = pipe.recv()
    return [torch.from_numpy(copy) for copy in copies], notifications


@pytest.mark.parametrize("kind", ["VRAM", "DRAM"])
def test_blocks_of_layers_are_read_and_written_by_their_numbers(
    owner: tuple[Connection, bytes, Any, str], kind: str
) -> None:
    pipe, metadata, there, remote_kind = owner
    gpu = torch.cuda.device_count() - 1
    here = _caches(2, f"cuda:{gpu}" if kind == "VRAM" else "cpu")
    expected_here = [cache.cpu().view(-1, BLOCK_BYTES) for cache in here]
    expected_there, _ = _memory_of(pipe)
    torch.cuda.synchronize()
    agent = nixl_agent(f"initiator of {kind}")
    agent.register_memory(here)
    name = agent.add_remote_agent(metadata)
    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", _strided(here), mem_type=kind)
    remote = agent.prep_xfer_dlist(name, there, mem_type=remote_kind)
    numbers = np.random.default_rng(3).permutation(LAYERS * NUM_BLOCKS)
    targets, sources = numbers[: NUM_BLOCKS + 7], numbers[::-1][: NUM_BLOCKS + 7]

    _finish(agent, agent.make_prepped_xfer("WRITE", local, sources, remote, targets, notif_msg=b"written"))
    all_here, all_there = torch.cat(expected_here), torch.cat(expected_there)
    all_there[torch.from_numpy(targets.copy())] = all_here[torch.from_numpy(sources.copy())]
    memory, notifications = _memory_of(pipe)
    assert torch.equal(torch.cat(memory), all_there)
    assert notifications == {agent.name: [b"written"]}

    everything = np.arange(LAYERS * NUM_BLOCKS)
    _finish(agent, agent.make_prepped_xfer("READ", local, numbers, remote, everything))
    all_here[torch.from_numpy(numbers)] = all_there
    assert torch.equal(torch.cat([cache.cpu() for cache in here]), all_here)


def test_whole_tensors_move_between_agents_of_one_process() -> None:
    source = torch.randn(1 << 20, device="cuda:0")
    target = torch.zeros(1 << 20, device=f"cuda:{torch.cuda.device_count() - 1}")
    torch.cuda.synchronize()
    first, second = nixl_agent("first"), nixl_agent("second")
    descs = first.register_memory(source), second.register_memory(target)
    first.add_remote_agent(second.get_agent_metadata())
    handle = first.initialize_xfer("WRITE", descs[0].trim(), descs[1].trim(), "second", b"all")
    _finish(first, handle)
    assert torch.equal(source.cpu(), target.cpu())
    until = time.monotonic() + DEADLINE_S
    while not (notifications := second.get_new_notifs()):
        assert time.monotonic() < until
    assert notifications == {"first": [b"all"]}
    second.deregister_memory(descs[1])
    with pytest.raises(Exception, match="NIXL_ERR_NOT_ALLOWED"):
        _finish(first, handle)
