"""Bits of reductions depend on nothing but the inputs: pytest test_rank_order.py --rank-order-draws 100000"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.devices import on
from support.pool import RankPool, own_rank
from support.rank_order import RankOrder

# Draws per test; the option replaces them.
DRAWS = {"cpu": 160, "cuda": 400, "staged": 80}
KERNELS = ("", "all_reduce=ll_two_shot", "all_reduce=ll128;reduce=ll128;reduce_scatter=ll128", "all_reduce=zero_copy")


def _compare(store: str, size: int, settings: dict[str, str], seed: int, num_draws: int) -> None:
    os.environ |= settings
    dist.init_process_group(
        "axon", init_method=f"file://{store}", rank=own_rank(), world_size=size, timeout=timedelta(seconds=60)
    )
    draws = RankOrder(seed)
    draws.run(num_draws)
    draws.close()
    dist.destroy_process_group()


def _num_draws(request: pytest.FixtureRequest, device: str) -> int:
    return request.config.getoption("--rank-order-draws", None) or DRAWS[device]


@pytest.mark.parametrize("kernels", KERNELS)
@on("cuda")
def test_kernels_reduce_in_rank_order(
    kernels: str,
    fresh_ranks: Callable[..., RankPool],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """With every kernel, at sizes for which the table would choose another one, too."""
    num_draws = _num_draws(request, "cuda")
    size = max(2, torch.cuda.device_count())
    fresh_ranks(size, "none").run(
        _compare, f"{tmp_path}/store", size, {"AXON_ALGO": kernels}, 1, num_draws, timeout_s=60 + num_draws / 20
    )


@pytest.mark.parametrize("size", [2, 3, 4])
@on("cpu", "staged")
def test_the_host_reduces_in_rank_order_if_asked(
    size: int, device: str, fresh_ranks: Callable[..., RankPool], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    num_draws = _num_draws(request, device)
    settings = {"AXON_REPRODUCIBLE": "1"}
    fresh_ranks(size, "none").run(
        _compare, f"{tmp_path}/store", size, settings, size, num_draws, timeout_s=60 + num_draws / 5
    )


@on("cpu")
def test_two_ranks_of_a_host_always_do(
    fresh_ranks: Callable[..., RankPool], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fresh_ranks(2, "none").run(_compare, f"{tmp_path}/store", 2, {}, 7, _num_draws(request, "cpu"), timeout_s=120)
