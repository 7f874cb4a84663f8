"""One-sided transfers with memory that `Runtime.empty` has made, which peers of the same host map."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from support.other_process import OtherProcess
from support.waiting import DEADLINE_S, until
from torch_axon.runtime import AccessDenied, Blocks, Peer, PeerLostError, Region, Remote, Runtime

NUM_BYTES = 3_000_001


def _num_mapped(pid: int | str = "self") -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:axon-memory")


# ---- Tensors


def test_empty_makes_tensors_as_torch_does(itself: tuple[Runtime, Peer]) -> None:
    runtime, _ = itself
    for size in ((3, 5), (7,), (2, 1, 4)):
        for dtype in (None, torch.bfloat16, torch.bool, torch.complex128):
            tensor, like = runtime.empty(*size, dtype=dtype), torch.zeros(*size, dtype=dtype)
            assert (tensor.dtype, tensor.shape, tensor.is_contiguous()) == (like.dtype, like.shape, True)
            assert torch.equal(tensor, like)
    assert runtime.empty([2, 3]).shape == runtime.empty(torch.Size((2, 3))).shape == (2, 3)
    assert runtime.empty(4, 0).shape == (4, 0)
    assert runtime.empty(3, device="cpu").fill_(2).sum() == 6


def test_gradients_flow_through_tensors_that_no_grad_has_made(itself: tuple[Runtime, Peer]) -> None:
    runtime, _ = itself
    with torch.no_grad():
        tensor = runtime.empty(4)
    source = torch.ones(4, requires_grad=True)
    tensor.copy_(source)
    tensor.sum().backward()
    assert source.grad is not None
    assert source.grad.tolist() == [1.0] * 4


def test_empty_refuses_what_it_cannot_make(itself: tuple[Runtime, Peer]) -> None:
    runtime, _ = itself
    with pytest.raises(ValueError, match="empty: device is 'meta'; allowed: 'cpu', and 'cuda'"):
        runtime.empty(3, device="meta")
    with pytest.raises(RuntimeError, match="negative dimension"):
        runtime.empty(-1)
    with pytest.raises(TypeError):
        runtime.empty("3")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"empty: allocation of \d+ shared bytes"):
        runtime.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="not resizable"):
        runtime.empty(3).resize_(100)


def test_memory_is_freed_with_its_last_user(itself: tuple[Runtime, Peer]) -> None:
    runtime, _ = itself
    before = _num_mapped()
    tensor = runtime.empty(NUM_BYTES)
    part = tensor[5:10]
    region = runtime.expose(part, "rw")
    assert _num_mapped() == before + 1
    del tensor, part
    gc.collect()
    assert _num_mapped() == before + 1
    assert region.close(DEADLINE_S)
    until(lambda: _num_mapped() == before)
    assert region.nbytes == 20


def test_own_memory_that_is_freed_is_denied(itself: tuple[Runtime, Peer]) -> None:
    runtime, peer = itself
    before = _num_mapped()
    tensor = runtime.empty(NUM_BYTES, dtype=torch.uint8).fill_(3)
    region = runtime.expose(tensor)
    remote = peer.open(region.handle())
    assert remote.path == "memcpy"
    into = torch.empty(NUM_BYTES, dtype=torch.uint8)
    peer.read(remote, into).result(DEADLINE_S)
    assert torch.equal(into, tensor)
    assert region.close(DEADLINE_S)
    del tensor, region
    gc.collect()
    until(lambda: _num_mapped() == before)
    with pytest.raises(AccessDenied, match="closed"):
        peer.read(remote, into).result(DEADLINE_S)


# ---- Between processes


class _Here:
    """What a process of these tests keeps between its tasks."""

    runtime: Runtime
    peer: Peer
    remote: Remote
    tensors: list[torch.Tensor]
    region: Region


def _serve_tasks(pipe: Connection) -> None:
    with Runtime("other") as _Here.runtime:
        pipe.send(_Here.runtime.address)
        while pipe.poll(None) and (task := pipe.recv()):
            pipe.send(task[0](*task[1:]))
        _Here.tensors = []


class Other(OtherProcess):
    """A process with a runtime, which runs tasks."""

    def __init__(self) -> None:
        super().__init__(_serve_tasks)
        self.address = self.pipe.recv()

    def run(self, task: Callable[..., Any], *args: Any) -> Any:
        self.pipe.send((task, *args))
        assert self.pipe.poll(DEADLINE_S)
        return self.pipe.recv()


@pytest.fixture
def other() -> Iterator[Other]:
    other = Other()
    yield other
    other.close()


def _expose(num_tensors: int) -> bytes:
    _Here.tensors = [_Here.runtime.empty(NUM_BYTES, dtype=torch.uint8) for _ in range(num_tensors)]
    _Here.region = _Here.runtime.expose(_Here.tensors, "rw", name="cache")
    return _Here.region.handle()


def _expose_parts() -> bytes:
    _Here.tensors = [_Here.runtime.empty(NUM_BYTES, dtype=torch.uint8)]
    [whole] = _Here.tensors
    return _Here.runtime.expose([whole[100:200], whole[:100]], "rw", name="parts").handle()


def _first_bytes() -> list[int]:
    return [int(tensor[0]) for tensor in _Here.tensors]


def _open(address: bytes, handle: bytes) -> str:
    _Here.peer = _Here.runtime.connect(address)
    _Here.remote = _Here.peer.open(handle)
    return _Here.remote.path


def _write_first(value: int) -> str:
    try:
        _Here.peer.write(_Here.remote[:1], bytes([value])).result(DEADLINE_S)
    except AccessDenied as denied:
        return str(denied)
    return ""


def test_a_stopped_owner_delays_neither_reads_nor_writes(other: Other) -> None:
    with Runtime("initiator") as runtime:
        peer = runtime.connect(other.address)
        remote = peer.open(other.run(_expose, 1))
        assert remote.path == "shared memory"
        other.signal(signal.SIGSTOP)
        source = torch.arange(NUM_BYTES).to(torch.uint8)
        transfer = peer.write(remote, source)
        transfer.result(DEADLINE_S)
        assert transfer.stats().path == "shared memory"
        into = torch.empty_like(source)
        peer.read(remote, into).result(DEADLINE_S)
        assert torch.equal(into, source)
        plan = peer.plan("read", Blocks(into, 4096), Blocks(remote, 4096))
        plan.post([0, 2, 1], [7, 3, 2]).result(DEADLINE_S)
        for local, there in ((0, 7), (2, 3), (1, 2)):
            assert torch.equal(into[local * 4096 :][:4096], source[there * 4096 :][:4096])
        late = peer.write(remote[:1], b"\7", notify=b"written", timeout=0.2)
        with pytest.raises(TimeoutError):  # the owner takes part in the notification
            late.result(DEADLINE_S)
        other.signal(signal.SIGCONT)
        assert other.run(_first_bytes) == [7]
        other.signal(signal.SIGKILL)

        def is_lost() -> bool:  # until its death is noticed, its memory can be read
            failure = peer.read(remote, into).exception(DEADLINE_S)
            assert failure is None or (isinstance(failure, PeerLostError) and "'other'" in str(failure))
            return failure is not None

        until(is_lost)


def test_mapped_blocks_of_a_list_do_not_wait_for_the_owner(other: Other) -> None:
    with Runtime("initiator") as runtime:
        peer = runtime.connect(other.address)
        mapped, plain = (peer.open(handle) for handle in other.run(_expose_both))
        assert mapped.path == "shared memory"
        assert plain.path != "shared memory"
        other.signal(signal.SIGSTOP)
        mixed = peer.writev([plain, *(mapped[i : i + 1] for i in range(50))], [b"12345678", *(b"a" for _ in range(50))])
        into = bytearray(50)
        until(lambda: not peer.read(mapped[:50], into).result(DEADLINE_S) and into == b"a" * 50)
        assert not mixed.done()
        other.signal(signal.SIGCONT)
        mixed.result(DEADLINE_S)
        assert other.run(_first_bytes) == [ord("a"), ord("1")]


def _expose_both() -> list[bytes]:
    _Here.tensors = [_Here.runtime.empty(50, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)]
    return [_Here.runtime.expose(tensor, "rw").handle() for tensor in _Here.tensors]


def test_a_forked_child_changes_nothing_for_its_parents_peers(other: Other) -> None:
    with Runtime("here") as runtime:
        tensor = runtime.empty(8, dtype=torch.uint8)
        region = runtime.expose(tensor, "rw", name="kept")
        assert other.run(_open, runtime.address, region.handle()) == "shared memory"
        child = os.fork()
        if child == 0:
            try:
                tensor[1] = 4
                del tensor, region
                gc.collect()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        assert other.run(_write_first, 5) == ""
        assert tensor[:2].tolist() == [5, 4]
        assert region.close(DEADLINE_S)


def test_a_stopped_initiator_keeps_a_closed_region_and_is_named(other: Other) -> None:
    with Runtime("here") as runtime:
        tensor = runtime.empty(8)
        region = runtime.expose(tensor, "rw", name="kept")
        assert other.run(_open, runtime.address, region.handle()) == "shared memory"
        other.signal(signal.SIGSTOP)
        with pytest.warns(RuntimeWarning, match="region 'kept' of 32 bytes is still held by: other"):
            assert not region.close(0.3)
        other.signal(signal.SIGKILL)
        assert region.close(DEADLINE_S)
        assert region.holders == []


def test_a_closed_region_is_denied_and_unmapped(other: Other) -> None:
    with Runtime("here") as runtime:
        tensor = runtime.empty(8, dtype=torch.uint8)
        region = runtime.expose(tensor, "rw", name="kept")
        again = runtime.expose(tensor, "rw", name="again")
        assert other.run(_open, runtime.address, region.handle()) == "shared memory"
        assert _num_mapped(other.process.pid) == 1
        assert other.run(_write_first, 5) == ""
        assert tensor[0] == 5
        assert region.close(DEADLINE_S)
        assert "region 'kept' is closed" in other.run(_write_first, 6)
        assert tensor[0] == 5
        assert other.run(_open, runtime.address, again.handle()) == "shared memory"
        assert other.run(_write_first, 7) == ""
        assert tensor[0] == 7
        assert _num_mapped(other.process.pid) == 1
        assert again.close(DEADLINE_S)
        assert _num_mapped(other.process.pid) == 0  # although it has the Remote


def _add_to_memory(value: float) -> None:
    _Here.tensors = [_Here.remote.tensor(torch.float32, (2, -1))]
    _Here.tensors[0] += value


def _forget_tensors() -> None:
    _Here.tensors = []
    gc.collect()


def test_the_memory_itself_is_a_tensor_of_both_processes(other: Other) -> None:
    with Runtime("here") as runtime:
        tensor = runtime.empty(6).fill_(1)
        region = runtime.expose(tensor, "rw", name="shared")
        assert other.run(_open, runtime.address, region.handle(8)) == "shared memory"
        other.run(_add_to_memory, 2)
        assert tensor.tolist() == [1, 1, 3, 3, 3, 3]
        with pytest.warns(RuntimeWarning, match="region 'shared' of 24 bytes is still held by: other"):
            assert not region.close(0.3)
        other.run(_forget_tensors)
        assert region.close(DEADLINE_S)


def test_an_initiator_that_is_closed_keeps_the_memory_of_its_tensors(other: Other) -> None:
    with Runtime("initiator") as runtime:
        tensor = runtime.connect(other.address).open(other.run(_expose, 1)).tensor()
    tensor[0] = 9
    assert other.run(_first_bytes) == [9]
    assert not other.run(_close_own_region, 0.3)
    del tensor
    gc.collect()
    assert other.run(_close_own_region, DEADLINE_S)


def _close_own_region(timeout: float) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Here.region.close(timeout)


def test_memory_that_is_no_tensor_is_refused(other: Other) -> None:
    with Runtime("initiator") as runtime:
        peer = runtime.connect(other.address)
        several = peer.open(other.run(_expose, 2))
        with pytest.raises(ValueError, match=r"path of region 'cache' is '(cma|messages)'; allowed: 'shared memory'"):
            several.tensor()
        parts = peer.open(other.run(_expose_parts))
        assert parts[:100].tensor().shape == (100,)
        with pytest.raises(ValueError, match="offset 99 and 2 bytes are not in one part of region 'parts'"):
            parts[99:101].tensor()
        with pytest.raises(ValueError, match="the memory is not aligned to 4 bytes; allowed for torch"):
            parts[1:5].tensor(torch.float32)
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            parts[:8].tensor(torch.float32, (3,))
        readable = peer.open(other.run(_expose_readable))
        with pytest.raises(ValueError, match="tensor: access is 'r'; allowed: 'rw'"):
            readable.tensor()


def _expose_readable() -> bytes:
    _Here.tensors = [_Here.runtime.empty(8)]
    return _Here.runtime.expose(_Here.tensors, "r").handle()


def test_parts_of_one_allocation_are_mapped_and_those_of_several_are_not(other: Other) -> None:
    with Runtime("initiator") as runtime:
        peer = runtime.connect(other.address)
        several = peer.open(other.run(_expose, 2))
        assert several.path != "shared memory"
        peer.write(several[NUM_BYTES - 1 : NUM_BYTES + 1], b"\1\2").result(DEADLINE_S)
        assert other.run(_first_bytes) == [0, 2]
        parts = peer.open(other.run(_expose_parts))
        assert parts.path == "shared memory"
        peer.write(parts[99:101], b"\1\2").result(DEADLINE_S)
        assert other.run(_first_bytes) == [2]


def _expose_many() -> list[bytes]:
    _Here.tensors = [_Here.runtime.empty(8, dtype=torch.uint8)]
    return [_Here.runtime.expose(_Here.tensors[0], "rw").handle() for _ in range(513)]


def test_regions_beyond_the_flags_of_an_allocation_take_another_path(other: Other) -> None:
    with Runtime("initiator") as runtime:
        peer = runtime.connect(other.address)
        remotes = [peer.open(handle) for handle in other.run(_expose_many)]
        assert [remote.path == "shared memory" for remote in remotes] == [True] * 511 + [False] * 2
        for number, remote in enumerate(remotes):
            peer.write(remote[:1], bytes([number % 256])).result(DEADLINE_S)
            assert other.run(_first_bytes) == [number % 256]


@pytest.mark.parametrize("without_rings", [("owner",), ("initiator",), ("owner", "initiator")])
def test_without_rings_nothing_is_mapped(without_rings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    others = {}
    for role in ("owner", "initiator"):
        monkeypatch.setenv("AXON_TRANSPORTS", "rails" if role in without_rings else "auto,rings,cma")
        others[role] = Other()
    owner, initiator = others.values()
    try:
        handle = owner.run(_expose, 1)
        assert initiator.run(_open, owner.address, handle) != "shared memory"
        assert initiator.run(_write_first, 3) == ""
        assert owner.run(_first_bytes) == [3]
    finally:
        owner.close()
        initiator.close()
