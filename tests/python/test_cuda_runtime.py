"""CUDA tensors in calls between runtimes: they arrive on CUDA unless told otherwise."""

from __future__ import annotations

import pytest
import torch

from torch_axon.runtime import Memory, Peer, Pool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("size", [0, 16, 5_000, 3_000_000])
def test_cuda_tensors_come_back_on_cuda(peer: Peer, size: int) -> None:
    sent = torch.arange(size, device="cuda")
    came = peer.invoke("echo", sent).result()
    assert came.device == sent.device
    assert torch.equal(came, sent)


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
        tensor.fill_(8)  # behind the copy
    assert torch.equal(call.result().cpu(), torch.full((1_000_000,), 7.0))


def test_what_has_come_is_there_for_the_receivers_stream(peer: Peer) -> None:
    sent = torch.arange(3_000_000, device="cuda")
    for _ in range(5):
        with torch.cuda.stream(torch.cuda.Stream()):
            came = peer.invoke("echo", sent).result()
            assert int((came + 1).sum()) == int((torch.arange(3_000_000) + 1).sum())


@pytest.mark.parametrize("size", [16, 5_000, 3_000_000])
def test_tensors_on_cuda_may_be_handed_out(peer: Peer, size: int) -> None:
    where = torch.zeros(size, dtype=torch.int64, device="cuda")
    for sent in (torch.arange(size), torch.arange(size, device="cuda")):
        where.zero_()
        came = peer.invoke("echo", sent, memory=lambda coming: [where]).result()
        assert came is where
        assert torch.equal(came.cpu(), sent.cpu())


def test_pools_of_pinned_memory(peer: Peer) -> None:
    pool = Pool(1 << 26, pinned=True)
    sent = torch.arange(1_000_000, device="cuda")
    came = peer.invoke("echo", sent, memory=pool).result()
    assert came.is_pinned()
    assert torch.equal(came, sent.cpu())


def test_memory_of_a_device_that_is_there_is_not_given_up(peer: Peer) -> None:
    came = peer.invoke("echo", torch.arange(10_000), memory=Memory("cuda:0", strict=False)).result()
    assert came.device == torch.device("cuda:0")
