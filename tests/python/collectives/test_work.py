"""Tests what a call returns: futures, waits, completion, errors, sequence numbers, profiler records."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.devices import on_cpu_and_gpu
from support.pool import BACKEND, RankPool
from support.reference import eventual_failure, failure, same_bits


def _future() -> None:
    num_ranks = float(dist.get_world_size())
    data = torch.ones(1000)
    work = dist.all_reduce(data, async_op=True)
    future = work.get_future()
    halved = future.then(lambda done: [one / 2 for one in done.value()])
    same_bits(halved.wait()[0], torch.full((1000,), num_ranks / 2))
    assert isinstance(future.value(), list)
    assert future.done()
    same_bits(future.value()[0], data)
    assert future.value()[0].data_ptr() == data.data_ptr()
    joined = torch.futures.collect_all(
        [dist.all_reduce(torch.ones(5), async_op=True).get_future() for _ in range(10)]
    ).wait()
    for done in joined:
        same_bits(done.value()[0], torch.full((5,), num_ranks))


def test_futures_hold_lists_of_tensors_and_chain(ranks: RankPool) -> None:
    ranks.run(_future)


def _completes_unwatched() -> None:
    """The future's callback runs even if no thread waits."""
    fired = threading.Event()
    future = dist.all_reduce(torch.ones(1000), async_op=True).get_future()
    future.add_done_callback(lambda _: fired.set())
    assert fired.wait(10)
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    deadline = time.monotonic() + 10
    while not work.is_completed():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert work.is_success()


def test_asynchronous_work_completes_without_a_wait(ranks: RankPool) -> None:
    ranks.run(_completes_unwatched)


def _callbacks_that_wait() -> None:
    """Chains futures as torch's PowerSGD hook does, while no other thread drives the engine."""
    num_ranks = dist.get_world_size()

    def again(done: torch.futures.Future[list[torch.Tensor]], depth: int) -> torch.Tensor:
        data = done.value()[0] + 1
        future = dist.all_reduce(data, async_op=True).get_future()
        return future.then(lambda later: again(later, depth - 1)).wait() if depth else future.wait()[0]

    for _ in range(20):
        finished = threading.Event()
        data = torch.ones(1 << 18)
        future = dist.all_reduce(data, async_op=True).get_future().then(lambda done: again(done, 3))
        future.add_done_callback(lambda _, finished=finished: finished.set())
        assert finished.wait(30)
        expected = num_ranks
        for _ in range(4):
            expected = (expected + 1) * num_ranks
        same_bits(future.value(), torch.full((1 << 18,), float(expected)))


def test_callbacks_of_futures_may_wait(ranks: RankPool) -> None:
    ranks.run(_callbacks_that_wait)


def _wait_from_threads() -> None:
    """Waits as compiled functional collectives do: on another thread, and several times for one work."""
    for _ in range(20):
        data = torch.ones(100)
        work = dist.all_reduce(data, async_op=True)
        results: list[bool] = []
        threads = [threading.Thread(target=lambda work=work, to=results: to.append(work.wait())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert results == [True] * 3
        same_bits(data, torch.full((100,), float(dist.get_world_size())))


def test_any_thread_may_wait(ranks: RankPool) -> None:
    ranks.run(_wait_from_threads)


def _threads_submit() -> None:
    """Each thread has a group of its own; all run at once."""
    groups = [dist.new_group() for _ in range(4)]
    wrong: list[str] = []

    def work_on(group: dist.ProcessGroup, seed: int) -> None:
        for step in range(50):
            data = torch.full((1 + seed * 997,), float(step))
            dist.all_reduce(data, group=group)
            if not torch.equal(data, torch.full_like(data, float(step * dist.get_world_size()))):
                wrong.append(f"group {seed}, step {step}")

    threads = [threading.Thread(target=work_on, args=(group, seed)) for seed, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
    for group in groups:
        dist.destroy_process_group(group)


def test_threads_with_groups_of_their_own_do_not_disturb_each_other(ranks: RankPool) -> None:
    ranks.run(_threads_submit)


def _wait_with_timeout(what: str) -> tuple[list[str], list[float]]:
    """Rank 0's operation completes only when the last rank arrives, long after two waits have timed out."""
    last = dist.get_world_size() - 1
    group = dist.new_group()
    dist.barrier(group)
    data = torch.full((3,), float(dist.get_rank() + 1))
    if dist.get_rank() == last:
        time.sleep(2.5)
    work = _start(what, data, last, group)
    messages, seconds = [], []
    for _ in range(2 if dist.get_rank() == 0 else 0):
        started = time.monotonic()
        messages.append(failure(lambda: work.wait(timedelta(seconds=0.5))))
        seconds.append(time.monotonic() - started)
    if work is not None:
        work.wait()
        expected = sum(range(last + 2)) if what == "all_reduce" else last + 1
        same_bits(data, torch.full((3,), float(expected)))
    dist.barrier(group)
    dist.destroy_process_group(group)
    return messages, seconds


def _start(what: str, data: torch.Tensor, last: int, group: dist.ProcessGroup) -> dist.Work | None:
    if what == "all_reduce":
        return dist.all_reduce(data, group=group, async_op=True)
    if dist.get_rank() == 0:
        return dist.irecv(data, last, group=group, tag=3)
    return dist.isend(data, 0, group=group, tag=3) if dist.get_rank() == last else None


@pytest.mark.parametrize("what", ["all_reduce", "receive"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_wait_that_gives_up_names_the_missing_and_a_later_one_succeeds(size: int, what: str, pools) -> None:
    if BACKEND != "axon":
        pytest.skip("only axon names the missing ranks")
    messages, seconds = pools.of(size).run(_wait_with_timeout, what)[0]
    for message in messages:
        assert "Timed out in wait(timeout)" in message
        if what == "all_reduce":
            assert "all_reduce #2 (float32[3], SUM): Timed out in wait(timeout). " in message
            assert f"Not entered by: rank {size - 1} (last entered barrier #1, " in message
        else:
            assert f"receive from rank {size - 1} (float32[3], tag 3)" in message
            assert f"Still awaited here: rank {size - 1}." in message
    assert all(0.4 < each < 1.5 for each in seconds)


def _error_of_work() -> tuple[str, str]:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if dist.get_rank() == 1:
        time.sleep(2.5)
        return "", ""
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    future = work.get_future()
    waited = failure(work.wait)
    chained = failure(future.wait)
    assert work.is_completed()
    assert not work.is_success()
    return waited, chained


def test_an_error_reaches_wait_and_future(two_ranks: RankPool) -> None:
    waited, chained = two_ranks.run(_error_of_work)[0]
    assert "Timed out" in waited or BACKEND != "axon"
    assert "Timed out" in chained or BACKEND != "axon"


def _sequence_numbers() -> list[int]:
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    numbers = [backend._get_sequence_number_for_group()]
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=group)
        numbers.append(backend._get_sequence_number_for_group())
    return [number - numbers[0] for number in numbers]


def test_sequence_numbers_count_collectives(two_ranks: RankPool) -> None:
    assert two_ranks.run(_sequence_numbers) == [[0, 1, 2, 3]] * 2


def _profiled() -> dict[str, list[list[int]]]:
    """Shapes of inputs, by operation."""
    rank = dist.get_rank()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profile:
        dist.all_reduce(torch.ones(10))
        dist.all_gather_into_tensor(torch.zeros(dist.get_world_size()), torch.ones(1))
        dist.broadcast(torch.ones(1), 0)
        if rank == 0:
            dist.send(torch.ones(1), 1)
        elif rank == 1:
            dist.recv(torch.ones(1), 0)
        dist.barrier()
    return {event.key: event.input_shapes for event in profile.events()}


@on_cpu_and_gpu
def test_the_profiler_names_operations_and_their_sizes(two_ranks: RankPool) -> None:
    for rank, shapes in enumerate(two_ranks.run(_profiled)):
        for operation in ("broadcast", "send" if rank == 0 else "recv"):
            assert shapes[f"{BACKEND}:{operation}"] == [[1]]
        assert shapes[f"{BACKEND}:all_reduce"] == [[10]]


def _errors() -> tuple[str, str]:
    """Returns getError of a complete group, and of a group in which one rank never arrives."""
    dist.all_reduce(torch.ones(3))  # a GPU's first call takes longer than the timeout of the group below
    group = dist.new_group(timeout=timedelta(milliseconds=500))
    backend = group._get_backend(torch.device("cpu"))

    def call() -> None:
        dist.all_reduce(torch.ones(3), group=group)

    call()
    dist.barrier(group)
    before = backend.get_error().name
    if dist.get_rank() == 0:
        eventual_failure(call)
    dist.barrier()
    eventual_failure(call)
    return before, backend.get_error().name


@on_cpu_and_gpu
def test_the_error_of_a_group_says_its_kind(two_ranks: RankPool) -> None:
    assert two_ranks.run(_errors) == [("SUCCESS", "TIMEOUT")] * 2


def _attributes() -> None:
    assert dist.get_backend() == BACKEND
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.name() == BACKEND
    assert backend.rank() == dist.get_rank()
    assert backend.size() == dist.get_world_size()


def test_the_backend_knows_its_name_rank_and_size(ranks: RankPool) -> None:
    ranks.run(_attributes)


def _results_outlive_references() -> None:
    """The tensors of a call live until it completes, although the program keeps no reference."""
    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(20)]
    futures = [work.get_future() for work in works]
    works.clear()
    for future in futures:
        same_bits(future.wait()[0], torch.full((100_000,), float(dist.get_world_size())))


def test_tensors_live_as_long_as_the_operation(ranks: RankPool) -> None:
    ranks.run(_results_outlive_references)
