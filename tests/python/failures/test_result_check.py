"""AXON_CHECK_RESULTS=1: ranks compare what collectives have given them, and name the one whose bits differ."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from support.devices import on_cpu_and_gpu
from support.gpu import exercise_all
from support.pool import RankPool
from support.reference import eventual_failure, synchronize

pytestmark = on_cpu_and_gpu

COUNT = 1 << 18


def _checked_group() -> dist.ProcessGroup:
    os.environ["AXON_CHECK_RESULTS"] = "1"
    group = dist.new_group()
    del os.environ["AXON_CHECK_RESULTS"]
    assert isinstance(group, dist.ProcessGroup)
    return group


@contextlib.contextmanager
def _overwritten(data: torch.Tensor) -> Iterator[None]:
    """Overwrites the last element again and again, beside the collectives that use the tensor."""
    stopped = threading.Event()

    def overwrite() -> None:
        aside = torch.cuda.Stream() if data.is_cuda else contextlib.nullcontext()
        with torch.cuda.stream(aside) if isinstance(aside, torch.cuda.Stream) else aside:
            for number in itertools.count(2):
                if stopped.is_set():
                    return
                data[-1:].fill_(number)
                if isinstance(aside, torch.cuda.Stream):
                    aside.synchronize()

    thread = threading.Thread(target=overwrite)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _overwrite_on(culprit: int) -> str:
    group = _checked_group()
    data = torch.ones(COUNT)

    def step() -> None:
        dist.broadcast(data, 1, group=group)
        synchronize()

    step()  # the first call makes what later ones share
    with _overwritten(data) if dist.get_rank() == culprit else contextlib.nullcontext():
        return eventual_failure(step)


@pytest.mark.parametrize("culprit", [0, 2])
def test_rank_that_overwrites_a_result_is_named(fresh_ranks: Callable[..., RankPool], culprit: int) -> None:
    for error in fresh_ranks(3).run(_overwrite_on, culprit):
        assert f"differ: rank {culprit} has other bits than the other 2 ranks (AXON_CHECK_RESULTS)" in error
        assert "the results of broadcast" in error
        assert f"(float32[{COUNT}], root 1)" in error


def _odd_values() -> None:
    group = _checked_group()
    bits = torch.tensor([0x7FC00001 + dist.get_rank(), 0x7F800001 + dist.get_rank(), -0x80000000, 0x7F800000])
    values = bits.to(torch.int32).view(torch.float32)
    for count in (1, 300, 300_000):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            dist.all_reduce(values.repeat(count), op=op, group=group)
        dist.broadcast(values.repeat(count)[1:], 1, group=group)
        parts = [torch.empty(count * 4 + rank) for rank in range(3)]
        dist.all_gather(parts, values.repeat(count + 1)[: parts[dist.get_rank()].numel()], group=group)
        dist.all_gather_into_tensor(torch.empty(3 * 4 * count), values.repeat(count), group=group)
    works = [dist.all_reduce(values.repeat(9), group=group, async_op=True) for _ in range(300)]
    for work in works:
        assert work is not None
        work.wait()
    synchronize()
    threading.Event().wait(0.5)  # the last results are compared
    dist.barrier(group=group)
    dist.destroy_process_group(group)


def test_equal_results_pass_whatever_they_hold(fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(3).run(_odd_values)


def _exercise() -> None:
    exercise_all(8, 100_000)
    synchronize()
    threading.Event().wait(0.1)
    exercise_all(8)


def test_every_operation_passes(fresh_ranks: Callable[..., RankPool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AXON_CHECK_RESULTS", "1")
    fresh_ranks(3).run(_exercise)
