"""The order of streams: what an operation waits for, what waits for it, and that the host never waits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from support.devices import on
from support.gpu import busy, enqueue_beside_a_late_host, exercise, meet
from support.pool import RankPool
from support.reference import case, finish, same_bits

pytestmark = on("cuda", "one_connection", "staged")

SIZES = (8, 4096, 1 << 20, 16 << 20)  # bytes
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "ring")


def _between_kernels(name: str) -> None:
    """Pending kernels write the inputs; outputs are read, and inputs overwritten, by kernels right after."""
    stream = torch.cuda.Stream()
    for num_bytes in SIZES:
        for asynchronous in (False, True):
            with case(bytes=num_bytes, asynchronous=asynchronous):
                work = exercise(name, num_bytes)
                torch.cuda.synchronize()
                with torch.cuda.stream(stream):
                    busy(0.02 * (1 + dist.get_rank()))
                    work.fill()
                    finish(work.launch(dist.group.WORLD, asynchronous))
                    wrong = [(buffer != expected).sum() for buffer, expected in work.outputs]
                    for buffer, _ in work.inputs + work.outputs:
                        buffer.fill_(-1)
                stream.synchronize()
                assert sum(int(count) for count in wrong) == 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_runs_between_its_streams_kernels(name: str, two_ranks: RankPool) -> None:
    two_ranks.run(_between_kernels, name)


def _wait_does_not_block() -> None:
    data, scaled = torch.empty(1000), torch.empty(1000)
    for asynchronous in (True, False, True):
        dist.all_reduce(torch.ones(1000), async_op=asynchronous)
        torch.mul(data.fill_(1.0), 2, out=scaled)
        meet()
        started = time.perf_counter()
        busy(1.0)
        data.fill_(dist.get_rank() + 1.0)
        work = dist.all_reduce(data, async_op=asynchronous)
        if work is not None:
            assert not work.is_completed()
            assert work.wait()
        torch.mul(data, 2, out=scaled)
        end = torch.cuda.Event()
        end.record()
        seconds = time.perf_counter() - started
        assert not end.query(), "the stream was not busy for long enough to show anything"
        assert seconds < 0.5
        torch.cuda.synchronize()
        assert work is None or (work.is_completed() and work.is_success())
        total = sum(range(1, dist.get_world_size() + 1))
        same_bits(scaled, torch.full((1000,), 2.0 * total))


def test_neither_a_call_nor_wait_blocks_the_host(ranks: RankPool) -> None:
    ranks.run(_wait_does_not_block)


def _futures() -> None:
    """Chained work runs after the operation, and work that waits for the chain runs after that, on any stream."""
    num_ranks = dist.get_world_size()
    stream = torch.cuda.Stream()
    for step in range(20):
        data = torch.empty(100_000)
        busy(0.005)
        data.fill_(step)
        future = dist.all_reduce(data, async_op=True).get_future()
        halved = future.then(lambda done: [one / 2 for one in done.value()])
        with torch.cuda.stream(stream):
            result = halved.wait()[0]
            twice = result * 2
        assert future.value()[0].data_ptr() == data.data_ptr()
        torch.cuda.current_stream().wait_stream(stream)
        same_bits(twice, torch.full((100_000,), float(step * num_ranks)))


def test_futures_chain_in_the_order_of_streams(ranks: RankPool) -> None:
    ranks.run(_futures)


def _no_thread_waits() -> None:
    """Works are dropped at once, and their inputs' memory is reused."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for size in (1000, 300_000):
        outputs = []
        for step in range(100):
            source = torch.full((size,), rank + step, dtype=torch.int64)
            outputs.append(torch.empty(size * num_ranks, dtype=torch.int64))
            dist.all_gather_into_tensor(outputs[-1], source, async_op=True)
            del source
            torch.full((size,), -1, dtype=torch.int64)
        torch.cuda.synchronize()
        for step, output in enumerate(outputs):
            expected = torch.arange(step, step + num_ranks).repeat_interleave(size)
            with case(size=size, step=step):
                same_bits(output, expected)


def test_tensors_live_until_unawaited_work_is_done(ranks: RankPool) -> None:
    ranks.run(_no_thread_waits)


def _three_streams() -> None:
    """Tensors are made on one stream, reduced from another, read on a third, and freed while all of that is pending."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    maker, caller, reader = (torch.cuda.Stream() for _ in range(3))
    sums = []
    for step in range(100):
        with torch.cuda.stream(maker):
            busy(0.0005)
            data = torch.full((50_000,), rank + step, dtype=torch.int64)
        with torch.cuda.stream(caller):
            caller.wait_stream(maker)
            work = dist.all_reduce(data, async_op=True)
        with torch.cuda.stream(reader):
            work.wait()
            sums.append(data.sum())
            data.record_stream(reader)
        del data, work
    torch.cuda.synchronize()
    for step, total in enumerate(sums):
        assert int(total) == 50_000 * (num_ranks * step + sum(range(num_ranks))), f"step {step}"


def test_three_streams_share_a_tensor(ranks: RankPool) -> None:
    ranks.run(_three_streams)


@contextlib.contextmanager
def _groups(count: int) -> Iterator[list[dist.ProcessGroup]]:
    groups = [dist.new_group() for _ in range(count)]
    yield groups
    torch.cuda.synchronize()
    for group in groups:
        dist.destroy_process_group(group)


def _groups_and_streams() -> None:
    """Each group has its stream, and the groups swap streams; sizes are small and large, calls sync and async."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    streams = [torch.cuda.Stream() for _ in range(3)]
    with _groups(3) as groups:
        results = []
        for step in range(150):
            group = groups[step % 3]
            with torch.cuda.stream(streams[step * 2 // 3 % 3]):
                data = torch.full((1 + step * 997,), rank + step, dtype=torch.int64)
                finish(dist.all_reduce(data, group=group, async_op=step % 2 == 0))
                results.append(data)
        torch.cuda.synchronize()
        for step, data in enumerate(results):
            with case(step=step):
                same_bits(data, torch.full_like(data, num_ranks * step + sum(range(num_ranks))))


def test_groups_work_on_streams_of_their_own(ranks: RankPool) -> None:
    ranks.run(_groups_and_streams)


def _opposite_orders(num_bytes: int) -> None:
    """Every other rank begins with the other group: kernels of both must fit on all GPUs, or none would end."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    streams = [torch.cuda.Stream() for _ in range(2)]
    with _groups(2) as groups:
        data = [torch.empty(num_bytes // 8, dtype=torch.int64) for _ in groups]
        for group in groups:  # its first call waits for the other ranks'
            dist.all_reduce(torch.ones(1), group=group)
        torch.cuda.synchronize()
        for step in range(40):
            for which in (0, 1) if rank % 2 == 0 else (1, 0):
                with torch.cuda.stream(streams[which]):
                    data[which].fill_(rank + step)
                    dist.all_reduce(data[which], dist.ReduceOp.MAX, group=groups[which])
            if step % 8 == 7:
                torch.cuda.synchronize()
                for each in data:
                    same_bits(each, torch.full_like(each, num_ranks - 1 + step))
                meet()


@pytest.mark.parametrize("num_bytes", [1 << 20, 6 << 20, 32 << 20])
def test_two_groups_run_in_opposite_orders(num_bytes: int, ranks: RankPool) -> None:
    if ranks.device == "one_connection":
        pytest.skip("streams that share a connection wait for each other")
    ranks.run(_opposite_orders, num_bytes)


def _both_devices() -> None:
    """CPU and CUDA tensors alternate in one group, and are in flight together."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    pending = []
    for step in range(60):
        device = "cpu" if step % 3 == 0 else torch.get_default_device()
        data = torch.full((1 + step * 100,), float(rank + step), device=device)
        work = dist.all_reduce(data, async_op=step % 2 == 0)
        pending.append((step, data, work))
    for step, data, work in reversed(pending):
        finish(work)
        with case(step=step, device=data.device):
            same_bits(data, torch.full_like(data, num_ranks * step + sum(range(num_ranks))))
    output = torch.empty(num_ranks)
    dist.all_gather_into_tensor(output, torch.full((1,), float(rank)))
    dist.barrier()
    same_bits(output, torch.arange(float(num_ranks)))


def test_one_group_serves_both_devices(ranks: RankPool) -> None:
    ranks.run(_both_devices)


def _one_host_is_held_back(size: int) -> float:
    """Returns how long a host takes to enqueue a hundred operations while the last rank's host sleeps."""
    dist.all_reduce(torch.ones(size, dtype=torch.int64))
    return enqueue_beside_a_late_host([torch.zeros(size, dtype=torch.int64) for _ in range(100)], 3)


@pytest.mark.parametrize("size", [100, 1 << 18])
def test_no_host_waits_for_another_to_enqueue(size: int, ranks: RankPool) -> None:
    if ranks.device == "one_connection":
        pytest.skip("shown with several connections")
    assert all(seconds < 1 for seconds in ranks.run(_one_host_is_held_back, size))
