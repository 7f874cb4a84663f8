"""The transport "axon" of torch.distributed._transport, as its base class promises."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.pool import RankPool

if importlib.util.find_spec("torch.distributed._transport") is None:
    pytest.skip("torch.distributed has transports since torch 2.15", allow_module_level=True)

from torch.distributed._transport import (  # type: ignore[attr-defined]
    Memory,
    MutableMemoryView,
    RemoteBuffer,
    available_transports,
    new_transport,
    new_transport_rank,
    wait_all,
)

from torch_axon.transport import AxonRemoteBuffer, AxonTransport

Pair = tuple[Any, Any]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with new_transport("axon", "cpu") as one, new_transport("axon") as other:
        url = one.bind()
        assert one.bind() == url
        other.connect(url)
        one.connect(other.bind())
        assert one.connected()
        assert other.connected()
        yield one, other


def _remote(transport: Any, tensor: torch.Tensor) -> AxonRemoteBuffer:
    buffer = transport.register_memory(tensor).to_remote_buffer()
    return type(buffer).deserialize(buffer.serialize())


def test_it_is_found_by_its_name() -> None:
    assert "axon" in available_transports()
    with new_transport("axon") as transport:
        assert isinstance(transport, AxonTransport)
        assert not transport.connected()


@pytest.mark.parametrize("count", [1, 7, 100_000, 3_000_001])
def test_bytes_are_written_and_read(pair: Pair, count: int) -> None:
    one, other = pair
    source, target, back = torch.randn(count), torch.zeros(count), torch.zeros(count)
    memory = one.register_memory(source)
    remote = _remote(other, target)
    assert isinstance(memory, Memory)
    assert isinstance(remote, RemoteBuffer)
    assert one.write(memory.to_view(), remote) == 0
    assert torch.equal(target, source)
    view = one.register_memory(back).to_mutable_view()
    assert isinstance(view, MutableMemoryView)
    assert view.size() == 4 * count
    work = one.read(view, remote, async_op=True)
    work.wait()
    assert work.is_completed()
    assert work.get_future().wait() == []
    assert torch.equal(back, source)


def test_parts_of_memory_are_written(pair: Pair) -> None:
    one, other = pair
    source = one.register_memory(torch.arange(10, dtype=torch.uint8))
    target = torch.zeros(6, dtype=torch.uint8)
    one.write(source.to_view(3, 4), _remote(other, target))
    assert target.tolist() == [3, 4, 5, 6, 0, 0]
    assert source.to_view(8).size() == 2


def test_event_loops_await_transfers(pair: Pair) -> None:
    one, other = pair
    sources, targets = [torch.full((1000,), float(i)) for i in range(20)], [torch.zeros(1000) for _ in range(20)]
    views = [one.register_memory(source).to_view() for source in sources]
    remotes = [_remote(other, target) for target in targets]

    async def run() -> None:
        await one.write_async(views[0], remotes[0], timeout=30.0)
        await wait_all([one.write(*each, async_op=True) for each in zip(views[1:], remotes[1:], strict=True)])
        back = torch.zeros(1000)
        await other.read_async(other.register_memory(back).to_mutable_view(), _remote(one, sources[7]), timeout=30.0)
        assert torch.equal(back, sources[7])
        await other.close_async(timeout=30.0)

    asyncio.run(run())
    assert all(torch.equal(*each) for each in zip(sources, targets, strict=True))


def test_misuse_is_named(pair: Pair) -> None:
    one, other = pair
    memory = one.register_memory(torch.zeros(8))
    remote = _remote(other, torch.zeros(8))
    gone = one.register_memory(torch.zeros(8))
    view_of_gone = gone.to_view()
    long = one.register_memory(torch.zeros(16))
    one.unregister_memory(gone)
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: memory.to_view(30, 4), ValueError, "bytes 30 to 34; allowed: within the 32 bytes"),
        (lambda: one.write(long.to_view(), remote), ValueError, "the view has 64 bytes; allowed: the 32 bytes"),
        (lambda: one.read(memory.to_view(), remote), TypeError, "allowed: AxonMutableView"),
        (lambda: one.write(memory.to_view(), b"remote"), TypeError, "remote_buffer is of type bytes"),
        (lambda: other.write(memory.to_view(), remote), ValueError, "another endpoint"),
        (lambda: one.write(view_of_gone, remote), ValueError, "not registered any more"),
        (lambda: gone.to_remote_buffer(), ValueError, "not registered any more"),
        (lambda: one.connect(other.bind()), ValueError, "has a peer"),
        (lambda: one.connect(b"nonsense"), ValueError, "no URL of an endpoint"),
        (lambda: one.write(memory.to_view(), remote, timeout=-1.0), ValueError, "timeout"),
        (lambda: one.bind(timeout=-1.0), ValueError, "timeout"),
        (lambda: one.unregister_memory(remote), TypeError, "memory is of type AxonRemoteBuffer"),
        (lambda: one.write_stream(memory.to_view(), remote), NotImplementedError, "no transfers in stream order"),
        (lambda: AxonRemoteBuffer.deserialize(b"short"), ValueError, "not a remote buffer"),
        (lambda: one.register_memory(torch.zeros(4, 4)[:, 0]), ValueError, "contiguous"),
        (lambda: one.register_memory(torch.zeros(4, device="meta")), ValueError, "expected a tensor on cpu"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()
    with new_transport("axon") as alone, pytest.raises(RuntimeError, match="has no peer"):
        alone.write(alone.register_memory(torch.zeros(8)).to_view(), remote)
    one.close()
    one.close()
    with pytest.raises(RuntimeError, match="closed"):
        one.write(memory.to_view(), remote)
    assert not one.connected()


def test_revoked_memory_is_denied(pair: Pair) -> None:
    one, other = pair
    memory = other.register_memory(torch.zeros(8))
    remote, view = memory.to_remote_buffer(), one.register_memory(torch.ones(8)).to_view()
    one.write(view, remote)
    other.unregister_memory(memory)
    with pytest.raises(PermissionError, match="closed"):
        one.write(view, remote)
    with pytest.raises(RuntimeError, match="closed"):
        one.write(view, remote, async_op=True).wait()


def test_transfers_end_with_their_peer(pair: Pair) -> None:
    one, other = pair
    remote, view = _remote(other, torch.zeros(8)), one.register_memory(torch.ones(8)).to_view()
    one.write(view, remote)
    other.close()
    with pytest.raises(ConnectionError):
        one.write(view, remote)
    assert not one.connected()


def _meet_over_the_store() -> None:
    rank = dist.get_rank()
    source, target = torch.full((100_000,), rank + 1.0), torch.zeros(100_000)
    with new_transport_rank("axon", peer_rank=1 - rank) as transport:
        mine = transport.register_memory(target).to_remote_buffer().serialize()
        buffers: list[Any] = [None, None]
        dist.all_gather_object(buffers, mine)
        remote = AxonRemoteBuffer.deserialize(buffers[1 - rank])
        transport.write(transport.register_memory(source).to_view(), remote)
        dist.barrier()
        assert target.tolist()[::50_000] == [2.0 - rank] * 2
        dist.barrier()


def test_ranks_meet_over_their_store(two_ranks: RankPool) -> None:
    two_ranks.run(_meet_over_the_store)
