"""CUDA tensors between hosts: their segments pass through host memory, while kernels serve the ranks of a host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.gpu import exercise_all
from support.hosts import run_on_hosts
from support.reference import case, failure, same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")]

MIB = 1 << 20


def _join(store: str, rank: int, size: int, settings: dict[str, str]) -> None:
    os.environ.update(settings)
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=size)


def _exchange_everything(store: str, rank: int, size: int, sizes: Sequence[int], settings: dict[str, str]) -> None:
    _join(store, rank, size, settings)
    exercise_all(*sizes)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("num_local", [(1, 1), (2, 2), (1, 2), (1, 1, 1)], ids=["1+1", "2+2", "1+2", "1+1+1"])
def test_every_operation_between_hosts(num_local: Sequence[int], tmp_path: Path) -> None:
    run_on_hosts(num_local, tmp_path / "store", _exchange_everything, (8, 100_000, 33 * MIB), {})


def test_every_operation_between_hosts_without_rails(tmp_path: Path) -> None:
    run_on_hosts((2, 2), tmp_path / "store", _exchange_everything, (8, 33 * MIB), {"AXON_RAILS": "0"})


def _reduce_every_type(store: str, rank: int, size: int) -> None:
    """Adds up powers of two, exactly in any order; an average over three ranks is rounded."""
    _join(store, rank, size, {})
    total = 2**size - 1
    reductions = {
        "sum": (dist.ReduceOp.SUM, float(total)),
        "max": (dist.ReduceOp.MAX, 2.0 ** (size - 1)),
        "average": (dist.ReduceOp.AVG, total / size),
        "premul_sum": (dist._make_nccl_premul_sum(0.5), total / 2),
    }
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32):
        for name, (op, expected) in reductions.items():
            if not dtype.is_floating_point and name not in ("sum", "max"):
                continue
            for count in (1, 1003, 3 * MIB + 5):
                with case(dtype=dtype, op=name, count=count):
                    wanted = torch.full((count,), expected, dtype=dtype)
                    tensor = torch.full((count,), 2**rank).to(dtype)
                    dist.all_reduce(tensor, op=op)
                    torch.testing.assert_close(tensor, wanted)
                    shard = torch.empty(count, dtype=dtype)
                    misaligned = torch.full((count * size + 1,), 2**rank).to(dtype)[1:]
                    dist.reduce_scatter_tensor(shard, misaligned, op=op)
                    torch.testing.assert_close(shard, wanted)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("num_local", [(1, 1), (2, 2), (1, 1, 1), (1, 2)], ids=["1+1", "2+2", "1+1+1", "1+2"])
def test_reductions_of_every_type_between_hosts(num_local: Sequence[int], tmp_path: Path) -> None:
    run_on_hosts(num_local, tmp_path / "store", _reduce_every_type)


def _pass_messages(store: str, rank: int, size: int) -> None:
    _join(store, rank, size, {})
    other = 1 - rank
    for count in (1, 3 * MIB + 1, 21 * MIB):
        mine = torch.arange(count, dtype=torch.int32) + rank
        theirs = torch.arange(count, dtype=torch.int32) + other
        for tag in (0, 5):
            received = torch.zeros_like(mine)
            works = [dist.isend(mine, other, tag=tag), dist.irecv(received, other, tag=tag)]
            for work in works:
                work.wait()
            same_bits(received, theirs)
        # Batches that list the messages in different orders.
        buffers = [torch.zeros_like(mine) for _ in range(3)]
        sends = [dist.P2POp(dist.isend, mine * factor, other, tag=factor) for factor in (1, 2, 3)]
        receives = [dist.P2POp(dist.irecv, buffers[factor - 1], other, tag=factor) for factor in (3, 1, 2)]
        for work in dist.batch_isend_irecv(sends + receives if rank == 0 else receives + sends):
            work.wait()
        for factor in (1, 2, 3):
            same_bits(buffers[factor - 1], theirs * factor)
    dist.barrier()
    dist.destroy_process_group()


def test_messages_between_hosts_of_any_length_and_order(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _pass_messages)


def _exchange_unevenly(store: str, rank: int, size: int) -> None:
    """One pair of ranks exchanges several segments, and the others exchange one or nothing."""
    _join(store, rank, size, {})
    counts = [
        [9 * MIB if (source, target) == (0, 1) else source * target for target in range(size)] for source in range(size)
    ]
    inputs = [torch.full((count,), rank * 10 + target, dtype=torch.int32) for target, count in enumerate(counts[rank])]
    outputs = [torch.zeros(counts[source][rank], dtype=torch.int32) for source in range(size)]
    dist.all_to_all(outputs, inputs)
    for source, output in enumerate(outputs):
        same_bits(output, torch.full_like(output, source * 10 + rank))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("num_local", [(1, 1), (2, 2)], ids=["1+1", "2+2"])
def test_an_uneven_all_to_all_between_hosts(num_local: Sequence[int], tmp_path: Path) -> None:
    run_on_hosts(num_local, tmp_path / "store", _exchange_unevenly)


def _send_around_in_batches(store: str, rank: int, size: int) -> None:
    """Each rank sends two long tensors to the next one, and lists its messages so that no order of pairs is free."""
    _join(store, rank, size, {})
    following, preceding = (rank + 1) % size, (rank - 1) % size
    keys, values = torch.full((6 * MIB,), rank + 1.0), torch.full((6 * MIB,), rank + 10.0)
    their_keys, their_values = torch.zeros_like(keys), torch.zeros_like(values)
    batch = [
        dist.P2POp(dist.isend, keys, following),
        dist.P2POp(dist.irecv, their_keys, preceding),
        dist.P2POp(dist.irecv, their_values, preceding),
        dist.P2POp(dist.isend, values, following),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same_bits(their_keys, torch.full_like(keys, preceding + 1.0))
    same_bits(their_values, torch.full_like(values, preceding + 10.0))
    dist.barrier()
    dist.destroy_process_group()


def test_batches_around_a_ring_of_hosts(tmp_path: Path) -> None:
    run_on_hosts((1, 1, 1), tmp_path / "store", _send_around_in_batches)


def _mix_devices(store: str, rank: int, size: int) -> None:
    _join(store, rank, size, {})
    other = 1 - rank
    for count in (1, 1000, 5 * MIB):
        for tag in (0, 7):
            for sending_device, receiving_device in (("cpu", "cuda"), ("cuda", "cpu")):
                data = torch.arange(count, dtype=torch.int32, device=sending_device if rank == 0 else receiving_device)
                if rank == 0:
                    dist.send(data, other, tag=tag)
                else:
                    received = torch.zeros_like(data)
                    dist.recv(received, other, tag=tag)
                    same_bits(received, data)
    dist.barrier()
    dist.destroy_process_group()


def test_messages_between_hosts_go_from_one_kind_of_memory_to_the_other(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _mix_devices)


def _wait_beside_others(store: str, rank: int, size: int) -> None:
    _join(store, rank, size, {})
    other = 1 - rank
    late = torch.zeros(MIB)
    pending = dist.irecv(late, None, tag=7)
    for _ in range(3):
        received = torch.zeros(3 * MIB)
        works = [dist.isend(torch.full((3 * MIB,), rank + 1.0), other, tag=5), dist.irecv(received, other, tag=5)]
        for work in works:
            work.wait()
        same_bits(received, torch.full((3 * MIB,), other + 1.0))
    dist.send(torch.full((MIB,), 9.0), other, tag=7)
    pending.wait()
    same_bits(late, torch.full((MIB,), 9.0))
    dist.barrier()
    dist.destroy_process_group()


def test_a_receive_that_waits_stands_in_no_other_ones_way(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _wait_beside_others)


def _lose_a_rank(store: str, rank: int, size: int) -> None:
    _join(store, rank, size, {})
    dist.all_reduce(torch.ones(8))
    torch.cuda.synchronize()
    if rank == 1:
        os.kill(os.getpid(), 9)
    message = failure(lambda: [dist.all_reduce(torch.ones(64 * MIB)), torch.cuda.synchronize(), dist.barrier()])
    assert "rank 1" in message
    assert int(torch.ones(8, device="cuda").sum()) == 8  # the GPU goes on


def test_a_rank_that_dies_on_another_host_is_named_and_the_gpu_goes_on(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _lose_a_rank, dying=[1])
