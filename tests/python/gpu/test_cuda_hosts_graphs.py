"""CUDA graphs between hosts: each launch starts what goes through the host, in whatever order ranks launch graphs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_axon
from support.conditional_graphs import capture_into_a_graph, repeated
from support.gpu import NAMES, meet, works
from support.graphs import Loop, captured, num_replays
from support.hosts import run_on_hosts
from support.processes import printed
from support.reference import case, failure, same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")]

MIB = 1 << 20
SHORT = timedelta(seconds=3)


def _join(store: str, rank: int, size: int, timeout: timedelta = timedelta(seconds=60)) -> None:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)


def _leave() -> None:
    meet()
    dist.destroy_process_group()


def _replay_everything(store: str, rank: int, size: int, sizes: Sequence[int]) -> None:
    _join(store, rank, size)
    for name in NAMES:
        for num_bytes in sizes:
            for asynchronous in (False, True):
                with case(name=name, bytes=num_bytes, asynchronous=asynchronous):
                    loop = Loop(name, num_bytes, asynchronous)
                    graph = loop.capture()
                    for _ in range(10):
                        graph.replay()
                    loop.step()
                    loop.check(12)
    _leave()


@pytest.mark.parametrize("num_local", [(1, 1), (2, 2), (1, 2)], ids=["1+1", "2+2", "1+2"])
def test_every_operation_is_replayed_with_changing_inputs(num_local: Sequence[int], tmp_path: Path) -> None:
    run_on_hosts(num_local, tmp_path / "store", _replay_everything, (8, 100_000, 33 * MIB))


def _replay_prepared(store: str, rank: int, size: int, partitions: int | None) -> None:
    """A ring of prepared sends, some to another host and some not."""
    _join(store, rank, size)
    step, wrong = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    outgoing, incoming = torch.zeros(40_000), torch.zeros(40_000)
    right, left = (rank + 1) % size, (rank - 1) % size

    sending = torch_axon.prepare(outgoing, "send", peer=right, partitions=partitions)
    receiving = torch_axon.prepare(incoming, "recv", peer=left, partitions=partitions)

    def once() -> None:
        outgoing.copy_(torch.arange(40_000) % 1000 + rank + step)
        sending.start()
        receiving.start()
        for partition in reversed(range(partitions or 0)):
            sending.ready(partition)
        sending.wait()
        receiving.wait()
        wrong.add_((incoming != torch.arange(40_000) % 1000 + left + step).sum())
        step.add_(1)

    once()
    graph = captured(once)
    for replay in range(20):
        graph.replay()
        if replay == 10:
            torch.cuda.synchronize()
            once()
    torch.cuda.synchronize()
    assert int(wrong) == 0
    _leave()


@pytest.mark.parametrize("partitions", [None, 4])
@pytest.mark.parametrize("num_local", [(1, 1), (2, 2)], ids=["1+1", "2+2"])
def test_prepared_transfers_are_replayed(num_local: Sequence[int], partitions: int | None, tmp_path: Path) -> None:
    run_on_hosts(num_local, tmp_path / "store", _replay_prepared, partitions)


def _replay_often(store: str, rank: int, size: int) -> None:
    _join(store, rank, size)
    for name in ("all_reduce", "ring"):
        loop = Loop(name, 4096)
        graph = loop.capture()
        for _ in range(10 * num_replays()):
            graph.replay()
        loop.check(1 + 10 * num_replays())
    _leave()


def test_a_graph_is_replayed_thousands_of_times(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _replay_often)


def _call_in_a_loop(store: str, rank: int, size: int) -> None:
    """The graph decides on the GPU how often it calls."""
    _join(store, rank, size)
    tensor, expected, wrong = torch.empty(5000), torch.zeros(()), torch.zeros(5000, dtype=torch.bool)
    different = torch.zeros_like(wrong)
    step, last, again = torch.zeros(()), torch.zeros(()), torch.zeros((), dtype=torch.int32)

    def body() -> None:
        torch.add(step, rank, out=expected)
        tensor.copy_(expected)
        dist.all_reduce(tensor)
        torch.mul(step, size, out=expected)
        expected.add_(sum(range(size)))
        torch.ne(tensor, expected, out=different)
        wrong.logical_or_(different)
        step.add_(1)
        torch.lt(step, last, out=again)

    body()
    with repeated(body, again) as launch:
        meet()
        for count in (5, 6, 26):
            last.fill_(count)
            launch()
        torch.cuda.synchronize()
    assert (int(step), bool(wrong.any())) == (26, False)
    _leave()


def test_a_graph_decides_how_often_it_calls(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _call_in_a_loop)


def _look_whether_graphs_wake_the_engine(store: str, rank: int, size: int) -> None:
    """Only from bodies of conditional nodes do launches not wake the engine, which it says."""
    os.environ["AXON_LOG"] = "info"
    _join(store, rank, size)
    tensor, again = torch.ones(100), torch.zeros((), dtype=torch.int32)

    def call() -> None:
        dist.all_reduce(tensor)

    call()
    for capture, expected in ((captured, 0), (capture_into_a_graph, 0), (_capture_body(again), 1)):
        with printed() as text:
            capture(call)
            assert text().count("a CUDA graph cannot wake the engine") == expected
    _leave()


def _capture_body(again: torch.Tensor) -> Callable[[Callable[[], None]], None]:
    def capture(call: Callable[[], None]) -> None:
        with repeated(call, again):
            pass

    return capture


def test_launches_wake_the_engine_except_from_bodies_of_conditional_nodes(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _look_whether_graphs_wake_the_engine)


def _replay_in_different_orders(store: str, rank: int, size: int) -> None:
    """Each rank replays two graphs on two streams at the same time, and starts with another one."""
    _join(store, rank, size)
    loops = [Loop("all_reduce", 1000), Loop("all_reduce", 5 * MIB)]
    graphs = [loop.capture() for loop in loops]
    streams = [torch.cuda.Stream() for _ in graphs]
    meet()
    for turn in range(20):
        for index in (0, 1) if (turn + rank) % 2 == 0 else (1, 0):
            with torch.cuda.stream(streams[index]):
                graphs[index].replay()
    for loop in loops:
        loop.check(21)
    _leave()


def test_ranks_replay_graphs_in_different_orders(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _replay_in_different_orders)


def _replay_messages(store: str, rank: int, size: int) -> None:
    """Tags, batches in any order, and messages to itself, beside eager messages under the same tags."""
    _join(store, rank, size)
    other = 1 - rank
    for count in (1, 5 * MIB):
        step = torch.zeros((), dtype=torch.int32)
        mine = {tag: torch.zeros(count, dtype=torch.int32) for tag in (0, 5, 7, 9)}
        theirs = {tag: torch.zeros(count, dtype=torch.int32) for tag in (0, 5, 7, 9)}

        def exchange(mine=mine, theirs=theirs, step=step) -> None:
            step.add_(1)
            for tag, data in mine.items():
                data.copy_((step * 100 + tag).expand_as(data))
            tags = (0, 5, 7) if rank == 0 else (7, 0, 5)
            works = [dist.isend(mine[tag], other, tag=tag) for tag in tags]
            works += [dist.irecv(theirs[tag], other, tag=tag) for tag in reversed(tags)]
            works += [dist.isend(mine[9], rank, tag=9), dist.irecv(theirs[9], rank, tag=9)]
            for work in works:
                work.wait()

        exchange()
        graph = captured(exchange)
        for turn in range(5):
            graph.replay()
            eager = torch.zeros(3, dtype=torch.int32)
            exchanged = [
                dist.isend(torch.full_like(eager, turn + rank), other, tag=5),
                dist.irecv(eager, other, tag=5),
            ]
            for work in exchanged:
                work.wait()
            same_bits(eager, torch.full_like(eager, turn + other))
            for tag, data in theirs.items():
                same_bits(data, torch.full_like(data, int(step) * 100 + tag))
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        message = failure(lambda: dist.recv(torch.zeros(1), None, tag=5))
    for part in ("argument 'src' is None", "CUDA graph"):
        assert part in message, message
    _leave()


def test_messages_are_replayed_under_their_tags(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _replay_messages)


def _capture_again(store: str, rank: int, size: int) -> None:
    """Graphs are destroyed, also right after a replay, and the engine sleeps between some."""
    _join(store, rank, size)
    stays = Loop("all_reduce", 4096)
    kept = stays.capture()
    for turn in range(8):
        loop = Loop("ring", 4096 << turn)
        graph = loop.capture()
        graph.replay()
        kept.replay()
        graph.replay()
        del graph
        gc.collect()
        loop.check(3)
        if turn % 4 == 0:
            time.sleep(1.5)
    stays.check(9)
    _leave()


def test_graphs_are_destroyed_and_captured_again(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _capture_again)


def _replay_alone(store: str, rank: int, size: int) -> None:
    """One rank does not replay: the other one's kernels end, and each later call raises."""
    _join(store, rank, size, SHORT)
    data = torch.ones(1000)
    dist.all_reduce(data)
    meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(data)
    if rank == 0:
        graph.replay()
        torch.cuda.synchronize()
        message = failure(lambda: dist.all_reduce(torch.ones(8)))
        for part in ("all_reduce of CUDA graphs (captured as #1 at ", "_replay_alone", "rank 1"):
            assert part in message, message
        for _ in range(3000):  # more than a ring holds
            graph.replay()
        torch.cuda.synchronize()
        works()
    else:
        message = failure(lambda: [time.sleep(SHORT.total_seconds() + 2), dist.all_reduce(torch.ones(8))])
        assert "rank 0" in message, message


def test_a_rank_that_does_not_replay_is_named(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _replay_alone)


def _capture_differently(store: str, rank: int, size: int) -> None:
    _join(store, rank, size)
    data = torch.ones(1000)
    dist.all_reduce(data)
    meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(data) if rank == 0 else dist.broadcast(data, 0)
    graph.replay()
    message = failure(lambda: [torch.cuda.synchronize(), dist.all_reduce(data), torch.cuda.synchronize()])
    for part in ("mismatched", "all_reduce", "broadcast"):
        assert part in message, message
    works()


def test_graphs_that_differ_are_a_mismatch(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _capture_differently)


def _outlive_the_group(store: str, rank: int, size: int) -> None:
    """A graph may be replayed after its group is gone: it ends at once."""
    _join(store, rank, size)
    loop = Loop("all_reduce", 1 << 20)
    graph = loop.capture()
    graph.replay()
    _leave()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    works()


def test_a_graph_outlives_its_group(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _outlive_the_group)


def _lose_a_rank(store: str, rank: int, size: int) -> None:
    _join(store, rank, size)
    loop = Loop("all_reduce", 33 * MIB)
    graph = loop.capture()
    graph.replay()
    meet()
    if rank == 1:
        graph.replay()
        os.kill(os.getpid(), 9)
    message = failure(lambda: [graph.replay(), graph.replay(), torch.cuda.synchronize(), dist.barrier()])
    assert "rank 1" in message, message
    graph.replay()
    torch.cuda.synchronize()
    works()


def test_a_rank_that_dies_in_a_replay_is_named_and_the_gpu_goes_on(tmp_path: Path) -> None:
    run_on_hosts((1, 1), tmp_path / "store", _lose_a_rank, dying=[1])


def _hold_many_calls(store: str, rank: int, size: int) -> None:
    """A graph of all kinds of collectives, of which some wait for the engine and others only send."""
    _join(store, rank, size)
    steps = 12
    counts = (1000, 3 * MIB, 7, MIB)
    step = torch.zeros((), dtype=torch.int32)
    rows = {count: torch.zeros(count, dtype=torch.int32) for count in counts}
    sums, roots, gathered, parts = ({count: torch.zeros_like(row) for count, row in rows.items()} for _ in range(4))
    reduced = {count: torch.zeros_like(row) for count, row in rows.items()}
    wholes = {count: torch.zeros(size * count, dtype=torch.int32) for count in counts}
    wrong = torch.zeros((), dtype=torch.int64)

    def expect(tensor: torch.Tensor, value: torch.Tensor) -> None:
        wrong.add_((tensor != value).sum())

    def run() -> None:
        step.add_(1)
        for count, row in rows.items():
            root = count % size
            row.copy_((step * 10 + rank).expand_as(row))
            roots[count].copy_((step * 100 + rank).expand_as(row))
            dist.broadcast(roots[count], root)
            roots_were = roots[count].clone()
            roots[count].fill_(-1)
            sums[count].copy_(row)
            dist.all_reduce(sums[count])
            reduced[count].copy_(row)
            dist.reduce(reduced[count], root)
            outputs = list(wholes[count].chunk(size)) if rank == root else None
            dist.gather(row, outputs, root)
            dist.scatter(parts[count], list(wholes[count].chunk(size)) if rank == root else None, root)
            dist.all_gather_into_tensor(wholes[count], row)
            expect(roots_were, step * 100 + root)
            expect(sums[count], step * 10 * size + sum(range(size)))
            if rank == root:
                expect(reduced[count], step * 10 * size + sum(range(size)))
            expect(parts[count], step * 10 + rank)
            for other, shard in enumerate(wholes[count].chunk(size)):
                expect(shard, step * 10 + other)
        with dist._coalescing_manager(device=row.device):
            for count, row in rows.items():
                gathered[count].copy_(row)
                dist.all_reduce(gathered[count])
        for shard in gathered.values():
            expect(shard, step * 10 * size + sum(range(size)))

    run()
    meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for turn in range(steps):
        if turn % size == rank:
            time.sleep(0.01)  # another rank is late each time
        graph.replay()
    torch.cuda.synchronize()
    assert int(step) == steps + 1
    assert int(wrong) == 0
    _leave()


@pytest.mark.parametrize("num_local", [(1, 1), (2, 2)], ids=["1+1", "2+2"])
def test_a_graph_holds_many_calls(num_local: Sequence[int], tmp_path: Path) -> None:
    run_on_hosts(num_local, tmp_path / "store", _hold_many_calls)
