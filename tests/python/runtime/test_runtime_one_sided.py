"""One-sided transfers of host memory: within a process, between processes, and between two hosts."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from support.hosts import ADDRESSES, move_to, two_hosts
from support.pool import RankPool
from torch_axon.runtime import AccessDenied, Peer, Region, Runtime

SECRET = b"a secret of both hosts"
DEADLINE_S = 30.0
NUM_BYTES = 3_000_001
LENGTHS = (1, 7, 64, 4096, 32_768, 32_769, 65_536, 65_537, 1_000_003, NUM_BYTES)


class _Here:
    """The state of a process of these tests between its tasks."""

    runtime: Runtime
    server: Peer
    is_mappable: bool  # the memory that is exposed
    memory: torch.Tensor
    region: Region


def _bytes(num_bytes: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8))


def _serve(host: str, is_mappable: bool) -> int:
    _Here.is_mappable = is_mappable
    _Here.runtime = Runtime("owner", secret=SECRET)
    return _Here.runtime.listen(host)


def _connect(host: str, port: int) -> int:
    _Here.runtime = Runtime("initiator", secret=SECRET)
    _Here.server = _Here.runtime.connect((host, port))
    return _Here.runtime.incarnation


def _expose(access: str = "rw", num_bytes: int = NUM_BYTES) -> tuple[bytes, int]:
    content = _bytes(num_bytes, seed=1)
    _Here.memory = _Here.runtime.empty(num_bytes, dtype=torch.uint8).copy_(content) if _Here.is_mappable else content
    _Here.region = _Here.runtime.expose(_Here.memory, access, name="cache")
    return _Here.region.handle(), os.getpid()


def _memory() -> torch.Tensor:
    return _Here.memory


def _notifications(num_wanted: int = 1) -> list[bytes]:
    tags: list[bytes] = []
    until = time.monotonic() + DEADLINE_S
    while len(tags) < num_wanted and time.monotonic() < until:
        tags += [tag for _, tag in _Here.runtime.notifications(timeout=0.1)]
    return tags


def _close_region(timeout: float) -> tuple[bool, list[str]]:
    return _Here.region.close(timeout), _Here.region.holders


def _close() -> None:
    _Here.runtime.close(drain=False)


class Pair:
    """The processes of an owner and an initiator."""

    def __init__(self, owner: RankPool, initiator: RankPool, host: str, is_mappable: bool = False) -> None:
        self._owner, self._initiator = owner, initiator
        [port] = owner.run(_serve, host, is_mappable)
        [self.incarnation] = initiator.run(_connect, host, port)

    def owner(self, task: Callable[..., Any], *args: Any) -> Any:
        return self._owner.run(task, *args)[0]

    def initiator(self, task: Callable[..., Any], *args: Any) -> Any:
        return self._initiator.run(task, *args)[0]

    def close(self) -> None:
        self.initiator(_close)
        self.owner(_close)


@pytest.fixture(scope="module", params=["one host", "one host, mapped", "two hosts"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if request.param != "two hosts":
        with RankPool(1, meeting="none") as owner, RankPool(1, meeting="none") as initiator:
            pair = Pair(owner, initiator, "127.0.0.1", request.param == "one host, mapped")
            yield pair
            pair.close()
        return
    with two_hosts() as hosts, RankPool(1, meeting="none") as owner, RankPool(1, meeting="none") as initiator:
        for host, pool in enumerate((owner, initiator)):
            pool.run(move_to, hosts.names[host])
        pair = Pair(owner, initiator, ADDRESSES[0])
        yield pair
        pair.close()


def _read_and_write(handle: bytes, seed: int) -> torch.Tensor:
    """Reads and writes ranges of every length at odd offsets. Returns what the owner's memory must be."""
    expected = _bytes(NUM_BYTES, seed=1)
    rng = random.Random(seed)
    remote = _Here.server.open(handle)
    assert (remote.nbytes, remote.access, remote.region) == (NUM_BYTES, "rw", "cache")
    for length in LENGTHS:
        offset = rng.randint(0, NUM_BYTES - length)
        into = torch.zeros(length + 2, dtype=torch.uint8)
        _Here.server.read(remote[offset : offset + length], into[1:-1]).result(DEADLINE_S)
        assert torch.equal(into[1:-1], expected[offset : offset + length]), length
        assert into[0] == into[-1] == 0
        source = _bytes(length, seed=length)
        _Here.server.write(remote[offset : offset + length], source).result(DEADLINE_S)
        expected[offset : offset + length] = source
    assert _Here.server.read(remote[5:5], bytearray()).result(DEADLINE_S) is None
    return expected


def test_ranges_of_any_length_and_alignment_are_read_and_written(pair: Pair) -> None:
    handle, _ = pair.owner(_expose)
    expected = pair.initiator(_read_and_write, handle, 3)
    assert torch.equal(pair.owner(_memory), expected)


def _lists(handle: bytes) -> torch.Tensor:
    expected = _bytes(NUM_BYTES, seed=1)
    remote = _Here.server.open(handle)
    begins = list(range(0, NUM_BYTES - 70_000, 70_000))
    lengths = [(1, 100, 4096, 33_000, 66_000)[i % 5] for i in range(len(begins))]
    parts = [remote[begin : begin + length] for begin, length in zip(begins, lengths, strict=True)]
    into = [torch.empty(length, dtype=torch.uint8) for length in lengths]
    transfer = _Here.server.readv(parts, into)
    transfer.result(DEADLINE_S)
    for begin, block in zip(begins, into, strict=True):
        assert torch.equal(block, expected[begin : begin + block.numel()])
    assert (transfer.stats().blocks, transfer.stats().nbytes) == (len(begins), sum(lengths))
    assert transfer.stats().path == remote.path
    sources = [_bytes(length, seed=100 + length) for length in lengths]
    written = _Here.server.writev(parts, sources, notify=b"lists")
    written.result(DEADLINE_S)
    assert written.stats().path == ("messages" if remote.path == "cma" else remote.path)  # the owner fetches
    for begin, source in zip(begins, sources, strict=True):
        expected[begin : begin + source.numel()] = source
    return expected


def test_lists_are_one_transfer_and_their_notification_comes_last(pair: Pair) -> None:
    handle, _ = pair.owner(_expose)
    expected = pair.initiator(_lists, handle)
    assert pair.owner(_notifications) == [b"lists"]
    assert torch.equal(pair.owner(_memory), expected)


def _many_in_flight(handle: bytes) -> None:
    remote = _Here.server.open(handle)
    first, rest = remote[:1000], remote[1000:]
    source = _bytes(NUM_BYTES - 1000, seed=9)
    writes = [_Here.server.write(rest, source) for _ in range(8)]
    writes += [_Here.server.write(first[i : i + 1], bytes([i % 256]), notify=b"n") for i in range(1000)]
    for write in writes:
        write.result(DEADLINE_S)

    async def await_all() -> None:
        into = [torch.empty(1000, dtype=torch.uint8) for _ in range(300)]
        await asyncio.gather(*(_as_task(_Here.server.read(first, each)) for each in into))
        for each in into:
            assert each.tolist() == [i % 256 for i in range(1000)]

    asyncio.run(await_all())


async def _as_task(transfer: Any) -> None:
    await transfer


def test_hundreds_of_transfers_are_in_flight(pair: Pair) -> None:
    handle, _ = pair.owner(_expose)
    pair.initiator(_many_in_flight, handle)
    assert pair.owner(_notifications, 1000) == [b"n"] * 1000


def _misuse(handles: dict[str, bytes], incarnation: int) -> None:
    server = _Here.server
    assert incarnation == _Here.runtime.incarnation
    readable, writable = server.open(handles["r"]), server.open(handles["w"])
    with pytest.raises(AccessDenied, match="region 'cache' allows 'r' only"):
        server.write(readable, bytes(NUM_BYTES)).result(DEADLINE_S)
    with pytest.raises(AccessDenied, match="region 'cache' allows 'w' only"):
        server.read(writable, bytearray(NUM_BYTES)).result(DEADLINE_S)
    for i in (0, 2, 4, 8, 16, 24, 32, 40, 48, 63):  # every field and the seal
        forged = bytearray(handles["r"])
        forged[i] ^= 1
        with pytest.raises((AccessDenied, ValueError)):
            server.open(bytes(forged))
    with pytest.raises(AccessDenied, match="for another peer"):
        server.open(handles["other"])
    assert server.open(handles["mine"]).nbytes == 10
    with pytest.raises(ValueError, match="63 bytes long"):
        server.open(handles["r"][:63])
    with pytest.raises(ValueError, match="into has 3 bytes, and the remote memory 4"):
        server.read(readable[:4], bytearray(3))
    with pytest.raises(ValueError, match="read-only"):
        server.read(readable[:4], bytes(4))
    with pytest.raises(ValueError, match="contiguous"):
        server.read(readable[:4], torch.empty(8, dtype=torch.uint8)[::2])
    with pytest.raises(TypeError, match="source is of type int"):
        server.write(writable[:4], 4)
    with pytest.raises(ValueError, match="allowed: within 0 to"):
        readable[1 : NUM_BYTES + 1]
    with pytest.raises(TypeError, match="read: remote is of type NoneType; allowed: Remote"):
        server.read(None, bytearray(4))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="write: remote is of type bytes; allowed: Remote"):
        server.writev([writable[:4], b"4"], [bytes(4), bytes(4)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="into has 5 bytes, and the remote memory 4"):
        server.readv([readable[:4], readable[:4]], [bytearray(4), bytearray(5)])
    for compress in ("always", torch.float64):
        with pytest.raises(ValueError, match="allowed: 'auto', 'never', torch"):
            server.read(readable[:4], bytearray(4), compress=compress)
    with pytest.raises(ValueError, match="1 remote and 2 local blocks"):
        server.readv([readable[:4]], [bytearray(4), bytearray(4)])


def _expose_for(incarnation: int) -> dict[str, bytes]:
    handle = _Here.region.handle
    return {
        "r": handle(access="r"),
        "w": handle(access="w"),
        "mine": handle(100, 10, peer=incarnation),
        "other": handle(100, 10, peer=incarnation ^ 1),
    }


def test_misuse_is_refused_with_names(pair: Pair) -> None:
    pair.owner(_expose)
    handles = pair.owner(_expose_for, pair.incarnation)
    pair.initiator(_misuse, handles, pair.incarnation)


def _use_until_denied(handle: bytes) -> tuple[int, str]:
    remote = _Here.server.open(handle)
    into = torch.empty(NUM_BYTES, dtype=torch.uint8)
    expected = _bytes(NUM_BYTES, seed=1)
    _Here.server.notify(b"reading").result(DEADLINE_S)
    until = time.monotonic() + DEADLINE_S
    for num_read in range(1_000_000):
        try:
            _Here.server.read(remote, into).result(DEADLINE_S)
        except AccessDenied as denied:
            return num_read, str(denied)
        assert torch.equal(into, expected)
        assert time.monotonic() < until
    raise AssertionError("never denied")


def test_a_closed_region_denies_later_requests(pair: Pair) -> None:
    handle, _ = pair.owner(_expose)
    outcome: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: outcome.append(pair.initiator(_use_until_denied, handle)))
    thread.start()
    assert pair.owner(_notifications) == [b"reading"]
    assert pair.owner(_close_region, DEADLINE_S) == (True, [])
    thread.join(DEADLINE_S)
    assert "region 'cache'" in outcome[0][1]


def _fail_open(handle: bytes) -> None:
    with pytest.raises(AccessDenied, match=r"'owner'.*closed"):
        _Here.server.open(handle)


def test_a_handle_of_a_closed_region_is_denied_also_at_its_reused_number(pair: Pair) -> None:
    handle, _ = pair.owner(_expose)
    assert pair.owner(_close_region, DEADLINE_S)[0]
    pair.owner(_expose)
    pair.initiator(_fail_open, handle)


def _fill_queue(num_free: int) -> str:
    for _ in range(num_free // 1024):
        for each in [_Here.server.notify(b"tag") for _ in range(1024)]:
            each.result(DEADLINE_S)
    failure = _Here.server.notify(b"one more").exception(DEADLINE_S)
    return f"{type(failure).__name__}: {failure}"


def _write_with_full_queue(handle: bytes) -> None:
    transfer = _Here.server.write(_Here.server.open(handle), bytes(NUM_BYTES), notify=b"data")
    with pytest.raises(BufferError, match=r"region 'cache'.*notification queue is full"):
        transfer.result(DEADLINE_S)


def test_a_full_queue_fails_the_notifier_and_drops_nothing(pair: Pair) -> None:
    handle, _ = pair.owner(_expose)
    text = pair.initiator(_fill_queue, 65_536)
    assert text.startswith("BufferError: 'owner': the notification failed: its notification queue is full"), text
    pair.initiator(_write_with_full_queue, handle)
    assert pair.owner(_notifications, 65_536) == [b"tag"] * 65_536
    assert pair.initiator(_notify_again) is None
    assert pair.owner(_notifications) == [b"again"]


def _notify_again() -> None:
    _Here.server.notify(b"again").result(DEADLINE_S)


# ---- Within this process


def test_one_process_copies_its_own_memory(itself: tuple[Runtime, Peer]) -> None:
    runtime, peer = itself
    memory = _bytes(NUM_BYTES, seed=4)
    expected = memory.clone()
    remote = peer.open(runtime.expose(memory, "rw").handle())
    assert remote.path == "memcpy"
    into = np.empty(NUM_BYTES, dtype=np.uint8)
    peer.read(remote, into).result(DEADLINE_S)
    assert np.array_equal(into, expected.numpy())
    peer.write(remote[10:20], b"0123456789", notify=b"done").result(DEADLINE_S)
    assert bytes(memory[10:20].tolist()) == b"0123456789"
    [(sender, tag)] = runtime.notifications(timeout=DEADLINE_S)
    assert (sender.name, tag) == ("itself", b"done")


def test_a_region_of_several_arrays_numbers_their_bytes_one_after_the_other(itself: tuple[Runtime, Peer]) -> None:
    runtime, peer = itself
    arrays = [np.full(n, n % 256, dtype=np.uint8) for n in (1, 100_000, 0, 65_537)]
    whole = np.concatenate(arrays)
    region = runtime.expose([arrays[0], torch.from_numpy(arrays[1]), arrays[2], bytearray(arrays[3])], "rw")
    remote = peer.open(region.handle(0, len(whole) - 1))[1:]
    into = bytearray(len(whole) - 2)
    peer.read(remote, into).result(DEADLINE_S)
    assert into == whole[1:-1].tobytes()


def test_an_exposed_tensor_outlives_its_variable_and_its_other_regions(itself: tuple[Runtime, Peer]) -> None:
    runtime, peer = itself
    tensor = _bytes(100_000, seed=6)
    expected = tensor.clone()
    whole, view = runtime.expose(tensor), runtime.expose(tensor[1000:])
    remotes = [peer.open(whole.handle()), peer.open(view.handle())]
    del tensor
    assert whole.close(DEADLINE_S)
    into = torch.empty(99_000, dtype=torch.uint8)
    peer.read(remotes[1], into).result(DEADLINE_S)
    assert torch.equal(into, expected[1000:])
    with pytest.raises(AccessDenied):
        peer.read(remotes[0][:10], bytearray(10)).result(DEADLINE_S)


def test_a_closed_region_releases_its_memory(itself: tuple[Runtime, Peer]) -> None:
    runtime, peer = itself

    class Kept:
        pass

    kept = Kept()
    gone = weakref.ref(kept)
    memory = torch.ones(16, dtype=torch.uint8)
    region = runtime.expose_pointer(memory.data_ptr(), 16, keepalive=kept)
    remote = peer.open(region.handle())
    del kept
    into = bytearray(16)
    peer.read(remote, into).result(DEADLINE_S)
    assert into == b"\1" * 16
    assert gone() is not None
    assert region.close(DEADLINE_S)
    until = time.monotonic() + DEADLINE_S
    while gone() is not None:
        assert time.monotonic() < until


def test_memory_of_python_objects_is_refused(itself: tuple[Runtime, Peer]) -> None:
    runtime, peer = itself
    with pytest.raises(TypeError, match="memory holds Python objects"):
        runtime.expose(np.array([object()], dtype=object), "rw")
    with pytest.raises(TypeError, match="memory holds Python objects"):
        runtime.expose(np.zeros(1, dtype=[("number", "i4"), ("any", "O")]))
    runtime.expose(np.zeros(1, dtype=[("Offset", "i8"), ("Other", "i8")]))
    dates = np.zeros(8, dtype="datetime64[ns]")
    remote = peer.open(runtime.expose(dates, "rw").handle())
    peer.write(remote, np.arange(8)).result(DEADLINE_S)
    assert dates.astype(np.int64).tolist() == list(range(8))


def test_wrong_handles_and_peers_are_refused_at_the_call(itself: tuple[Runtime, Peer]) -> None:
    runtime, peer = itself
    region = runtime.expose(bytearray(8))
    with pytest.raises(TypeError, match="handle is of type int"):
        peer.open(64)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="peer is of type str"):
        region.handle(peer="decode")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="peer is 0; allowed: 1 to"):
        region.handle(peer=0)


def test_memory_of_other_devices_is_refused_by_name(itself: tuple[Runtime, Peer]) -> None:
    runtime, _ = itself
    with pytest.raises(ValueError, match=r"memory is on (cuda:63, and this process has|CUDA, and this torch_axon)"):
        runtime.expose_pointer(4096, 16, "cuda:63")
    with pytest.raises(ValueError, match="device is 'meta'; allowed: 'cpu', and 'cuda'"):
        runtime.expose_pointer(4096, 16, "meta")
    with pytest.raises(ValueError, match="tensor on meta; allowed: tensors on the CPU and on CUDA"):
        runtime.expose(torch.empty(3, device="meta"))
