"""CUDA tensors in calls between runtimes: they arrive on CUDA unless the call says otherwise.

The receiver reads them zero-copy from the sender's memory, or they go through the host.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from support import without_tracing
from support.processes import environment
from support.runtime_clients import PROGRAMS, Server
from torch_axon.runtime import Memory, Peer, PeerLostError, Pool, Runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

DEADLINE_S = 30


def meet(peer: Peer) -> None:
    """Waits until both ends use zero-copy gets: the first tensors go through the host and negotiate that."""
    deadline = time.monotonic() + DEADLINE_S
    while peer._connection.gpus_read_by_peer == 0:
        assert time.monotonic() < deadline, "the server has not said which GPUs it reads"
        peer.invoke("echo", torch.zeros(10_000, device="cuda")).result()
    peer.invoke("echo", torch.zeros(10_000, device="cuda")).result()


@contextmanager
def exposing(runtime: Runtime, **settings: str) -> Iterator[tuple[Server, Peer]]:
    server = Server(**settings)
    peer = runtime.connect(server.address)
    meet(peer)
    yield server, peer
    server.close()


@contextmanager
def not_exposing(runtime: Runtime, *prefix: str, **settings: str) -> Iterator[Peer]:
    server = Server(*prefix, **settings)
    peer = runtime.connect(server.address)
    yield peer
    assert peer._connection.gpus_read_by_peer == 0
    server.close()


@pytest.fixture(scope="module", params=["exposed", "through the host"])
def peer(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[Peer]:
    if request.param == "exposed":
        with exposing(runtime) as (_, peer):
            yield peer
    else:
        with not_exposing(runtime, AXON_TRANSPORTS="rails") as peer:
            yield peer


@pytest.mark.parametrize("size", [0, 16, 512, 513, 5_000, 3_000_000])
def test_cuda_tensors_come_back_on_cuda(peer: Peer, size: int) -> None:
    sent = torch.arange(size, device="cuda")
    came = peer.invoke("echo", sent).result()
    assert came.device == sent.device
    assert torch.equal(came, sent)


def test_views_of_any_offset(peer: Peer) -> None:
    whole = torch.arange(1_000_000, dtype=torch.int16, device="cuda")
    for view in (
        whole[1:],
        whole[77:9_000],
        whole[2::3],
        whole.reshape(1000, 1000).t(),
        whole[500_000:].to(torch.float64),
    ):
        assert torch.equal(peer.invoke("echo", view).result(), view)


def test_many_tensors_of_all_kinds_in_one_call(peer: Peer) -> None:
    sent = [torch.arange(n * 1000, device=device) for n in range(40) for device in ("cpu", "cuda")]
    came = peer.invoke("echo", *sent).result()
    assert [tensor.device for tensor in came] == [tensor.device for tensor in sent]
    assert all(torch.equal(one, other) for one, other in zip(came, sent, strict=True))


def test_memory_says_where_answers_arrive(peer: Peer) -> None:
    on_host, on_device = torch.arange(10_000), torch.arange(10_000, device="cuda").reshape(100, 100).t()
    for memory in ("cpu", "cuda:0"):
        came = peer.invoke("echo", on_host, on_device, memory=memory).result()
        assert [tensor.device for tensor in came] == [torch.device(memory)] * 2
        assert torch.equal(came[0].cpu(), on_host)
        assert torch.equal(came[1].cpu(), on_device.cpu())


def test_what_is_sent_is_what_the_senders_stream_has_made_by_then(peer: Peer) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = torch.zeros(1_000_000, device="cuda")
        torch.cuda._sleep(200_000_000)  # some 0.1 s
        tensor.fill_(7)
        call = peer.invoke("echo", tensor)
    assert torch.equal(call.result().cpu(), torch.full((1_000_000,), 7.0))


def test_what_is_answered_is_what_the_servers_stream_has_made_by_then(peer: Peer) -> None:
    for value in range(3):
        came = peer.invoke("filled_later", float(value), 1_000_000).result()
        assert torch.equal(came.cpu(), torch.full((1_000_000,), float(value)))


def test_what_has_arrived_is_there_for_the_receivers_stream(peer: Peer) -> None:
    sent = torch.arange(3_000_000, device="cuda")
    torch.cuda.synchronize()  # it is sent from other streams than the one that makes it
    for _ in range(5):
        with torch.cuda.stream(torch.cuda.Stream()):
            came = peer.invoke("echo", sent).result()
            assert int((came + 1).sum()) == int((torch.arange(3_000_000) + 1).sum())


def test_memory_may_be_used_again_once_its_call_is_done(peer: Peer) -> None:
    tensor = torch.empty(1_000_000, device="cuda")
    for value in range(50):
        peer.invoke("keep", tensor.fill_(value)).result()
    assert peer.invoke("sums_of_kept").result() == [value * 1_000_000.0 for value in range(50)]


def test_memory_may_be_used_again_though_the_receivers_stream_is_busy(peer: Peer) -> None:
    tensor = torch.ones(1_000_000, device="cuda")
    assert peer.invoke("keep", tensor).result() is None
    assert peer.invoke("sums_of_kept").result() == [1e6]  # from here on gets are zero-copy, and streams are warm
    for _ in range(3):
        peer.invoke("keep_busy").result()
        peer.invoke("keep", tensor.fill_(2)).result()
        tensor.fill_(3)
        torch.cuda.synchronize()
        assert peer.invoke("sums_of_kept").result() == [2e6]


@pytest.mark.parametrize("size", [16, 5_000, 3_000_000])
def test_tensors_on_cuda_may_be_handed_out(peer: Peer, size: int) -> None:
    where = torch.zeros(size, dtype=torch.int64, device="cuda")
    for sent in (torch.arange(size), torch.arange(size, device="cuda")):
        where.zero_()
        came = peer.invoke("echo", sent, memory=lambda coming: [where]).result()
        assert came is where
        assert torch.equal(came.cpu(), sent.cpu())


def test_tensors_on_the_host_may_be_handed_out_for_those_on_cuda(peer: Peer) -> None:
    where = torch.zeros(5_000, dtype=torch.int64)
    sent = torch.arange(5_000, device="cuda")
    assert peer.invoke("echo", sent, memory=lambda coming: [where]).result() is where
    assert torch.equal(where, sent.cpu())


def test_pools_of_pinned_memory(peer: Peer) -> None:
    pool = Pool(1 << 26, pinned=True)
    sent = torch.arange(1_000_000, device="cuda")
    came = peer.invoke("echo", sent, memory=pool).result()
    assert came.is_pinned()
    assert torch.equal(came, sent.cpu())


def test_memory_of_a_device_that_is_there_is_not_given_up(peer: Peer) -> None:
    came = peer.invoke("echo", torch.arange(10_000), memory=Memory("cuda:0", strict=False)).result()
    assert came.device == torch.device("cuda:0")


def test_what_is_being_captured_cannot_be_sent(peer: Peer) -> None:
    tensor, stream = torch.ones(10_000, device="cuda"), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream), pytest.raises(RuntimeError, match="captured into a CUDA graph"):
        peer.invoke("echo", tensor)
    assert torch.equal(peer.invoke("echo", tensor).result(), tensor)


def test_exposed_tensors_are_not_received_while_a_graph_is_captured(runtime: Runtime) -> None:
    """The error ends the call, but neither the capture nor the zero-copy gets."""
    with exposing(runtime) as (_, peer):
        sent, stream = torch.arange(100_000, device="cuda"), torch.cuda.Stream()
        call = peer.invoke("echo", sent)
        call._call.wait(DEADLINE_S)
        made, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            with pytest.raises(RuntimeError, match="captured into a CUDA graph"):
                call.result()
            made += 1
        graph.replay()
        assert made.item() == 1
        assert torch.equal(peer.invoke("echo", sent).result(), sent)


needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@needs_two_gpus
def test_tensors_of_two_gpus_that_are_still_being_made(peer: Peer) -> None:
    sent = []
    for gpu in (0, 1, 0):
        with torch.cuda.device(gpu):
            torch.cuda._sleep(100_000_000)
            sent.append(torch.full((1_000_000,), gpu + 3, device="cuda"))
    came = peer.invoke("echo", *sent).result()
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(came, sent, strict=True))


@needs_two_gpus
def test_tensors_may_arrive_on_another_gpu(peer: Peer) -> None:
    for gpu in (0, 1):
        sent = torch.arange(3_000_000, device=f"cuda:{gpu}")
        came = peer.invoke("echo", sent, memory=f"cuda:{1 - gpu}").result()
        assert came.device.index == 1 - gpu
        assert torch.equal(came.cpu(), sent.cpu())


def _settled(memory: int) -> bool:
    """Returns whether GPU memory in use soon falls to this; exposed memory is freed a moment after its call."""
    deadline = time.monotonic() + DEADLINE_S
    while torch.cuda.memory_allocated() > memory and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return torch.cuda.memory_allocated() <= memory


def test_exposed_memory_is_given_back(peer: Peer) -> None:
    before, before_there = torch.cuda.memory_allocated(), peer.invoke("gpu_memory").result()
    peer.invoke("keep", torch.ones(1_000_000, device="cuda")).result()
    assert peer.invoke("sums_of_kept").result() == [1e6]
    unread = [peer.invoke("echo", torch.ones(1_000_000, device="cuda")) for _ in range(10)]
    for call in unread:
        call._call.wait(DEADLINE_S)
    del unread, call
    assert _settled(before)
    deadline = time.monotonic() + DEADLINE_S
    while peer.invoke("gpu_memory").result() > before_there and time.monotonic() < deadline:
        time.sleep(0.01)
    assert peer.invoke("gpu_memory").result() <= before_there


def test_memory_that_was_freed_and_allocated_anew(peer: Peer) -> None:
    for value in range(10):
        sent = torch.full((30_000_000 + value,), value, dtype=torch.uint8, device="cuda")
        assert torch.equal(peer.invoke("echo", sent).result(), sent)
        del sent
        torch.cuda.empty_cache()


@pytest.mark.parametrize("allocator", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_servers_with_other_allocators(runtime: Runtime, allocator: str) -> None:
    """Other processes cannot map the latter's memory, which therefore goes through the host."""
    with exposing(runtime, PYTORCH_ALLOC_CONF=allocator) as (_, peer):
        for size in (10_000, 3_000_000, 50_000_000):
            sent = torch.arange(size, dtype=torch.int32, device="cuda")
            assert torch.equal(peer.invoke("echo", sent).result(), sent)
            assert torch.equal(peer.invoke("scale", sent, factor=3).result(), sent * 3)


def _keep_calling(peer: Peer) -> None:
    while True:
        peer.invoke("keep", torch.ones(3_000_000, device="cuda")).result()


def test_nothing_is_exposed_to_peers_that_may_not_read_it(runtime: Runtime) -> None:
    with not_exposing(runtime, sys.executable, without_tracing.__file__) as peer:
        for _ in range(5):
            sent = torch.arange(1_000_000, device="cuda")
            assert torch.equal(peer.invoke("echo", sent).result(), sent)


def test_a_server_that_dies_takes_only_its_own_calls_along(runtime: Runtime) -> None:
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        with exposing(runtime) as (server, peer):
            kept = peer.invoke("echo", torch.arange(3_000_000, device="cuda")).result()
            peer.tell("die")
            with pytest.raises(PeerLostError):
                _keep_calling(peer)
            server.process.wait(DEADLINE_S)
            assert torch.equal(kept, torch.arange(3_000_000, device="cuda"))
            del kept
    assert _settled(before)


def test_a_caller_that_dies_holds_up_no_other(runtime: Runtime) -> None:
    """Its calls wait in the server, with tensors whose process has died."""
    is_called, go_on = threading.Event(), threading.Event()
    with Runtime("server") as server:

        @server.register
        def take(tensor: torch.Tensor) -> None:
            is_called.set()
            go_on.wait(DEADLINE_S)

        server.register("echo")(lambda value: value)
        exposer = subprocess.Popen(
            [sys.executable, str(PROGRAMS), "exposes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert exposer.stdin is not None
        assert exposer.stdout is not None
        print(server.address.hex(), file=exposer.stdin, flush=True)
        assert exposer.stdout.readline() == "exposed\n"
        assert is_called.wait(DEADLINE_S)
        exposer.kill()
        exposer.communicate(timeout=DEADLINE_S)
        go_on.set()
        assert runtime.connect(server.address).invoke("echo", 1).result() == 1


def test_exposing_takes_nothing_that_stays(runtime: Runtime) -> None:
    with exposing(runtime) as (_, peer):
        sent = torch.ones(1_000_000, device="cuda")
        peer.invoke("echo", sent).result()
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            peer.invoke("echo", sent).result()
        assert len(os.listdir("/proc/self/fd")) <= descriptors
