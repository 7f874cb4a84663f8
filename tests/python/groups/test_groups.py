"""Groups beside, inside and across each other; barriers; objects; DeviceMesh."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import combinations
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.devices import on, on_cpu_and_gpu
from support.gpu import backend_of
from support.pool import BACKEND, RankPool, own_rank
from support.reference import case, contribution, failure, same_bits


def _subgroups() -> None:
    """Every subset of the ranks is a group; all of them work at once, in both orders of waiting."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    subsets = [subset for size in range(1, num_ranks + 1) for subset in combinations(range(num_ranks), size)]
    groups = [dist.new_group(list(subset)) for subset in subsets]
    for order in (1, -1):
        pending = []
        for subset, group in zip(subsets, groups, strict=True):
            if rank in subset:
                data = torch.full((1000,), float(rank + 1))
                pending.append((dist.all_reduce(data, group=group, async_op=True), data, subset))
        for work, data, subset in pending[::order]:
            work.wait()
            same_bits(data, torch.full((1000,), float(sum(member + 1 for member in subset))))
    for subset, group in zip(subsets, groups, strict=True):
        if rank in subset:
            dist.destroy_process_group(group)


@on_cpu_and_gpu
def test_overlapping_and_nested_groups(ranks: RankPool) -> None:
    ranks.run(_subgroups)


def _group_ranks() -> None:
    """In the group (3, 1), ranks have new numbers; broadcast and scatter name roots by global rank."""
    members = [1, 3]
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        assert group is dist.GroupMember.NON_GROUP_MEMBER
        return
    data = torch.full((5,), float(dist.get_rank()))
    dist.broadcast(data, src=3, group=group)
    same_bits(data, torch.full((5,), 3.0))
    data = torch.full((5,), float(dist.get_rank()))
    dist.broadcast(data, group=group, group_src=0)
    same_bits(data, torch.full((5,), 1.0))
    gathered = [torch.zeros(1) for _ in members]
    dist.all_gather(gathered, torch.tensor([float(dist.get_rank())]), group=group)
    assert [float(one) for one in gathered] == [1.0, 3.0]
    if dist.get_rank() == 1:
        dist.send(data, 3, group=group)
    else:
        source = None if data.device.type == "cpu" else 1
        assert dist.recv(data, source, group=group) == 1  # any source, reported as a global rank
    dist.destroy_process_group(group)


@on_cpu_and_gpu
def test_roots_and_peers_of_a_group_are_named_by_global_rank(four_ranks: RankPool) -> None:
    four_ranks.run(_group_ranks)


def _hundred_groups() -> tuple[int, float]:
    before = len(os.listdir("/proc/self/fd")), _resident_kilobytes()
    groups = [dist.new_group() for _ in range(100)]
    for index, group in enumerate(groups):
        data = contribution(dist.get_rank(), 10, torch.int64, seed=index)
        dist.all_reduce(data, group=group)
    growth = len(os.listdir("/proc/self/fd")) - before[0], (_resident_kilobytes() - before[1]) / 100
    for group in groups:
        dist.destroy_process_group(group)
    return growth


def _resident_kilobytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_a_hundred_groups_open_no_connections_and_take_little_memory(ranks: RankPool) -> None:
    ranks.run(_hundred_groups)  # warms allocators up
    for num_descriptors, kilobytes in ranks.run(_hundred_groups):
        if BACKEND == "axon":
            assert num_descriptors == 0
            assert kilobytes < 64


def _split() -> None:
    """Splits alternate ranks off the world, and parts off each other; a group's own options are not the parent's."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    world = dist.group.WORLD
    assert backend_of(world).supports_splitting
    for turn in range(3):
        for members in (list(range(0, num_ranks, 2)), list(range(1, num_ranks, 2))):
            name = f"split {turn} {members}"
            options = copy.deepcopy(backend_of(world).options)
            part = world.split_group(members, timedelta(seconds=30), options, name, "a part")
            assert (part is None) == (rank not in members)
            if part is None:
                continue
            assert (part.rank(), part.size()) == (members.index(rank), len(members))
            assert part._get_backend(torch.device("cpu")) is part._get_backend(torch.device("cuda"))
            assert backend_of(part).options.group_name == name
            assert backend_of(part).options.global_ranks_in_group == members
            data = torch.full((1000,), float(rank + turn))
            part.allreduce([data]).wait()
            same_bits(data, torch.full((1000,), float(sum(member + turn for member in members))))
            part.shutdown()
    data = torch.ones(10)
    dist.all_reduce(data)
    same_bits(data, torch.full((10,), float(num_ranks)))


@on_cpu_and_gpu
def test_groups_are_split(ranks: RankPool) -> None:
    ranks.run(_split)


def _split_of_a_split() -> None:
    rank = dist.get_rank()
    world = dist.group.WORLD
    pair = world.split_group([0, 1] if rank < 2 else [2, 3], timedelta(seconds=30), None, f"pair {rank // 2}", None)
    alone = pair.split_group([1], timedelta(seconds=30), None, f"alone {rank // 2}", None)
    assert (alone is None) == (rank % 2 == 0)
    if alone is not None:
        assert backend_of(alone).options.global_ranks_in_group == [rank]


@on_cpu_and_gpu
def test_a_split_group_is_split(four_ranks: RankPool) -> None:
    four_ranks.run(_split_of_a_split)


def _merge(folder: str) -> None:
    """Two groups without knowledge of each other, as two jobs have them, become one, again and again."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    side = rank % 2
    sides = [dist.new_group(list(range(first, num_ranks, 2))) for first in (0, 1)]
    for turn in range(2):
        store = dist.FileStore(f"{folder}/{turn}", num_ranks)
        merged = sides[side].merge_remote_group(store, num_ranks, timedelta(seconds=30), "merged", "two sides")
        assert merged.size() == num_ranks
        assert merged._get_backend(torch.device("cpu")) is merged._get_backend(torch.device("cuda"))
        data = torch.full((1000,), float(rank))
        merged.allreduce([data]).wait()
        same_bits(data, torch.full((1000,), float(sum(range(num_ranks)))))
        ranks = torch.zeros(num_ranks)
        merged._allgather_base(ranks, torch.tensor([float(merged.rank())])).wait()
        same_bits(ranks, torch.arange(float(num_ranks)))
        merged.shutdown()


@on_cpu_and_gpu
def test_groups_of_two_jobs_are_merged(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(_merge, str(tmp_path))


@on("cuda")
def test_device_mesh_with_a_device_id(fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_mesh_with_a_device_id, str(tmp_path))


def _mesh_with_a_device_id(folder: str) -> None:
    """Forms groups through split_group; new_group requires nothing of ranks that are not members."""
    from torch.distributed.device_mesh import init_device_mesh

    rank = own_rank()
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group(BACKEND, init_method=f"file://{folder}/store", rank=rank, world_size=2, device_id=device)
    mesh = init_device_mesh("cuda", (2, 1), mesh_dim_names=("data", "model"))
    data = torch.full((1000,), float(rank), device=device)
    dist.all_reduce(data, group=mesh["data"].get_group())
    same_bits(data, torch.full((1000,), 1.0, device=device))
    dist.all_reduce(data, group=mesh["model"].get_group())
    alone = dist.new_group([1])
    assert (alone is dist.GroupMember.NON_GROUP_MEMBER) == (rank == 0)
    dist.destroy_process_group()


def _barrier(asynchronous: bool) -> float:
    """Rank 0 is late; when the others leave the barrier, rank 0 has entered it."""
    dist.barrier()
    started = time.monotonic()
    if dist.get_rank() == 0:
        time.sleep(0.3)
    work = dist.barrier(async_op=asynchronous)
    if work is not None:
        work.wait()
    return time.monotonic() - started


def test_barrier_waits_for_the_last(ranks: RankPool) -> None:
    for asynchronous in (False, True):
        assert all(seconds > 0.25 for seconds in ranks.run(_barrier, asynchronous))


def _monitored_barrier(missing: list[int], wait_all_ranks: bool) -> str:
    dist.monitored_barrier()
    group = dist.new_group(timeout=timedelta(seconds=1))
    try:
        if dist.get_rank() in missing:
            return ""
        return failure(lambda: dist.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks))
    finally:
        dist.barrier()  # the missing answer until then


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_monitored_barrier_names_the_missing(four_ranks: RankPool, wait_all_ranks: bool) -> None:
    of_rank_0, _, _, of_rank_3 = four_ranks.run(_monitored_barrier, [1, 2], wait_all_ranks)
    whom = "Ranks 1, 2" if wait_all_ranks else "Rank 1"
    assert of_rank_0.startswith(f"DistBackendError: {whom} failed to pass monitoredBarrier in 1000 ms. [rank 0 ")
    assert "Not entered by: rank 1 (" in of_rank_0
    assert "), rank 2 (" in of_rank_0
    assert of_rank_3.startswith(
        "DistBackendError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting"
    )
    assert "Not entered by: rank 1 (" in of_rank_3


def test_monitored_barrier_where_rank_0_is_missing(two_ranks: RankPool) -> None:
    assert "Not entered by: rank 0 (" in two_ranks.run(_monitored_barrier, [0], False)[1]


def _monitored_barrier_in_a_broken_group() -> str:
    group = dist.new_group(timeout=timedelta(seconds=1))
    try:
        if dist.get_rank() == 0:
            assert "Not entered by: rank 1 (" in failure(lambda: dist.all_reduce(torch.ones(1), group=group))
    finally:
        dist.barrier()
    return failure(lambda: dist.monitored_barrier(group, timedelta(seconds=1)))


def test_monitored_barrier_blames_no_rank_for_what_broke_the_group_before(two_ranks: RankPool) -> None:
    of_rank_0 = two_ranks.run(_monitored_barrier_in_a_broken_group)[0]
    assert "all_reduce" in of_rank_0
    assert "failed to pass monitoredBarrier" not in of_rank_0


def _monitored_barrier_that_rank_0_comes_to_late() -> None:
    if dist.get_rank() == 0:
        time.sleep(2.5)  # more than its timeout, and than the extra time in which the others expect its message
    dist.monitored_barrier(timeout=timedelta(milliseconds=100))


def test_monitored_barrier_waits_for_rank_0_as_long_as_the_group_does(two_ranks: RankPool) -> None:
    two_ranks.run(_monitored_barrier_that_rank_0_comes_to_late)


def _monitored_barrier_without_time() -> str:
    if dist.get_rank() != 0:
        return ""
    return failure(lambda: dist.monitored_barrier(timeout=timedelta(0)))


def test_monitored_barrier_without_time_says_so(two_ranks: RankPool) -> None:
    assert "Rank 0 timed out in monitoredBarrier" in two_ranks.run(_monitored_barrier_without_time)[0]


def _objects() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (rank * 1000), "tensor": torch.arange(rank + 1)}
    gathered: list[object] = [None] * num_ranks
    dist.all_gather_object(gathered, mine)
    assert [one["rank"] for one in gathered] == list(range(num_ranks))  # type: ignore[index]
    collected: list[object] | None = [None] * num_ranks if rank == 1 else None
    dist.gather_object(("object", rank), collected, dst=1)
    assert collected is None or collected == [("object", other) for other in range(num_ranks)]
    objects = [[1, 2], "three", None] if rank == 0 else [None, None, None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == [[1, 2], "three", None]
    output: list[object] = [None]
    dist.scatter_object_list(output, [f"for {to}" for to in range(num_ranks)] if rank == 0 else None, src=0)
    assert output == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["a", {"b": 1}], dst=1)
    elif rank == 1:
        received: list[object] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == ["a", {"b": 1}]


def test_object_collectives(ranks: RankPool) -> None:
    ranks.run(_objects)


def _backends_by_device(backends: str, folder: str) -> None:
    """Each device type uses its named backend. Hooks see our calls; beside Gloo they are Gloo's from torch 2.14 on."""
    rank, ended = own_rank(), []
    dist.init_process_group(backends, init_method=f"file://{folder}/store", rank=rank, world_size=2)
    group = dist.group.WORLD
    assert group is not None
    names = [f"{device}:{group._get_backend(torch.device(device)).name()}" for device in ("cpu", "cuda")]
    assert ",".join(names) == backends
    takes_hooks = backends.startswith("cpu:axon") and ("gloo" not in backends or torch.__version__ < "2.14")
    if takes_hooks:
        group._register_on_completion_hook(ended.append)
    for within in (group, dist.new_group([0, 1])):
        data = torch.full((1000,), float(rank + 1), device="cpu")
        dist.all_reduce(data, group=within)
        assert torch.equal(data, torch.full((1000,), 3.0, device="cpu"))
        dist.barrier(group=within)
    objects = [None, None]
    dist.all_gather_object(objects, rank)
    assert objects == [0, 1]
    dist.destroy_process_group()  # which waits for hooks
    assert bool(ended) == takes_hooks


@pytest.mark.parametrize("backends", ["cpu:axon,cuda:axon", "cpu:axon,cuda:gloo", "cpu:gloo,cuda:axon"])
def test_backends_by_device(backends: str, fresh_ranks: Callable[..., RankPool], tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_backends_by_device, backends, str(tmp_path))


def _device_mesh() -> None:
    """Ranks (0, 1) and (2, 3) are the rows, (0, 2) and (1, 3) the columns; both have calls in flight at once."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(torch.get_default_device().type, (2, 2), mesh_dim_names=("replicate", "shard"))
    rank = dist.get_rank()
    dimensions = {"replicate": [rank % 2, rank % 2 + 2], "shard": [rank // 2 * 2, rank // 2 * 2 + 1]}
    pending = []
    for name, members in dimensions.items():
        with case(dimension=name):
            assert dist.get_process_group_ranks(mesh.get_group(name)) == members
            assert members[mesh.get_local_rank(name)] == rank
            data = torch.full((1000,), float(rank))
            pending.append((dist.all_reduce(data, group=mesh[name].get_group(), async_op=True), data, sum(members)))
    for work, data, total in pending[::-1]:
        work.wait()
        same_bits(data, torch.full((1000,), float(total)))
    for name, members in dimensions.items():
        with case(dimension=name):
            _collect_and_exchange(mesh.get_group(name), members)


def _collect_and_exchange(group: dist.ProcessGroup, members: list[int]) -> None:
    rank = dist.get_rank()
    peer = sum(members) - rank
    gathered = torch.zeros(2, 3)
    dist.all_gather_into_tensor(gathered, torch.full((3,), float(rank)), group=group)
    same_bits(gathered, torch.tensor([[float(member)] * 3 for member in members]))
    part = torch.zeros(3)
    dist.reduce_scatter_tensor(part, torch.arange(6.0) * (rank + 1), group=group)
    same_bits(part, torch.arange(6.0).view(2, 3)[members.index(rank)] * (sum(members) + 2))
    received = torch.zeros(5)
    if rank < peer:
        dist.send(torch.full((5,), float(rank)), peer, group=group)
        dist.recv(received, peer, group=group)
    else:
        dist.recv(received, group_src=0, group=group)
        dist.send(torch.full((5,), float(rank)), group_dst=0, group=group)
    same_bits(received, torch.full((5,), float(peer)))


@on_cpu_and_gpu
def test_device_mesh_without_a_device_id(four_ranks: RankPool) -> None:
    four_ranks.run(_device_mesh)


def _distributed_tensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    left, right = torch.arange(30.0).view(5, 6), torch.arange(24.0).view(6, 4)
    product = distribute_tensor(left, mesh, [Shard(0)]) @ distribute_tensor(right, mesh, [Replicate()])
    same_bits(product.full_tensor(), left @ right)
    partial = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    same_bits(partial.redistribute(mesh, [Shard(0)]).full_tensor(), left @ right)
    same_bits(distribute_tensor(left, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)]).full_tensor(), left)
    row = left[:1].clone()  # of which all ranks but one have nothing
    same_bits(distribute_tensor(row, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)]).full_tensor(), row)


@on_cpu_and_gpu
def test_distributed_tensors(ranks: RankPool) -> None:
    ranks.run(_distributed_tensor)
