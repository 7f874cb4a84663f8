"""CUDA tensors in calls between runtimes: they arrive on CUDA unless told otherwise."""

from __future__ import annotations

import pytest
import torch

from torch_axon.runtime import Peer

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
