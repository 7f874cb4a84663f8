"""Prepared transfers through the host engine, and prepared collectives: values, order, threads and errors."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

import torch_axon
from support.devices import on
from support.pool import RankPool
from support.prepared import content, prepare_pair
from support.reference import case, failure

on_every_host_path = on("cpu", "staged")

SIZES = (1, 1000, 1 << 18)  # elements


def _whole_tensors() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
        for size in SIZES:
            with case(dtype=dtype, size=size):
                tensor = torch.empty(size, dtype=dtype)
                with prepare_pair(tensor) as request:
                    assert request.path == "messages"
                    for step in range(3):
                        tensor.copy_(content(tensor, step if dist.get_rank() == 0 else step + 1))
                        request.start()
                        request.wait()
                        assert torch.equal(tensor, content(tensor, step))


@on_every_host_path
def test_a_whole_tensor_is_sent_at_every_start(two_ranks: RankPool) -> None:
    two_ranks.run(_whole_tensors)


def _partitions() -> None:
    for count, partitions in ((1, 1), (64, 64), (6 * 1001, 6), (1 << 20, 4)):
        with case(count=count, partitions=partitions):
            tensor = torch.empty(count)
            with prepare_pair(tensor, partitions) as request:
                for step in range(3):
                    tensor.fill_(-1)
                    request.start()
                    if dist.get_rank() == 0:
                        tensor.copy_(content(tensor, step))
                        for partition in reversed(range(1, partitions)):
                            request.ready(partition)
                        request.ready(range(1))
                    else:
                        request.arrived(partitions - 1)
                        last = slice(-(count // partitions), None)
                        assert torch.equal(tensor[last], content(tensor, step)[last])
                    request.wait()
                    assert torch.equal(tensor, content(tensor, step))


@on_every_host_path
def test_partitions_are_sent_in_any_order(two_ranks: RankPool) -> None:
    two_ranks.run(_partitions)


def _threads() -> None:
    partitions = 16
    tensor = torch.empty(16 * 1000)
    with prepare_pair(tensor, partitions) as request:
        for step in range(10):
            tensor.copy_(content(tensor, step if dist.get_rank() == 0 else -1))
            request.start()
            threads = [Thread(target=request.ready, args=(number,)) for number in range(partitions)]
            if dist.get_rank() == 0:
                for thread in threads:
                    thread.start()
            request.wait()
            assert torch.equal(tensor, content(tensor, step))
            if dist.get_rank() == 0:
                for thread in threads:
                    thread.join()


def test_threads_make_partitions_ready(two_ranks: RankPool) -> None:
    two_ranks.run(_threads)


def _several_at_once() -> None:
    """Transfers of one pair match in the order of their preparation; those of other tags and directions do not mix."""
    rank = dist.get_rank()
    tensors = [torch.full((100,), float(number if rank == 0 else -1)) for number in range(6)]
    requests = [prepare_pair(tensor, tag=number % 2) for number, tensor in enumerate(tensors)]
    back = torch.full((100,), float(rank))
    requests.append(torch_axon.prepare(back, "recv" if rank == 0 else "send", peer=1 - rank))
    for request in requests if rank == 0 else reversed(requests):
        request.start()
    for request in requests:
        request.wait()
        request.close()
    assert [float(tensor[0]) for tensor in tensors] == [0, 1, 2, 3, 4, 5]
    assert float(back[0]) == 1


def test_several_transfers_of_a_pair_do_not_mix(two_ranks: RankPool) -> None:
    two_ranks.run(_several_at_once)


def _both_ways_at_once() -> None:
    """Both ranks prepare and start their send first, and then their receive."""
    rank = dist.get_rank()
    outgoing, incoming = torch.full((1 << 18,), float(rank)), torch.zeros(1 << 18)
    requests = [
        torch_axon.prepare(outgoing, "send", peer=1 - rank),
        torch_axon.prepare(incoming, "recv", peer=1 - rank),
    ]
    for step in range(3):
        outgoing.fill_(rank + step)
        for request in requests:
            request.start()
        for request in requests:
            request.wait()
        assert bool((incoming == 1 - rank + step).all())


@on_every_host_path
def test_both_ranks_prepare_and_start_their_sends_first(two_ranks: RankPool) -> None:
    two_ranks.run(_both_ways_at_once)


def _tests_for_arrival() -> None:
    with prepare_pair(torch.zeros(10), 2) as request:
        request.start()
        if dist.get_rank() == 0:
            request.ready(1)
            dist.barrier()
            request.ready(0)
        else:
            assert not request.has_arrived(0)
            dist.barrier()
            request.arrived(0)
            assert request.has_arrived(0)
        request.wait()


def test_the_receiver_can_test_for_arrival(two_ranks: RankPool) -> None:
    two_ranks.run(_tests_for_arrival)


def _one_thread_waits() -> None:
    """A thread waits for the whole request, while another one asks for its partitions."""
    with prepare_pair(torch.zeros(4), 4) as request:
        request.start()
        if dist.get_rank() == 0:
            dist.barrier()
            request.ready(3)
            dist.barrier()
            request.ready(range(3))
            request.wait()
            return
        waiting = Thread(target=request.wait)
        waiting.start()
        assert not request.has_arrived(3)
        assert "before wait()" in failure(request.start)
        dist.barrier()
        request.arrived(3)
        dist.barrier()
        waiting.join()


def test_threads_ask_for_partitions_while_one_waits(two_ranks: RankPool) -> None:
    two_ranks.run(_one_thread_waits)


def _dies_before_a_partition() -> str:
    request = prepare_pair(torch.zeros(4), 4)
    request.start()
    if dist.get_rank() == 0:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    deadline = time.monotonic() + 30

    def until_arrived() -> None:
        while not request.has_arrived(1) and time.monotonic() < deadline:
            time.sleep(0.01)

    return failure(until_arrived) + failure(request.start)


def test_a_dead_peers_partitions_have_not_arrived(fresh_ranks: Any) -> None:
    text = fresh_ranks(2).run(_dies_before_a_partition, dying=[0], timeout_s=50)[1]
    assert "rank 0" in text
    assert "an earlier start has failed" in text


def _collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ones, gathered = torch.ones(4), torch.zeros(4 * size)
    table = torch.arange(4.0 * size)
    share, swapped = torch.zeros(4), torch.zeros(4 * size)
    root = torch.full((4,), float(rank))
    requests = [
        torch_axon.prepare(ones, "all_reduce", op=dist.ReduceOp.SUM),
        torch_axon.prepare(gathered, "all_gather", inputs=root.clone()),
        torch_axon.prepare(share, "reduce_scatter", inputs=table),
        torch_axon.prepare(swapped, "all_to_all", inputs=table),
        torch_axon.prepare(root, "broadcast", root=1),
    ]
    for _ in range(3):
        ones.fill_(1)
        for request in requests:
            request.start()
        for request in requests:
            request.wait()
        assert torch.equal(ones, torch.full((4,), float(size)))
        assert torch.equal(gathered, torch.arange(size).repeat_interleave(4).to(gathered.dtype))
        assert torch.equal(share, size * table.view(size, 4)[rank])
        assert torch.equal(swapped, table.view(size, 4)[rank].repeat(size))
        assert torch.equal(root, torch.ones(4))
    for request in requests:
        request.start()
        assert "before wait()" in failure(request.start)
        request.wait()
        assert "has not been started" in failure(request.wait)
        request.close()
        assert "is closed" in failure(request.start)


@on("cpu", "cuda")
def test_collectives_run_at_every_start(two_ranks: RankPool) -> None:
    two_ranks.run(_collectives)


def _calls_out_of_order() -> list[str]:
    with prepare_pair(torch.zeros(8), 2) as request:
        texts = [failure(request.wait), failure(lambda: request.arrived(0))]
        request.start()
        texts.append(failure(request.start))
        if dist.get_rank() == 0:
            request.ready(0)
            texts.append(failure(lambda: request.ready(0)))
            texts.append(failure(lambda: request.ready(range(1, 4))))
            request.ready(1)
        else:
            texts += [failure(request.ready), failure(lambda: request.arrived(2))]
        request.wait()
        texts.append(failure(lambda: request.device_handle))
    return [*texts, failure(request.start)]


def test_calls_out_of_order_raise(two_ranks: RankPool) -> None:
    sender, receiver = two_ranks.run(_calls_out_of_order)
    for texts in (sender, receiver):
        assert "it has not been started" in texts[0]
        assert "it has not been started" in texts[1]
        assert "start() was called before wait()" in texts[2]
        assert "kernels cannot use a tensor on the CPU" in texts[5]
        assert "the request is closed" in texts[6]
    assert sender[3].startswith("ValueError: prepared send of float32[8] in 2 partitions to rank 1, tag 0: ready(0)")
    assert sender[4].startswith("IndexError: argument 'partition' is range(1, 4); allowed: 0 to 1")
    assert "ready() was called by the receiver" in receiver[3]
    assert receiver[4].startswith("IndexError")


def _different_ends() -> list[str]:
    rank = dist.get_rank()
    tensor = torch.zeros(8)
    requests = [
        prepare_pair(tensor[: 8 - 2 * rank]),
        prepare_pair(tensor.to(torch.int32 if rank else torch.float32)),
        prepare_pair(tensor, 2 + 2 * rank),
    ]
    texts = [failure(request.start) for request in requests]
    assert texts == [failure(request.wait) for request in requests]
    return texts


def test_both_ranks_hear_of_different_ends(two_ranks: RankPool) -> None:
    for texts in two_ranks.run(_different_ends):
        assert "send of float32[8], and" in texts[0] or "recv of float32[6], and" in texts[0]
        assert "float32[8]" in texts[1]
        assert "int32[8]" in texts[1]
        assert "in 2 partitions" in texts[2]
        assert "in 4 partitions" in texts[2]


ARGUMENTS: dict[str, dict[str, Any]] = {
    "'operation' is 'put'": {"operation": "put"},
    "'peer' is None; allowed: another rank of the group, one of [1]": {"operation": "send"},
    "'peer' is 0": {"operation": "send", "peer": 0},
    "'tag' is -1": {"operation": "send", "peer": 1, "tag": -1},
    "'partitions' is 3; allowed: a divisor of the tensor's 8 elements": {
        "operation": "send",
        "peer": 1,
        "partitions": 3,
    },
    "'partitions' is 0": {"operation": "send", "peer": 1, "partitions": 0},
    "'root' is 1; allowed with 'send': None": {"operation": "send", "peer": 1, "root": 1},
    "'root' is None; allowed with 'broadcast'": {"operation": "broadcast"},
    "'peer' is 1; allowed with 'all_reduce': None": {"operation": "all_reduce", "peer": 1},
    "'inputs' is None; allowed with 'all_gather'": {"operation": "all_gather"},
    "strides [2]": {"operation": "send", "peer": 1, "tensor": torch.zeros(16)[::2]},
    "'tensor' is a conjugated": {
        "operation": "send",
        "peer": 1,
        "tensor": torch.zeros(4, dtype=torch.complex64).conj(),
    },
    "has layout torch.sparse_coo": {"operation": "send", "peer": 1, "tensor": torch.zeros(4, 4).to_sparse()},
    "'tensor' is [1]; allowed: Tensor": {"operation": "send", "peer": 1, "tensor": [1]},
    "'partitions' is '4'; allowed: an int": {"operation": "send", "peer": 1, "partitions": "4"},
    "'partitions' is True": {"operation": "send", "peer": 1, "partitions": True},
    "'tag' is 1.5": {"operation": "send", "peer": 1, "tag": 1.5},
    "'peer' is '1'": {"operation": "send", "peer": "1"},
    "'timeout' is 5; allowed: timedelta": {"operation": "send", "peer": 1, "timeout": 5},
    "'timeout' is 0:00:00; allowed: more than 0": {"operation": "send", "peer": 1, "timeout": timedelta()},
    "'group' is 'axon'": {"operation": "send", "peer": 1, "group": "axon"},
    "'tag' is 3; allowed with 'all_reduce': None": {"operation": "all_reduce", "tag": 3},
}


def _wrong_arguments() -> None:
    if dist.get_rank() != 0:
        return
    for expected, arguments in ARGUMENTS.items():
        with case(expected=expected):
            assert expected in failure(partial(torch_axon.prepare, **{"tensor": torch.zeros(8), **arguments}))


def test_wrong_arguments_are_named(two_ranks: RankPool) -> None:
    two_ranks.run(_wrong_arguments)


def _abandoned_start() -> None:
    """The receiver has started, and leaves. What comes for it does not reach the request that both make next."""
    for lateness in ("sent", "not sent"):
        with contextlib.suppress(RuntimeError), prepare_pair(torch.zeros(4)) as request:
            if dist.get_rank() == 1 or lateness == "sent":
                request.start()
            raise RuntimeError
        tensor = torch.zeros(4)
        with prepare_pair(tensor) as request:
            for step in (1, 2, 3):
                if dist.get_rank() == 0:
                    tensor.fill_(step)
                request.start()
                request.wait()
                assert bool((tensor == step).all())


def test_an_abandoned_start_does_not_meet_the_next_request(two_ranks: RankPool) -> None:
    two_ranks.run(_abandoned_start)


def _refused_range() -> None:
    with prepare_pair(torch.zeros(4), 4) as request:
        request.start()
        if dist.get_rank() == 0:
            request.ready(range(2, 4))
            assert "ready(2) was called twice" in failure(request.ready)
            request.ready(range(2))
        request.wait()


def test_a_refused_range_sends_nothing(two_ranks: RankPool) -> None:
    two_ranks.run(_refused_range)


def _late_ready() -> str:
    with prepare_pair(torch.zeros(4), 4, timeout=timedelta(seconds=0.5)) as request:
        request.start()
        if dist.get_rank() == 0:
            request.ready(2)
        return failure(request.wait)


def test_a_wait_for_missing_partitions_ends_at_the_timeout(fresh_ranks: Any) -> None:
    sender, receiver = fresh_ranks(2).run(_late_ready)
    assert "No thread has made these partitions ready: [0, 1, 3]" in sender
    assert "Timed out" in receiver


def _late_peer() -> str:
    if dist.get_rank() == 1:
        return ""
    return failure(prepare_pair(torch.zeros(4), timeout=timedelta(seconds=0.3)).start)


def test_a_peer_that_does_not_prepare_is_named(fresh_ranks: Any) -> None:
    text = fresh_ranks(2).run(_late_peer)[0]
    assert "prepare: rank 1 has not prepared its recv under tag 0" in text


def _many_requests() -> None:
    tensor = torch.zeros(4)
    for number in range(300):
        with prepare_pair(tensor) as request:
            tensor.fill_(number if dist.get_rank() == 0 else -1)
            request.start()
            request.wait()
            assert float(tensor[3]) == number


def test_requests_are_made_and_closed_again_and_again(two_ranks: RankPool) -> None:
    two_ranks.run(_many_requests)
