"""Prepared transfers of CUDA tensors between hosts: kernels send and await partitions through host memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_axon
from support.gpu import meet
from support.graphs import captured, num_replays
from support.hosts import run_on_hosts
from support.prepared import content, prepare_pair
from support.prepared_kernels import cuda_pair, kernel_of, send_by_triton, start_in_a_loop
from support.reference import case, eventual_failure, failure

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")]


def _on_two_hosts(
    function: Callable[..., object], folder: Path, *arguments: object, dying: tuple[int, ...] = ()
) -> list[Any]:
    return run_on_hosts((1, 1), folder / "store", _joined, function, *arguments, dying=dying)


def _joined(store: str, rank: int, size: int, function: Callable[..., object], *arguments: object) -> object:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=size)
    result = function(*arguments)
    if result is None:
        dist.barrier()
    dist.destroy_process_group()
    return result


def _partitions() -> None:
    """The host takes all steps. Tensors begin at any address."""
    cases = [(1, 1, torch.float32), (64, 64, torch.uint8), (6 * 1001, 6, torch.uint8), (6 * 1001, 6, torch.bfloat16)]
    cases += [(8 << 20, 8, torch.float32), (1 << 18, 1 << 12, torch.float32), (3 << 20, 3, torch.float64)]
    for count, partitions, dtype in cases:
        for offset in (0, 1):
            with case(count=count, partitions=partitions, dtype=dtype, offset=offset):
                tensor = torch.empty(count + offset, dtype=dtype)[offset:]
                parts = tensor.chunk(partitions)
                sums = torch.zeros(partitions, dtype=torch.float64)
                with prepare_pair(tensor, partitions) as request:
                    assert request.path == "host memory"
                    for step in range(3):
                        tensor.copy_(content(tensor, step if dist.get_rank() == 0 else step + 100))
                        request.start()
                        if dist.get_rank() == 0 and partitions <= 64:
                            for partition in reversed(range(partitions)):
                                request.ready(partition)
                        elif dist.get_rank() == 0:
                            request.ready()
                        else:
                            for partition in range(0, partitions, 97):
                                request.arrived(partition)
                                sums[partition] = parts[partition].sum(dtype=torch.float64)
                        request.wait()
                        expected = content(tensor, step)
                        assert torch.equal(tensor, expected)
                        if dist.get_rank() == 1:
                            wanted = expected.double().view(partitions, -1).sum(1)[::97]
                            assert torch.equal(sums[::97], wanted)


def test_partitions_of_any_size_are_sent_by_the_host(tmp_path: Path) -> None:
    _on_two_hosts(_partitions, tmp_path)


def _cuda_kernels(producer: str) -> None:
    with cuda_pair(producer) as pair:
        for _ in range(1000):
            pair.once()
        graphs = [captured(pair.once), captured(pair.once)]
        count = max(num_replays(), 500)
        for replay in range(count):
            graphs[replay % 2].replay()
            if replay % 50 == 0:
                pair.once()
        torch.cuda.synchronize()
        assert int(pair.step) == 1000 + count + (count + 49) // 50
        assert int(pair.wrong) == 0


@pytest.mark.parametrize("producer", ["produce", "produce_there"])
def test_cuda_kernels_send_and_await_partitions(producer: str, tmp_path: Path) -> None:
    _on_two_hosts(_cuda_kernels, tmp_path, producer)


@pytest.mark.parametrize("producer", ["produce", "produce_there"])
def test_a_loop_of_a_graph_starts_a_request(producer: str, tmp_path: Path) -> None:
    _on_two_hosts(start_in_a_loop, tmp_path, producer)


def test_triton_kernels_send_and_await_partitions(tmp_path: Path) -> None:
    _on_two_hosts(send_by_triton, tmp_path, 100)


def _round_trips() -> None:
    """In a kernel, so partitions go both ways at once, and each depends on the one before it."""
    rank, count = dist.get_rank(), 100
    out, into = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
    with (
        torch_axon.prepare(out, "send", peer=1 - rank, partitions=count) as sending,
        torch_axon.prepare(into, "recv", peer=1 - rank, partitions=count) as receiving,
    ):
        handles = torch.tensor([sending.device_handle, receiving.device_handle])
        kernel = kernel_of("ping")
        for step in range(5):
            out.copy_(torch.arange(count) * 2 + rank + step)
            receiving.start()
            sending.start()
            kernel((1, 1, 1), (32, 1, 1), [handles, count, 1 - rank])
            receiving.wait()
            sending.wait()
            assert torch.equal(into, torch.arange(count) * 2 + 1 - rank + step)


def test_kernels_send_partitions_there_and_back(tmp_path: Path) -> None:
    _on_two_hosts(_round_trips, tmp_path)


def _with_a_cpu_tensor() -> None:
    """Each end chooses its path alone."""
    is_sender = dist.get_rank() == 0
    for cpu_rank in (0, 1):
        on_cpu = dist.get_rank() == cpu_rank
        tensor = torch.zeros(1000, device="cpu" if on_cpu else "cuda")
        with prepare_pair(tensor, 4) as request:
            assert request.path == ("messages" if on_cpu else "host memory")
            for step in range(5):
                with torch.device(tensor.device):
                    expected = content(tensor, step)
                if is_sender:
                    tensor.copy_(expected)
                request.start()
                if is_sender:
                    request.ready()
                request.wait()
                assert torch.equal(tensor, expected)


def test_the_other_end_may_be_on_a_cpu(tmp_path: Path) -> None:
    _on_two_hosts(_with_a_cpu_tensor, tmp_path)


def _many_replays(count: int) -> None:
    """One rank replays a graph that sends and receives. The other one, on a CPU, answers each replay."""
    on_gpu = dist.get_rank() == 0
    with torch.device("cuda" if on_gpu else "cpu"):
        out, into = torch.zeros(64, dtype=torch.int64), torch.zeros(64, dtype=torch.int64)
        step, wrong = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    peer = 1 - dist.get_rank()
    with (
        torch_axon.prepare(out, "send", peer=peer, partitions=2) as sending,
        torch_axon.prepare(into, "recv", peer=peer, partitions=2) as receiving,
    ):

        def exchange() -> None:
            receiving.start()
            sending.start()
            sending.ready()
            receiving.wait()
            sending.wait()

        def once() -> None:
            out.fill_(step)
            exchange()
            wrong.add_((into != 2 * step).sum())
            step.add_(1)

        def answer(expected: int) -> None:
            receiving.start()
            receiving.wait()
            assert into[0] == into[-1] == expected
            out.fill_(2 * expected)
            sending.start()
            sending.ready()
            sending.wait()

        if on_gpu:
            once()
            graph = captured(once)
            for _ in range(count):
                graph.replay()
            torch.cuda.synchronize()
            assert (int(step), int(wrong)) == (count + 1, 0)
        else:
            answer(0)
            meet()
            for number in range(count):
                answer(number + 1)


def test_a_graph_is_replayed_a_hundred_thousand_times(tmp_path: Path) -> None:
    _on_two_hosts(_many_replays, tmp_path, 100_000)


def _made_again_and_again() -> None:
    tensor = torch.zeros(100_000)
    for number in range(60):
        with prepare_pair(tensor, (1, 100)[number % 2]) as request:
            if dist.get_rank() == 0:
                tensor.copy_(content(tensor, number))
            request.start()
            if dist.get_rank() == 0:
                request.ready()
            request.wait()
        assert torch.equal(tensor, content(tensor, number))


def test_requests_are_made_and_closed_again_and_again(tmp_path: Path) -> None:
    _on_two_hosts(_made_again_and_again, tmp_path)


def _many_at_once() -> None:
    """The ranks start many transfers both ways, each rank in an order of its own."""
    rank, count = dist.get_rank(), 12
    tensors = [torch.zeros(1 << 18) for _ in range(2 * count)]
    requests = [
        torch_axon.prepare(
            tensor, "send" if (index < count) == (rank == 0) else "recv", peer=1 - rank, tag=index, partitions=4
        )
        for index, tensor in enumerate(tensors)
    ]
    order = range(2 * count) if rank == 0 else range(2 * count - 1, -1, -1)
    for step in range(20):
        for index in order:
            sends = (index < count) == (rank == 0)
            tensors[index].copy_(content(tensors[index], step + index if sends else -1))
            requests[index].start()
            if sends:
                requests[index].ready()
        for index in reversed(order):
            requests[index].wait()
        for index in order:
            assert torch.equal(tensors[index], content(tensors[index], step + index))
    for request in requests:
        request.close()


def test_many_transfers_run_at_once(tmp_path: Path) -> None:
    _on_two_hosts(_many_at_once, tmp_path)


def _left_between_start_and_wait() -> None:
    """Neither the GPU nor the group waits for what a request that was closed too early would have received or sent."""
    for partitions in (1, 8):
        with prepare_pair(torch.zeros(8), partitions) as request:
            request.start()
        torch.cuda.synchronize()
        total = torch.ones(8)
        dist.all_reduce(total)
        assert torch.equal(total, torch.full((8,), 2.0))


def test_a_request_that_is_closed_too_early_keeps_nothing_busy(tmp_path: Path) -> None:
    _on_two_hosts(_left_between_start_and_wait, tmp_path)


def _closes_after_another_start() -> None:
    """What the start before has received is whole, although its partitions arrive after the call of close()."""
    tensor = torch.zeros(6000)
    request = prepare_pair(tensor, 6)
    if dist.get_rank() == 0:
        tensor.copy_(content(tensor, 1))
        request.start()
        torch.cuda._sleep(200_000_000)
        request.ready()
        request.wait()
    else:
        request.start()
        request.wait()
        received = tensor.clone()
        request.start()
    request.close()
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        assert torch.equal(received, content(tensor, 1))


def test_a_request_is_closed_after_another_start(tmp_path: Path) -> None:
    _on_two_hosts(_closes_after_another_start, tmp_path)


def _closes_beside_queued_launches() -> None:
    """The launches keep what they use, also from requests that are made meanwhile."""
    rank, count = dist.get_rank(), 50
    tensor, total = torch.zeros(6000), torch.zeros(6000, dtype=torch.float64)
    request = prepare_pair(tensor, 6)

    def once() -> None:
        if rank == 0:
            tensor.add_(1)
        request.start()
        if rank == 0:
            request.ready()
        request.wait()
        if rank == 1:
            total.add_(tensor)

    once()
    graph = captured(once)
    torch.cuda.synchronize()
    total.zero_()
    for _ in range(count):
        graph.replay()
    request.close()
    with prepare_pair(torch.zeros(6000), 6) as other:
        other.start()
        if rank == 0:
            other.ready()
        other.wait()
    torch.cuda.synchronize()
    if rank == 1:
        assert torch.equal(total, torch.full_like(total, sum(range(2, count + 2))))


def test_a_request_is_closed_while_launches_are_queued(tmp_path: Path) -> None:
    _on_two_hosts(_closes_beside_queued_launches, tmp_path)


def _misuses_on_the_host() -> list[str]:
    tensor = torch.zeros(8)
    texts = []
    with prepare_pair(tensor, 2) as request:
        texts.append(failure(request.wait))
        request.start()
        texts.append(failure(request.start))
        texts.append(failure(lambda: request.has_arrived(0)))
        texts.append(failure(lambda: request.add_to_graph(0, "start")))
        if dist.get_rank() == 0:
            request.ready(0)
            texts.append(failure(lambda: request.ready(0)))
            request.ready(1)
        else:
            texts.append(failure(request.ready))
        request.wait()
    many = prepare_pair(torch.zeros(1 << 13), 1 << 13, tag=1)
    assert many.path == "messages"
    texts.append(failure(lambda: many.device_handle))
    texts.append(failure(lambda: prepare_pair(tensor, tag=2).device_handle))
    dist.barrier()
    return texts


def test_calls_out_of_order_raise_on_the_host(tmp_path: Path) -> None:
    for rank, texts in enumerate(_on_two_hosts(_misuses_on_the_host, tmp_path)):
        assert "before start()" in texts[0]
        assert "before wait()" in texts[1]
        assert "axon::parrived()" in texts[2]
        assert "to capture its calls" in texts[3]
        assert ("ready(0) was called twice" if rank == 0 else "by the receiver") in texts[4]
        assert "at most 4096 partitions" in texts[5]
        assert "a request with partitions" in texts[6]


def _misuse_in_a_kernel(partition: int, times: int) -> str:
    request = prepare_pair(torch.zeros(8), 4)
    request.start()
    if dist.get_rank() == 0:
        kernel_of("misuse")((1, 1, 1), (32, 1, 1), [torch.tensor([request.device_handle]), partition, times])
    return eventual_failure(lambda: dist.all_reduce(torch.ones(1)))


@pytest.mark.parametrize(
    ("partition", "times", "expected"),
    [(4, 1, "partition 4 does not exist"), (1, 2, "partition 1 was made ready twice")],
)
def test_a_misuse_in_a_kernel_is_reported(partition: int, times: int, expected: str, tmp_path: Path) -> None:
    texts = _on_two_hosts(_misuse_in_a_kernel, tmp_path, partition, times)
    assert expected in texts[0]
    assert "with rank 1" in texts[0]


def _late_peer() -> str:
    """Kernels of the receiver wait for a partition that no kernel of the sender makes ready."""
    request = prepare_pair(torch.zeros(8), 2, timeout=timedelta(seconds=2))
    request.start()
    if dist.get_rank() == 0:
        request.ready(0)
    else:
        request.wait()
    return eventual_failure(lambda: dist.all_reduce(torch.ones(1)))


def test_a_partition_that_is_not_ready_ends_waits_at_the_timeout(tmp_path: Path) -> None:
    for text in _on_two_hosts(_late_peer, tmp_path):
        assert "prepared recv from rank 0, tag 0 (float32, 8 elements), partition 1: Timed out after 2000 ms" in text


def _die_while_a_kernel_waits(operation: str) -> str:
    """Rank 1 dies before its start. Rank 0 waits for its partitions, or sends them more than once."""
    rank = dist.get_rank()
    ours = operation if rank == 0 else {"send": "recv", "recv": "send"}[operation]
    request = torch_axon.prepare(torch.zeros(8 << 20), ours, peer=1 - rank, partitions=2)
    assert request.path == "host memory"
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(3):
        if text := failure_of_a_start(request, operation):
            return text
    return eventual_failure(lambda: dist.all_reduce(torch.ones(1)))


def failure_of_a_start(request: Any, operation: str) -> str:
    """Returns what a start raises, or an empty text."""
    try:
        request.start()
        if operation == "send":
            request.ready()
        request.wait()
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("operation", ["send", "recv"])
def test_a_wait_ends_when_the_peer_is_killed(operation: str, tmp_path: Path) -> None:
    text = _on_two_hosts(_die_while_a_kernel_waits, tmp_path, operation, dying=(1,))[0]
    assert "rank 1" in text
    assert "prepared" in text
