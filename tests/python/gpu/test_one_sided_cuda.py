"""One-sided transfers of CUDA memory: on either side or both, within a process, between processes, and between hosts.

One GPU suffices, which all processes share then. With two, the owner and the initiator have one each.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from support.devices import needs_two_gpus
from support.one_sided_cuda import (
    BOTH,
    DEADLINE_S,
    NUM_BYTES,
    Here,
    Pair,
    close_all,
    equal,
    expose,
    owner_has,
    pattern,
    shifted,
    take,
)
from torch_axon.runtime import AccessDenied, Blocks, Peer, Remote, Runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

LENGTHS = (1, 3, 16, 255, 4096, 32_769, 65_537, 1_048_576, 4_194_305, NUM_BYTES)
LARGE = 300 << 20


def _ranges(handle: bytes, device: str, seed: int) -> tuple[str, str]:
    """Reads and writes ranges of all lengths at odd offsets and addresses. All bytes are of pattern 2 in the end."""
    rng = random.Random(seed)
    remote = Here.server.open(handle)
    for length in LENGTHS:
        offset = rng.randint(0, NUM_BYTES - length)
        into = shifted(length + 2, device, rng.randint(0, 17))
        Here.server.read(remote[offset : offset + length], into[1:-1]).result(DEADLINE_S)
        assert equal(into[1:-1], 1, offset), f"read of {length} bytes from {offset}"
        assert into[0] == into[-1] == 0, f"read of {length} bytes"
    begin = 0
    while begin < NUM_BYTES:
        length = min(rng.choice(LENGTHS), NUM_BYTES - begin)
        source = shifted(length, device, rng.randint(0, 17))
        source.copy_(pattern(length, 2, device, begin))
        Here.server.write(remote[begin : begin + length], source).result(DEADLINE_S)
        begin += length
    assert Here.server.read(remote[5:5], torch.empty(0, dtype=torch.uint8, device=device)).result(DEADLINE_S) is None
    return remote.path, remote.device


@pytest.mark.parametrize("here", BOTH)
@pytest.mark.parametrize("there", BOTH)
def test_ranges_of_any_length_and_alignment(pair: Pair, here: str, there: str) -> None:
    for shift in (0, 5):
        handle = pair.owner(expose, there, NUM_BYTES, "rw", shift)
        path, device = pair.initiator(_ranges, handle, here, shift)
        assert device == there
        assert there == "cpu" or path == pair.path
        assert pair.owner(owner_has, there, 2)


def _large(handle: bytes, device: str) -> None:
    remote = Here.server.open(handle)
    into = torch.empty(LARGE, dtype=torch.uint8, device=device)
    Here.server.read(remote, into, timeout=DEADLINE_S).result(DEADLINE_S)
    assert equal(into, 1)
    into.copy_(pattern(LARGE, 2, device))
    Here.server.write(remote[1:], into[1:], notify=b"large", timeout=DEADLINE_S).result(DEADLINE_S)


def _has_at_notification(device: str, tag: bytes, seed: int, offset: int) -> bool:
    [(_, got)] = Here.runtime.notifications(timeout=DEADLINE_S)
    assert got == tag
    return owner_has(device, seed, offset)


@pytest.mark.parametrize("here", BOTH)
@pytest.mark.parametrize("there", BOTH)
def test_large_blocks_and_their_notification(pair: Pair, here: str, there: str) -> None:
    if here == there == "cpu":
        pytest.skip("host memory has tests of its own")
    handle = pair.owner(expose, there, LARGE)
    has_data, _ = pair.both((_has_at_notification, there, b"large", 2, 1), (_large, handle, here))
    assert has_data


def _lists(handles: dict[str, bytes], seed: int) -> None:
    """Thousands of blocks, whose memory is on the host and on the GPU on both sides, in one transfer."""
    rng = random.Random(seed)
    remotes = {device: Here.server.open(handle) for device, handle in handles.items()}
    into, parts, checks = [], [], []
    for device in BOTH:
        begin = 0
        while begin < NUM_BYTES:
            length = min(rng.choice((1, 100, 4096, 4097, 33_000)), NUM_BYTES - begin)
            here = rng.choice(BOTH)
            into.append(shifted(length, here, rng.randint(0, 17)))
            parts.append(remotes[device][begin : begin + length])
            checks.append(begin)
            begin += length
    order = list(range(len(parts)))
    rng.shuffle(order)
    read = Here.server.readv([parts[i] for i in order], [into[i] for i in order], timeout=DEADLINE_S)
    read.result(DEADLINE_S)
    stats = read.stats()
    assert (stats.blocks, stats.nbytes) == (len(parts), 2 * NUM_BYTES)
    assert len(parts) > 1000
    for block, begin in zip(into, checks, strict=True):
        assert equal(block, 1, begin)
        block.copy_(pattern(block.numel(), 2, str(block.device), begin))
    write = Here.server.writev([parts[i] for i in order], [into[i] for i in order], notify=b"lists", timeout=DEADLINE_S)
    write.result(DEADLINE_S)


def test_lists_mix_all_kinds_of_memory(pair: Pair) -> None:
    handles = {device: pair.owner(expose, device) for device in BOTH}
    pair.initiator(_lists, handles, 3)
    pair.owner(take, b"lists")
    for device in BOTH:
        assert pair.owner(owner_has, device, 2), device


def _plans(handle: bytes, device: str, num_blocks: int, num_bytes: int) -> None:
    remote = Here.server.open(handle)
    memory = torch.zeros(num_blocks * num_bytes, dtype=torch.uint8, device=device)
    ids = np.random.default_rng(4).permutation(num_blocks).astype(np.int32)
    there = Blocks(remote, num_bytes, count=num_blocks)
    Here.server.plan("read", Blocks(memory, num_bytes), there).post(ids, ids, timeout=DEADLINE_S).result(DEADLINE_S)
    assert equal(memory, 1)
    memory.copy_(pattern(memory.numel(), 2, device))
    Here.server.plan("write", Blocks(memory, num_bytes), there).post(ids, ids, timeout=DEADLINE_S).result(DEADLINE_S)


@pytest.mark.parametrize("here", BOTH)
@pytest.mark.parametrize(("num_blocks", "num_bytes"), [(8192, 4096), (1024, 65_536), (3000, 4097)])
def test_plans_of_thousands_of_blocks(pair: Pair, here: str, num_blocks: int, num_bytes: int) -> None:
    handle = pair.owner(expose, "cuda", num_blocks * num_bytes)
    pair.initiator(_plans, handle, here, num_blocks, num_bytes)
    assert pair.owner(owner_has, "cuda", 2)


def _plan_of_both(handle: bytes) -> None:
    remote = Here.server.open(handle)
    memories = [torch.zeros(32 * 4096, dtype=torch.uint8, device=device) for device in BOTH]
    ids = np.arange(64, dtype=np.int32)
    plan = Here.server.plan("read", Blocks(memories, 4096), Blocks(remote[: 64 * 4096], 4096))
    plan.post(ids, ids, timeout=DEADLINE_S).result(DEADLINE_S)
    for i, memory in enumerate(memories):
        assert equal(memory, 1, i * memory.numel()), memory.device


def test_a_plan_of_memory_on_the_host_and_on_a_gpu(pair: Pair) -> None:
    pair.initiator(_plan_of_both, pair.owner(expose, "cuda"))


def _after_the_stream(handle: bytes) -> None:
    remote = Here.server.open(handle)
    stream = torch.cuda.Stream()
    source = torch.zeros(NUM_BYTES, dtype=torch.uint8, device="cuda")
    expected = pattern(NUM_BYTES, 2, "cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # some 0.1 s
        source.copy_(expected)
        write = Here.server.write(remote, source)  # after the current stream
    write.result(DEADLINE_S)
    into = torch.empty(NUM_BYTES, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        into.fill_(77)  # must not come after the read
    Here.server.read(remote, into, stream=stream).result(DEADLINE_S)
    assert torch.equal(into, expected)
    with pytest.raises(TypeError, match="stream is of type int"):
        Here.server.read(remote, into, stream=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stream is given for local memory of the host"):
        Here.server.read(remote, bytearray(NUM_BYTES), stream=stream)


def test_transfers_start_after_the_work_of_the_stream(pair: Pair) -> None:
    handle = pair.owner(expose, "cuda")
    pair.initiator(_after_the_stream, handle)
    assert pair.owner(owner_has, "cuda", 2)


def _many(handle: bytes) -> None:
    """Keeps many transfers under way, from several threads and an event loop."""
    remote = Here.server.open(handle)
    size = 90_001
    count = NUM_BYTES // size
    sources = [pattern(size, 2, BOTH[i % 2], i * size) for i in range(count)]

    def write(first: int) -> None:
        transfers = [Here.server.write(remote[i * size : (i + 1) * size], sources[i]) for i in range(first, count, 4)]
        for transfer in transfers:
            transfer.result(DEADLINE_S)

    threads = [threading.Thread(target=write, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    async def read_all() -> None:
        into = [torch.empty(size, dtype=torch.uint8, device=BOTH[i % 2]) for i in range(count)]
        transfers = [Here.server.read(remote[i * size : (i + 1) * size], into[i]) for i in range(count)]
        for transfer in transfers:
            await transfer
        for i, block in enumerate(into):
            assert equal(block, 2, i * size), i

    asyncio.run(read_all())


def _listen_here(host: str) -> int:
    return Here.runtime.listen(host)


def _connect_back(port: int, host: str) -> None:
    Here.server = Here.runtime.connect((host, port))


def _expose_here() -> bytes:
    Here.memory, Here.regions = {}, {}
    return expose("cuda")


def test_both_processes_transfer_at_the_same_time(pair: Pair) -> None:
    if not pair.has_way_back:
        port = pair.initiator(_listen_here, pair.addresses[1])
        pair.owner(_connect_back, port, pair.addresses[1])
        pair.has_way_back = True
    to_owner, to_initiator = pair.owner(expose, "cuda"), pair.initiator(_expose_here)
    pair.both((_many, to_initiator), (_many, to_owner))
    size = 90_001
    whole = NUM_BYTES // size * size
    assert pair.owner(owner_has, "cuda", 2, 0, whole)
    assert pair.initiator(owner_has, "cuda", 2, 0, whole)
    pair.initiator(close_all)


def _expose_parts() -> tuple[bytes, list[int]]:
    lengths = [1, 300, 5_000_000, 7, 65_536]
    parts = [shifted(length, "cuda", i) for i, length in enumerate(lengths)]
    begin = 0
    for part in parts:
        part.copy_(pattern(part.numel(), 1, "cuda", begin))
        begin += part.numel()
    Here.memory["parts"] = torch.empty(0)
    Here.regions["parts"] = Here.runtime.expose(parts, "rw", name="parts")
    return Here.regions["parts"].handle(), lengths


def _read_parts(handle: bytes, num_bytes: int) -> None:
    for device in BOTH:
        into = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        Here.server.read(Here.server.open(handle), into).result(DEADLINE_S)
        assert equal(into, 1), device
    Here.server.write(Here.server.open(handle), into).result(DEADLINE_S)


def test_a_region_of_several_tensors(pair: Pair) -> None:
    handle, lengths = pair.owner(_expose_parts)
    pair.initiator(_read_parts, handle, sum(lengths))


# ---- Within this process


@pytest.fixture
def itself() -> Iterator[tuple[Runtime, Peer]]:
    with Runtime("itself") as runtime:
        yield runtime, runtime.connect(runtime.address)


def _check_within(runtime: Runtime, peer: Peer, there: str, here: str) -> Remote:
    memory = pattern(NUM_BYTES, 1, there)
    region = runtime.expose(memory, "rw")
    remote = peer.open(region.handle())
    into = torch.zeros(NUM_BYTES, dtype=torch.uint8, device=here)
    peer.read(remote, into).result(DEADLINE_S)
    assert equal(into, 1)
    parts = [remote[i : i + 1001] for i in range(0, NUM_BYTES - 1001, 1001)]
    blocks = [pattern(1001, 2, here, i * 1001) for i in range(len(parts))]
    peer.writev(parts, blocks, notify=b"done").result(DEADLINE_S)
    assert [tag for _, tag in runtime.notifications(timeout=DEADLINE_S)] == [b"done"]
    whole = len(parts) * 1001
    assert equal(memory[:whole], 2)
    assert equal(memory[whole:], 1, whole)
    assert region.close(DEADLINE_S)
    with pytest.raises(AccessDenied):
        peer.read(remote, into).result(DEADLINE_S)
    return remote


@pytest.mark.parametrize("here", BOTH)
@pytest.mark.parametrize("there", BOTH)
def test_one_process_copies_its_own_memory(itself: tuple[Runtime, Peer], here: str, there: str) -> None:
    remote = _check_within(*itself, there, here)
    assert remote.path == ("memcpy" if there == "cpu" else "cuda")


@needs_two_gpus
def test_one_process_copies_between_its_gpus(itself: tuple[Runtime, Peer]) -> None:
    _check_within(*itself, "cuda:1", "cuda:0")
    _check_within(*itself, "cuda:0", "cuda:1")
    runtime, peer = itself
    remote = peer.open(runtime.expose(torch.zeros(10, dtype=torch.uint8, device="cuda:0")).handle())
    with pytest.raises(ValueError, match="stream is of cuda:1, and a tensor on cuda:0"):
        peer.read(remote, torch.zeros(10, dtype=torch.uint8, device="cuda:0"), stream=torch.cuda.Stream("cuda:1"))


def test_memory_at_an_address(itself: tuple[Runtime, Peer]) -> None:
    runtime, peer = itself
    memory = pattern(10_000, 1, "cuda")
    device = torch.device("cuda", torch.cuda.current_device())
    region = runtime.expose_pointer(memory.data_ptr() + 3, 9_000, device, access="rw", keepalive=memory)
    into = torch.zeros(9_000, dtype=torch.uint8, device="cuda")
    peer.read(peer.open(region.handle()), into).result(DEADLINE_S)
    assert equal(into, 1, 3)


def test_transfers_may_be_awaited_and_dropped(itself: tuple[Runtime, Peer]) -> None:
    runtime, peer = itself
    memory = pattern(NUM_BYTES, 1, "cuda")
    region = runtime.expose(memory, "rw")

    async def use() -> None:
        remote = await peer.aopen(region.handle())
        assert remote.path == "cuda"
        for _ in range(50):
            peer.read(remote, torch.empty(NUM_BYTES, dtype=torch.uint8, device="cuda"))  # nothing keeps it
        into = torch.empty(NUM_BYTES, dtype=torch.uint8, device="cuda")
        await peer.read(remote, into)
        assert equal(into, 1)

    asyncio.run(use())
    assert region.close(DEADLINE_S)
