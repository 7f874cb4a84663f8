"""Tests the pool itself: results, tracebacks, hung ranks and deaths."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from support.devices import on
from support.gpu_memory import held_kib
from support.pool import RankError, RankPool


def _rank_and(argument: str) -> tuple[int, str]:
    return dist.get_rank(), argument


def _raise_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("the marked rank")


def _sleep_on(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(1000)


def _kill_on(rank: int) -> int:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return dist.get_rank()


def _sum() -> float:
    value = torch.ones(1)
    dist.all_reduce(value)
    return float(value)


def test_results_come_back_by_rank(ranks: RankPool) -> None:
    assert ranks.run(_rank_and, "x") == [(rank, "x") for rank in range(ranks.size)]
    assert ranks.run(_sum) == [ranks.size] * ranks.size


def test_a_rank_that_raises_shows_its_traceback(fresh_ranks) -> None:
    ranks = fresh_ranks(2)
    with pytest.raises(RankError, match=r"(?s)rank 0 returned.*rank 1 raised.*_raise_on.*the marked rank"):
        ranks.run(_raise_on, 1)
    assert ranks.broken


def test_a_rank_that_hangs_shows_its_stack(fresh_ranks) -> None:
    with pytest.raises(RankError, match=r"(?s)rank 0 still ran.*_sleep_on.*rank 1 returned"):
        fresh_ranks(2).run(_sleep_on, 0, timeout_s=1)


def test_a_rank_that_dies_is_reported_unless_foretold(fresh_ranks) -> None:
    with pytest.raises(RankError, match=r"rank 1 died with exit code -9"):
        fresh_ranks(2).run(_kill_on, 1)
    assert fresh_ranks(2).run(_kill_on, 1, dying=[1]) == [0, None]


def _held_with_and_without(num_bytes: int) -> tuple[int, int, int]:
    torch.ones(1, dtype=torch.uint8)
    dist.barrier()  # what the first of each allocates once is in place
    before = held_kib()
    data = torch.ones(num_bytes, dtype=torch.uint8) if dist.get_rank() == 0 else None
    dist.barrier()
    held = held_kib()
    dist.barrier()
    del data
    return before, held, held_kib()


@on("cuda")
def test_memory_of_a_gpu_is_counted_for_the_process_that_holds_it(two_ranks: RankPool) -> None:
    num_bytes = 256 << 20
    (before, held, after), others = two_ranks.run(_held_with_and_without, num_bytes)
    assert held - before == num_bytes >> 10
    assert after == before
    assert others == (others[0],) * 3
