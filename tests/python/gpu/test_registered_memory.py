"""Memory that every peer can map: `torch.cuda.MemPool(backend.mem_allocator)`, `allocate_tensor`, DDP's buckets."""

from __future__ import annotations

import gc
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from support.devices import on
from support.gpu import backend_of, check_direct, exercise, meet, until_direct
from support.pool import RankPool
from support.reference import failure, same_bits

NUM_BYTES = 48 << 20


def _without_a_gpu() -> tuple[str, str, bool]:
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    return (
        failure(lambda: backend.mem_allocator),
        failure(lambda: backend.allocate_tensor(10, dtype=torch.float32, device=torch.device("cpu"))),
        backend.supports_tensor_alloc(torch.device("cuda:0")),
    )


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
def test_without_a_gpu_there_is_none(two_ranks: RankPool) -> None:
    for of_property, of_call, is_supported in two_ranks.run(_without_a_gpu):
        assert "ValueError" in of_property
        assert "allowed: a CUDA device" in of_property
        assert "ValueError" in of_call
        assert "cpu" in of_call
        assert not is_supported


def _in_a_pool() -> None:
    """Each of many calls runs zero-copy; then all memory returns to the GPU."""
    dist.all_reduce(torch.ones(1))
    meet()
    pool = torch.cuda.MemPool(backend_of().mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        works = [exercise(name, NUM_BYTES) for name in ("all_reduce", "reduce_scatter", "all_gather", "gather")]
    for work in works:
        check_direct(work, num_turns=5)


@on("cuda")
def test_a_pool_of_registered_memory(ranks: RankPool) -> None:
    for _ in range(3):
        ranks.run(_in_a_pool)


def _come_and_go() -> None:
    """Pools are created and destroyed; the GPU gets their memory back."""
    free = 0
    for turn in range(20):
        pool = torch.cuda.MemPool(backend_of().mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            data = torch.full((32 << 20,), dist.get_rank() + turn, dtype=torch.int64)
        dist.all_reduce(data)
        total = sum(range(turn, turn + dist.get_world_size()))
        assert int((data != total).sum()) == 0
        del data, pool
        gc.collect()
        torch.cuda.empty_cache()
        meet()
        if turn == 4:
            free = torch.cuda.mem_get_info()[0]
    assert torch.cuda.mem_get_info()[0] > free - (600 << 20)  # peers may still map a few


@on("cuda")
def test_pools_come_and_go(two_ranks: RankPool) -> None:
    two_ranks.run(_come_and_go, timeout_s=200)  # ranks that share a GPU take seconds for operations through the arena


def _one_tensor() -> None:
    backend, device = backend_of(), torch.device("cuda", torch.cuda.current_device())
    assert backend.supports_tensor_alloc(device)
    for dtype in (torch.bfloat16, torch.int64):
        data = backend.allocate_tensor(NUM_BYTES // dtype.itemsize, dtype=dtype, device=device)
        assert (data.dtype, data.device, data.numel()) == (dtype, device, NUM_BYTES // dtype.itemsize)
        until_direct(dist.all_reduce, data)
        dist.all_reduce(data.fill_(dist.get_rank() + 1))
        same_bits(data, torch.full_like(data, sum(range(1, dist.get_world_size() + 1))))


@on("cuda")
def test_single_tensors_of_registered_memory(two_ranks: RankPool) -> None:
    two_ranks.run(_one_tensor)


def _too_much() -> None:
    pool = torch.cuda.MemPool(backend_of().mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        message = failure(lambda: torch.empty(1 << 50, dtype=torch.uint8))
    assert "OutOfMemoryError" in message
    data = torch.ones(1000)
    dist.all_reduce(data)
    same_bits(data, torch.full((1000,), float(dist.get_world_size())))


@on("cuda")
def test_more_than_the_gpu_has(two_ranks: RankPool) -> None:
    two_ranks.run(_too_much)


def _ddp() -> None:
    """DDP's buckets are in registered memory: the result is still the mean of all ranks' gradients."""
    os.environ["DDP_DISABLE_COMM_MEM"] = "0"
    try:
        torch.manual_seed(3)
        model = nn.Linear(1024, 4096, bias=False, device=torch.get_default_device())
        parallel = nn.parallel.DistributedDataParallel(model)
        for step in range(3):
            parallel.zero_grad()
            inputs = torch.full((4, 1024), float(dist.get_rank() + step))
            parallel(inputs).sum().backward()
            mean = sum(range(step, step + dist.get_world_size())) / dist.get_world_size()
            assert model.weight.grad is not None
            torch.testing.assert_close(model.weight.grad, torch.full((4096, 1024), 4 * mean))
    finally:
        del os.environ["DDP_DISABLE_COMM_MEM"]


@on("cuda")
def test_ddp_with_buckets_of_registered_memory(two_ranks: RankPool) -> None:
    two_ranks.run(_ddp)
