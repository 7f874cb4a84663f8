"""torch.distributed.shrink_group: the remaining ranks of a group go on in a smaller one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import SHRINK_ABORT, SHRINK_DEFAULT
from torch.nn.parallel import DistributedDataParallel

from support.devices import on_cpu_and_gpu
from support.pool import RankPool, own_rank
from support.reference import failure, same_bits

pytestmark = on_cpu_and_gpu


def _sum_of_ranks(group: dist.ProcessGroup, members: list[int]) -> None:
    for device in {torch.get_default_device(), torch.device("cpu")}:
        data = torch.full((1000,), float(own_rank() + 1), device=device)
        dist.all_reduce(data, group=group)
        same_bits(data, torch.full((1000,), float(sum(member + 1 for member in members)), device=device))


def _lose_one(lost: int, again: int) -> None:
    """A rank dies, the others shrink the default group, and again; then they train."""
    world = list(range(dist.get_world_size()))
    _sum_of_ranks(dist.distributed_c10d._get_default_group(), world)
    for turn, rank in enumerate((lost, again)):
        if own_rank() == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        message = failure(lambda: [(dist.all_reduce(torch.ones(3)), _settle()) for _ in range(10)])
        assert f"rank {rank - turn}" in message
        world.remove(rank)
        group = dist.shrink_group([rank - turn], shrink_flags=SHRINK_ABORT)
        assert (group.size(), group.rank()) == (len(world), world.index(own_rank()))
        assert dist.get_backend() == "axon"
        assert dist.get_process_group_ranks(group) == list(range(len(world)))
        _sum_of_ranks(group, world)
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    parallel = DistributedDataParallel(model)
    parallel(torch.full((2, 3), float(own_rank() + 1))).sum().backward()
    mean = sum(member + 1 for member in world) / len(world)
    assert model.weight.grad is not None
    same_bits(model.weight.grad, torch.full((1, 3), 2 * mean))
    assert parallel._get_ddp_logging_data()["backend_name"] != "gloo"
    dist.destroy_process_group()


def _settle() -> None:
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


def test_survivors_shrink_the_default_group(fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(4).run(_lose_one, 1, 3, dying=[1, 3])


def _leave_one_out() -> None:
    """Shrinks a group of three without dead ranks; it stays as it is until torch has made the smaller one."""
    members = [1, 2, 3]
    group = dist.new_group(members)
    if own_rank() in members:
        _sum_of_ranks(group, members)
    if own_rank() == 2:
        assert "exclusion list" in failure(lambda: dist.shrink_group([1], group))
        backend = group._get_backend(torch.get_default_device())
        assert "rank 1 is one of the excluded ranks" in failure(lambda: backend.shrink([1], SHRINK_DEFAULT, None))
    elif own_rank() in members:
        smaller = dist.shrink_group([1], group)
        assert dist.get_process_group_ranks(smaller) == [1, 3]
        _sum_of_ranks(smaller, [1, 3])
        dist.destroy_process_group(smaller)
    _sum_of_ranks(dist.distributed_c10d._get_default_group(), list(range(dist.get_world_size())))


def test_a_group_shrinks_beside_others(fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(4).run(_leave_one_out)


@pytest.mark.parametrize("flags", [SHRINK_DEFAULT, SHRINK_ABORT])
def test_one_rank_may_be_left(flags: int, fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(2).run(_stay_alone, flags)


def _stay_alone(flags: int) -> None:
    if own_rank() == 1:
        group = dist.shrink_group([0], shrink_flags=flags)
        _sum_of_ranks(group, [1])
