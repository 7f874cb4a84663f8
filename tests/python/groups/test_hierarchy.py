"""Hosts with several ranks each, which TCP connects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.gpu import backend_of, exercise_all
from support.hosts import run_on_hosts
from support.rank_order import RankOrder
from support.reference import failure, same_bits

pytestmark = pytest.mark.usefixtures("network")


def _join(store: str, rank: int, size: int, settings: dict[str, str]) -> None:
    os.environ.update(settings)
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=size)


def _exchange_everything(store: str, rank: int, size: int, sizes: Sequence[int], rails: str) -> dict[str, str]:
    _join(store, rank, size, {"AXON_RAILS": rails})
    exercise_all(*sizes)
    dist.barrier()
    selected = {row["operation"]: row["algorithm"] for row in backend_of().selected(8 << 20)}
    dist.destroy_process_group()
    return selected


@pytest.mark.parametrize(
    ("num_local", "sizes"),
    [((2, 2), (8, 100_000, 17 << 20)), ((1, 2), (8, 100_000, 17 << 20)), ((4, 4, 4, 4), (8, 1 << 20))],
    ids=["2x2", "1+2", "4x4"],
)
@pytest.mark.parametrize("rails", ["0", "1", "4"])
def test_every_operation_on_hosts_with_several_ranks(
    num_local: Sequence[int], sizes: Sequence[int], rails: str, tmp_path: Path
) -> None:
    for selected in run_on_hosts(num_local, tmp_path / "store", _exchange_everything, sizes, rails):
        assert selected["all_reduce"] == "hierarchical"


def _sum_half_types(store: str, rank: int, size: int, settings: dict[str, str]) -> list[torch.Tensor]:
    _join(store, rank, size, settings)
    sums = []
    for num_elements in (100, 100_000):
        data = torch.full((num_elements,), 1.0 if rank == 0 else 2.0**-9, dtype=torch.bfloat16)
        dist.all_reduce(data)
        sums.append(data)
    dist.destroy_process_group()
    return sums


@pytest.mark.parametrize("exact", ["0", "1"])
def test_half_types_are_rounded_once_per_level_or_once(exact: str, tmp_path: Path) -> None:
    """1 + 2⁻⁹ is rounded to 1 in bfloat16, and 1 + 3 · 2⁻⁹ to 1 + 2⁻⁷."""
    results = run_on_hosts((2, 2), tmp_path / "store", _sum_half_types, {"AXON_EXACT": exact})
    for sums in results:
        assert isinstance(sums, list)
        for small_or_large, data in zip(("small", "large"), sums, strict=True):
            if small_or_large == "large":
                same_bits(data, torch.full_like(data, 1.0 + 2.0**-7 if exact == "1" else 1.0))
            elif exact == "1":
                same_bits(data, torch.full_like(data, 1.0 + 2.0**-7))
        for first, own in zip(results[0], sums, strict=True):  # type: ignore[call-overload]
            same_bits(own, first)


def _compare_with_rank_order(store: str, rank: int, size: int, settings: dict[str, str]) -> str:
    _join(store, rank, size, settings)
    draws = RankOrder(size, (torch.float32, torch.bfloat16))
    try:
        draws.run(120)
    except AssertionError as difference:
        return str(difference)
    finally:
        draws.close()
        dist.destroy_process_group()
    return ""


@pytest.mark.parametrize("num_local", [(2, 2), (1, 2), (1, 1, 1)], ids=["2x2", "1+2", "3x1"])
def test_sums_follow_the_order_of_ranks_if_asked(num_local: Sequence[int], tmp_path: Path) -> None:
    settings = {"AXON_REPRODUCIBLE": "1"}
    for differences in run_on_hosts(num_local, tmp_path / "store", _compare_with_rank_order, settings):
        assert differences == ""


def _disagree_about_exactness(store: str, rank: int, size: int) -> str:
    _join(store, rank, size, {"AXON_EXACT": str(rank % 2)})
    message = failure(lambda: dist.all_reduce(torch.ones(1 << 20)))
    dist.destroy_process_group()
    return message


def test_ranks_that_disagree_about_exactness_get_an_error(tmp_path: Path) -> None:
    for message in run_on_hosts((2, 2), tmp_path / "store", _disagree_about_exactness):
        assert "algorithm" in str(message)
