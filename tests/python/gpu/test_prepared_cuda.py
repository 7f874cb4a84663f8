"""Prepared transfers of CUDA tensors: in stream order, captured, and made ready by CUDA and Triton kernels."""

from __future__ import annotations

import gc
import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import torch_axon
from support.devices import on
from support.gpu import backend_of, busy, meet, works
from support.graphs import captured, num_replays
from support.pool import RankPool
from support.prepared import content, prepare_pair
from support.prepared_kernels import cuda_pair, kernel_of, send_by_triton, start_in_a_loop
from support.reference import case, eventual_failure, failure, failure_or_nothing

pytestmark = on("cuda")

SIZES = (1, 7, 1024, 99_991, 4 << 20)  # elements


def _fill(tensor: Tensor, step: int | Tensor) -> None:
    """The sender's tensor gets the step's content, and the receiver's another one."""
    tensor.copy_(content(tensor, step) if dist.get_rank() == 0 else content(tensor, step + 100))


def _whole_tensors() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        for size in SIZES:
            for offset in (0, 1):
                with case(dtype=dtype, size=size, offset=offset):
                    tensor = torch.empty(size + offset, dtype=dtype)[offset:]
                    with prepare_pair(tensor) as request:
                        assert request.path == "kernels"
                        for step in range(3):
                            _fill(tensor, step)
                            request.start()
                            request.wait()
                            assert torch.equal(tensor, content(tensor, step))


def test_a_whole_tensor_is_sent_at_every_start(two_ranks: RankPool) -> None:
    two_ranks.run(_whole_tensors)


def _partitions() -> None:
    for count, partitions in ((1, 1), (64, 64), (6 * 1001, 6), (8 << 20, 8), (1 << 16, 1 << 10)):
        with case(count=count, partitions=partitions):
            tensor = torch.empty(count, dtype=torch.float32)
            parts = tensor.chunk(partitions)
            sums = torch.zeros(partitions, dtype=torch.float64)
            with prepare_pair(tensor, partitions) as request:
                for step in range(3):
                    _fill(tensor, -1)
                    request.start()
                    for partition in reversed(range(partitions)):
                        if dist.get_rank() == 0:
                            parts[partition].copy_(content(tensor, step).chunk(partitions)[partition])
                            request.ready(partition)
                        elif partition % 7 == 0:
                            request.arrived(partition)
                            sums[partition] = parts[partition].sum(dtype=torch.float64)
                    request.wait()
                    expected = content(tensor, step)
                    assert torch.equal(tensor, expected)
                    if dist.get_rank() == 1:
                        wanted = expected.double().view(partitions, -1).sum(1)[::7]
                        assert torch.equal(sums[::7], wanted)


def test_partitions_are_sent_in_any_order(two_ranks: RankPool) -> None:
    two_ranks.run(_partitions)


def _ranges_on_other_streams() -> None:
    tensor = torch.empty(1 << 20, dtype=torch.float32)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with prepare_pair(tensor, 16) as request:
        for step in range(5):
            _fill(tensor, step)
            request.start()
            for number, stream in enumerate(streams):
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    busy(0.002)
                    half = range(8 * number, 8 * number + 8)
                    request.ready(half) if dist.get_rank() == 0 else request.arrived(half)
            for stream in streams:
                torch.cuda.current_stream().wait_stream(stream)
            request.wait()
            assert torch.equal(tensor, content(tensor, step))


def test_ranges_of_partitions_are_sent_on_several_streams(two_ranks: RankPool) -> None:
    two_ranks.run(_ranges_on_other_streams)


def _both_ways_at_once() -> None:
    """Both ranks start their send first, and then their receive, with tensors that no slot holds."""
    rank = dist.get_rank()
    outgoing, incoming = torch.empty(1 << 20), torch.empty(1 << 20)
    requests = {
        "send": torch_axon.prepare(outgoing, "send", peer=1 - rank),
        "recv": torch_axon.prepare(incoming, "recv", peer=1 - rank),
    }
    wrong, step = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)

    def once() -> None:
        outgoing.copy_(content(outgoing, step + rank))
        for name in ("send", "recv"):
            requests[name].start()
        for name in ("send", "recv"):
            requests[name].wait()
        wrong.add_((incoming != content(incoming, step + 1 - rank)).sum())
        step.add_(1)

    for _ in range(5):
        once()
    graph = captured(once)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert int(wrong) == 0


def test_both_ranks_start_their_sends_first(two_ranks: RankPool) -> None:
    two_ranks.run(_both_ways_at_once)


def _replays() -> None:
    step, wrong = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    whole, divided = torch.empty(1000, dtype=torch.float32), torch.empty(1 << 16, dtype=torch.bfloat16)
    first, second = prepare_pair(whole), prepare_pair(divided, 4, tag=1)

    def once() -> None:
        _fill(whole, step)
        _fill(divided, step)
        first.start()
        second.start()
        if dist.get_rank() == 0:
            for partition in (2, 0, 3, 1):
                second.ready(partition)
        first.wait()
        second.wait()
        wrong.add_((whole != content(whole, step)).sum() + (divided != content(divided, step)).sum())
        step.add_(1)

    once()
    graphs = [captured(once), captured(once)]
    for replay in range(num_replays()):
        graphs[replay % 2].replay()
        if replay % 100 == 50:
            once()
    torch.cuda.synchronize()
    assert int(wrong) == 0
    first.close()
    second.close()


def test_graphs_send_new_data_at_every_replay(two_ranks: RankPool) -> None:
    two_ranks.run(_replays)


@pytest.mark.parametrize("producer", ["produce", "produce_there"])
def test_a_loop_of_a_graph_starts_a_request(producer: str, two_ranks: RankPool) -> None:
    two_ranks.run(start_in_a_loop, producer)


def _cuda_kernels(producer: str) -> None:
    with cuda_pair(producer) as pair:
        pair.once()
        graph = captured(pair.once)
        for _ in range(num_replays()):
            graph.replay()
        torch.cuda.synchronize()
        assert int(pair.step) == num_replays() + 1
        assert int(pair.wrong) == 0


@pytest.mark.parametrize("producer", ["produce", "produce_there"])
def test_cuda_kernels_send_and_await_partitions(producer: str, two_ranks: RankPool) -> None:
    two_ranks.run(_cuda_kernels, producer)


def test_triton_kernels_send_and_await_partitions(two_ranks: RankPool) -> None:
    two_ranks.run(send_by_triton, 10)


def _misuses_on_the_host() -> list[str]:
    tensor = torch.zeros(8)
    texts = []
    with prepare_pair(tensor, 2) as request:
        is_sender = dist.get_rank() == 0
        texts.append(failure(request.wait))
        request.start()
        texts.append(failure(request.start))
        if is_sender:
            request.ready(0)
            texts.append(failure(lambda: request.ready(0)))
            texts.append(failure(lambda: request.ready(2)))
            request.ready(1)
        else:
            texts.append(failure(request.ready))
        request.wait()
    texts.append(failure(request.start))
    texts.append(failure_or_nothing(lambda: prepare_pair(tensor, 3)))
    texts.append(failure(prepare_pair(torch.zeros(8 + dist.get_rank())).start))
    return texts


def test_calls_out_of_order_raise_on_the_host(two_ranks: RankPool) -> None:
    sender, receiver = two_ranks.run(_misuses_on_the_host)
    for texts in (sender, receiver):
        assert "before start()" in texts[0]
        assert "before wait()" in texts[1]
        assert "is closed" in texts[-3]
        assert "argument 'partitions' is 3" in texts[-2]
        assert "float32[8]" in texts[-1]
        assert "float32[9]" in texts[-1]
    assert "ready(0) was called twice" in sender[2]
    assert "argument 'partition' is 2" in sender[3]
    assert "by the receiver" in receiver[2]


def _misuse_in_a_kernel(partition: int, times: int) -> str:
    tensor = torch.zeros(8)
    request = prepare_pair(tensor, 4)
    request.start()
    if dist.get_rank() == 1:
        meet_by_host()
        return ""
    handle = torch.tensor([request.device_handle])
    kernel_of("misuse")((1, 1, 1), (32, 1, 1), [handle, partition, times])
    text = eventual_failure(lambda: dist.all_reduce(torch.ones(1)))
    meet_by_host()
    return text


def meet_by_host() -> None:
    """The GPU side of the group has failed."""
    dist.distributed_c10d._get_default_store().add("met", 1)
    while int(dist.distributed_c10d._get_default_store().add("met", 0)) < dist.get_world_size():
        pass


@pytest.mark.parametrize(
    ("partition", "times", "expected"),
    [(4, 1, "partition 4 does not exist"), (1, 2, "partition 1 was made ready twice")],
)
def test_a_misuse_in_a_kernel_is_reported(partition: int, times: int, expected: str, fresh_ranks: Any) -> None:
    texts = fresh_ranks(2).run(_misuse_in_a_kernel, partition, times)
    assert expected in texts[0]


def _late_peer() -> str:
    request = prepare_pair(torch.zeros(8), 1, timeout=timedelta(seconds=1))
    if dist.get_rank() == 1:
        meet_by_host()
        return ""
    request.start()
    request.ready()
    text = eventual_failure(lambda: dist.all_reduce(torch.ones(1)))
    meet_by_host()
    return text


def test_a_start_without_the_peers_ends_at_the_timeout(fresh_ranks: Any) -> None:
    texts = fresh_ranks(2).run(_late_peer)
    assert (
        "prepared transfer (float32, 8 elements, tag 0): Timed out on the GPU. Still awaited here: rank 1" in texts[0]
    )


def _die_while_a_kernel_waits(operation: str) -> str:
    """Rank 1 dies before its start. Rank 0 waits for its partition, or to send one."""
    rank = dist.get_rank()
    ours = operation if rank == 0 else {"send": "recv", "recv": "send"}[operation]
    request = torch_axon.prepare(torch.zeros(8), ours, peer=1 - rank, partitions=2)
    assert request.path == "kernels"
    meet()
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    request.start()
    if operation == "send":
        request.ready()
    request.wait()
    torch.cuda.synchronize()
    text = eventual_failure(lambda: dist.all_reduce(torch.ones(1)))
    works()
    return text


@pytest.mark.parametrize("operation", ["send", "recv"])
def test_a_wait_ends_when_the_peer_is_killed(operation: str, fresh_ranks: Any) -> None:
    text = fresh_ranks(2).run(_die_while_a_kernel_waits, operation, dying=[1], timeout_s=50)[0]
    assert "rank 1" in text


def _used_after_its_group() -> list[str]:
    group = dist.new_group()
    requests = [prepare_pair(torch.zeros(8), partitions, group=group) for partitions in (None, 2)]
    backend = backend_of(group)
    meet()
    backend.suspend()
    backend.resume()
    texts = [failure(request.start) for request in requests]
    dist.destroy_process_group(group)
    return texts + [failure(request.start) for request in requests]


def test_a_request_ends_with_its_groups_gpu_side(two_ranks: RankPool) -> None:
    for texts in two_ranks.run(_used_after_its_group):
        assert "its group was suspended or reconfigured after prepare()" in texts[0]
        assert "its group was suspended or reconfigured after prepare()" in texts[1]


def _made_again_and_again() -> None:
    """Each kind of request is made twice. From then on, all records are taken over.

    At the end of an iteration its kernels have run, on each rank, and the next prepare() tells the peer. So when a rank
    prepares a request, all former ones of that tag have ended except the last, of which the peer has not told it yet.
    """
    gc.collect()  # now, so that the memory of earlier tests does not hide a growth
    tensor, back = torch.zeros(100_000), torch.zeros(100_000)
    kinds = (None, 1, 100)
    memory: list[int] = []
    for number in range(60):
        partitions = kinds[number % len(kinds)]
        # Tags of this test: an open request of an earlier test under the same tag would keep all later records in use.
        with prepare_pair(tensor, partitions, tag=100) as request, prepare_pair(back, partitions, tag=101) as other:
            for each, buffer in ((request, tensor), (other, back)):
                _fill(buffer, number)
                each.start()
                if dist.get_rank() == 0 and partitions:
                    each.ready()
                each.wait()
                assert torch.equal(buffer, content(buffer, number))
        torch.cuda.synchronize()
        memory.append(torch.cuda.memory_allocated())
    settled = 2 * len(kinds)
    assert max(memory[settled:]) <= memory[settled - 1], memory


def test_requests_are_made_and_closed_again_and_again(two_ranks: RankPool) -> None:
    two_ranks.run(_made_again_and_again)


def _relay_in_a_graph() -> None:
    """Rank 0 sends to rank 1, which sends the same tensor back: nodes of a graph that each builds without a capture."""
    is_first = dist.get_rank() == 0
    there = torch.zeros(1000)
    back = torch.zeros(1000) if is_first else there
    to = {"peer": 1 - dist.get_rank(), "partitions": 2}
    out = torch_axon.prepare(there, "send", **to)
    into = torch_axon.prepare(back, "recv", **to)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        torch.zeros(1)
    raw = graph.raw_cuda_graph()
    arrived = into.add_to_graph(raw, "wait", [into.add_to_graph(raw, "start")])
    begun = out.add_to_graph(raw, "start")
    ready = out.add_to_graph(raw, "ready", [begun] if is_first else [begun, arrived], range(2))
    out.add_to_graph(raw, "wait", [ready])
    graph.instantiate()
    meet()
    for step in range(20):
        if is_first:
            there.copy_(content(there, step))
        meet()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(back, content(back, step))
    assert "argument 'step' is 'send'" in failure(lambda: into.add_to_graph(raw, "send"))


def test_steps_are_nodes_of_a_graph(two_ranks: RankPool) -> None:
    two_ranks.run(_relay_in_a_graph)
