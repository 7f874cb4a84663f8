"""One-sided transfers with processes that are stopped and killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch

from support.other_process import OtherProcess
from support.waiting import DEADLINE_S
from torch_axon.runtime import Peer, PeerLostError, Remote, Runtime, RuntimeClosedError

NUM_BYTES = 3_000_001


class _Here:
    """What a process of these tests keeps between its tasks."""

    server: Peer
    remote: Remote


def _own(pipe: Connection) -> None:
    with Runtime("owner") as runtime:
        region = runtime.expose(np.zeros(NUM_BYTES, dtype=np.uint8), "rw", name="cache")
        pipe.send((runtime.address, region.handle()))
        while pipe.poll(None) and (task := pipe.recv()):
            pipe.send(_open_of(runtime, task))
    pipe.send(None)


def _open_of(runtime: Runtime, task: tuple[bytes, bytes]) -> str:
    address, handle = task
    _Here.server = runtime.connect(address)
    _Here.remote = _Here.server.open(handle)
    return _Here.remote.path


class Other(OtherProcess):
    """A process that owns a region."""

    def __init__(self) -> None:
        super().__init__(_own)
        self.address, self.handle = self.pipe.recv()


@pytest.fixture
def other() -> Iterator[Other]:
    other = Other()
    yield other
    other.close()


def test_transfers_with_a_killed_owner_fail_with_its_name(other: Other) -> None:
    with Runtime("initiator") as runtime:
        peer = runtime.connect(other.address)
        remote = peer.open(other.handle)
        other.signal(signal.SIGSTOP)
        source = torch.ones(NUM_BYTES, dtype=torch.uint8)
        writes = [peer.write(remote, source, notify=b"n") for _ in range(20)]
        assert not any(write.done() for write in writes)
        other.signal(signal.SIGKILL)
        for write in writes:
            with pytest.raises(PeerLostError, match="'owner': the write of 3000001 bytes of region 'cache' failed"):
                write.result(DEADLINE_S)
        with pytest.raises(PeerLostError):
            peer.read(remote, source).result(DEADLINE_S)
        until = time.monotonic() + DEADLINE_S
        while not all(write.released for write in writes):
            assert time.monotonic() < until


def test_a_stopped_owner_delays_writes_only(other: Other) -> None:
    with Runtime("initiator") as runtime:
        peer = runtime.connect(other.address)
        remote = peer.open(other.handle)
        other.signal(signal.SIGSTOP)
        into = torch.ones(NUM_BYTES, dtype=torch.uint8)
        if remote.path == "cma":
            peer.read(remote, into).result(DEADLINE_S)
            assert into.sum() == 0
        patient = peer.write(remote[:10], bytes(10))
        for wait in (patient.wait, patient.result, patient.exception):
            with pytest.raises(TimeoutError, match=r"no answer from 'owner' within 0\.01 s of waiting"):
                wait(0.01)
        assert not patient.done()
        late = peer.write(remote, torch.ones(NUM_BYTES, dtype=torch.uint8), timeout=0.2)
        with pytest.raises(TimeoutError, match="'owner' has not finished the write of 3000001 bytes of region 'cache'"):
            late.result(DEADLINE_S)
        assert not late.released  # the owner may still fetch the bytes
        given_up = peer.write(remote[:10], bytes(10))
        assert given_up.cancel()
        with pytest.raises(CancelledError, match="'owner': the write of 10 bytes of region 'cache' was cancelled"):
            given_up.result(DEADLINE_S)
        other.signal(signal.SIGCONT)
        patient.result(DEADLINE_S)
        until = time.monotonic() + DEADLINE_S
        while not late.released:
            assert time.monotonic() < until
        peer.write(remote[:10], b"0123456789").result(DEADLINE_S)
        here = bytearray(10)
        peer.read(remote[:10], here).result(DEADLINE_S)
        assert here == b"0123456789"


def test_memory_of_another_peer_is_refused() -> None:
    with Runtime("initiator") as runtime, Runtime("first") as first, Runtime("second") as second:
        owner, other = (runtime.connect(each.address) for each in (first, second))
        remote = owner.open(first.expose(torch.zeros(4)).handle())
        for post in (lambda: other.read(remote, bytearray(16)), lambda: other.readv([remote], [bytearray(16)])):
            with pytest.raises(ValueError, match="read: remote was opened with another peer"):
                post()


def test_a_stopped_reader_keeps_a_closed_region_and_is_named(other: Other) -> None:
    with Runtime("here") as runtime:
        region = runtime.expose(torch.ones(NUM_BYTES), name="kept")
        other.pipe.send((runtime.address, region.handle()))
        if other.pipe.recv() != "cma":
            pytest.skip("this kernel does not let processes read each other's memory")
        other.signal(signal.SIGSTOP)
        with pytest.warns(RuntimeWarning, match="region 'kept' of 12000004 bytes is still held by: owner"):
            assert not region.close(0.3)
        assert region.holders == ["owner"]
        other.signal(signal.SIGKILL)
        assert region.close(DEADLINE_S)
        assert region.holders == []


def test_memory_is_released_after_a_close_that_did_not_wait(other: Other) -> None:
    runtime = Runtime("here")
    region = runtime.expose(torch.ones(NUM_BYTES), name="kept")
    other.pipe.send((runtime.address, region.handle()))
    path = other.pipe.recv()
    other.signal(signal.SIGSTOP)
    runtime.close(drain=False)
    assert region.close(0) == (path != "cma")
    other.signal(signal.SIGCONT)
    assert region.close(DEADLINE_S)
    assert region.holders == []


def test_memory_is_released_after_a_peer_was_closed_at_once(other: Other) -> None:
    peers: list[Peer] = []
    with Runtime("here") as runtime:
        runtime.on_peer_connected(peers.append)
        region = runtime.expose(torch.ones(NUM_BYTES), name="kept")
        other.pipe.send((runtime.address, region.handle()))
        other.pipe.recv()
        peers[0].close(drain=False)
        assert region.close(DEADLINE_S)


def test_a_region_is_not_closed_with_a_wrong_timeout() -> None:
    with Runtime("owner") as owner, Runtime("reader") as reader:
        region = owner.expose(np.arange(8, dtype=np.uint8))
        with pytest.raises(ValueError, match="timeout is -1"):
            region.close(-1)
        remote = reader.connect(owner.address).open(region.handle())
        assert remote.nbytes == 8


def test_a_forked_child_exposes_and_awaits_nothing() -> None:
    with Runtime("parent") as runtime:
        region = runtime.expose(np.zeros(8, dtype=np.uint8))
        pid = os.fork()
        if pid == 0:
            is_right = region.holders == []
            try:
                runtime.expose(np.zeros(8, dtype=np.uint8))
                is_right = False
            except RuntimeClosedError:
                pass
            region.close(0)
            os._exit(0 if is_right else 1)
        deadline = time.monotonic() + DEADLINE_S
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended == (0, 0):
            os.kill(pid, signal.SIGKILL)
        assert ended == (pid, 0)
        assert region.close()
