"""Training over the backend: DDP, FSDP2, functional collectives, compiled code, checkpoints, DETAIL debugging."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from support.devices import on_cpu_and_gpu
from support.pool import BACKEND, RankPool, own_rank
from support.reference import case, same_bits

STEPS = 4


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def _batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11)
    return [(_random(12, 16, generator), _random(12, 4, generator)) for _ in range(STEPS)]


def _random(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, columns, generator=generator, device="cpu").to(torch.get_default_device())


def _mesh() -> DeviceMesh:
    return init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))


def _train(model: nn.Module, share: slice, num_steps: int = STEPS) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in _batches()[:num_steps]:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[share]), targets[share]).backward()
        optimizer.step()


def _alone() -> list[torch.Tensor]:
    model = _model()
    _train(model, slice(None))
    return [parameter.detach() for parameter in model.parameters()]


def _share() -> slice:
    return slice(dist.get_rank(), None, dist.get_world_size())


def _ddp() -> None:
    for bucket_view in (False, True):
        for hook in (None, "fp16"):
            with case(bucket_view=bucket_view, hook=hook):
                model = nn.parallel.DistributedDataParallel(_model(), gradient_as_bucket_view=bucket_view)
                if hook:
                    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

                    model.register_comm_hook(None, fp16_compress_hook)
                _train(model, _share())
                for parameter, expected in zip(model.parameters(), _alone(), strict=True):
                    torch.testing.assert_close(parameter.detach(), expected, atol=1e-2 if hook else 1e-5, rtol=1e-2)
                gathered = [torch.zeros_like(expected) for _ in range(dist.get_world_size())]
                dist.all_gather(gathered, parameter.detach())
                for other in gathered:
                    same_bits(other, parameter.detach())


@on_cpu_and_gpu
def test_ddp_trains_as_one_process_does(ranks: RankPool) -> None:
    ranks.run(_ddp, timeout_s=120)


class _Branches(nn.Module):
    """Rank 0 uses one of two layers, and all other ranks use the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.branches = nn.ModuleList(nn.Linear(16, 4) for _ in range(2))

    def forward(self, inputs: torch.Tensor, rank: int) -> torch.Tensor:
        output: torch.Tensor = self.branches[min(rank, 1)](inputs)
        return output


def _agrees(model: nn.Module, alone: nn.Module) -> None:
    """Compares with the model of one process, and bit for bit between the ranks."""
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), expected.detach(), atol=1e-5, rtol=1e-5)
        gathered = [torch.zeros_like(expected) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, parameter.detach())
        for other in gathered:
            same_bits(other, parameter.detach())


def _drops_out_over(group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Returns the losses of a training whose every step draws random numbers; rank 0 draws some for all."""
    torch.manual_seed(own_rank())
    network = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    model = nn.parallel.DistributedDataParallel(network, process_group=group)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for inputs, targets in _batches():
        order = torch.randperm(len(inputs))
        dist.broadcast(order, 0, group=group)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[order][_share()]), targets[order][_share()])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    state = torch.cuda.get_rng_state() if torch.get_default_device().type == "cuda" else torch.get_rng_state()
    return [*losses, *(parameter.detach() for parameter in model.parameters()), state.cpu()]


def _random_numbers() -> None:
    builtin = dist.new_group(backend="nccl" if torch.get_default_device().type == "cuda" else "gloo")
    assert dist.group.WORLD is not None
    for ours, theirs in zip(_drops_out_over(dist.group.WORLD), _drops_out_over(builtin), strict=True):
        same_bits(ours, theirs)
    dist.destroy_process_group(builtin)


@on_cpu_and_gpu
def test_losses_and_random_numbers_are_those_over_a_built_in_backend(two_ranks: RankPool) -> None:
    two_ranks.run(_random_numbers, timeout_s=120)


def _unused_parameters() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    alone, model = _Branches(), nn.parallel.DistributedDataParallel(_Branches(), find_unused_parameters=True)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (alone, model)]
    for inputs, targets in _batches():
        losses = [
            nn.functional.mse_loss(alone(inputs[other::num_ranks], other), targets[other::num_ranks])
            for other in range(num_ranks)
        ]
        (sum(losses) / num_ranks).backward()
        nn.functional.mse_loss(model(inputs[_share()], rank), targets[_share()]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    _agrees(model, alone)


def _accumulated_gradients() -> None:
    """Halves of a rank's share; the first stays on the rank until the second is reduced."""
    alone, model = _model(), nn.parallel.DistributedDataParallel(_model())
    _train(alone, slice(None))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in _batches():
        halves = zip(inputs[_share()].chunk(2), targets[_share()].chunk(2), strict=True)
        for synchronisation, (data, target) in zip((model.no_sync(), nullcontext()), halves, strict=True):
            with synchronisation:
                (nn.functional.mse_loss(model(data), target) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    _agrees(model, alone)


def _uneven_inputs() -> None:
    """Rank 0 has two batches less than rank 1: a rank without a batch counts as one with gradients of 0."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    alone, model = _model(), nn.parallel.DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step, (inputs, targets) in enumerate(_batches()):
        present = range(num_ranks) if step < STEPS - 2 else range(1, num_ranks)
        shares = [slice(other, None, num_ranks) for other in present]
        losses = [nn.functional.mse_loss(alone(inputs[share]), targets[share]) for share in shares]
        (sum(losses) / num_ranks).backward()
        optimizer.step()
        optimizer.zero_grad()
    with model.join():
        _train(model, _share(), STEPS - 2 if rank == 0 else STEPS)
    _agrees(model, alone)


@on_cpu_and_gpu
def test_ddp_with_unused_parameters(two_ranks: RankPool) -> None:
    two_ranks.run(_unused_parameters, timeout_s=120)


@on_cpu_and_gpu
def test_ddp_accumulates_gradients_without_synchronisation(two_ranks: RankPool) -> None:
    two_ranks.run(_accumulated_gradients, timeout_s=120)


@on_cpu_and_gpu
def test_ddp_joins_ranks_of_uneven_inputs(two_ranks: RankPool) -> None:
    two_ranks.run(_uneven_inputs, timeout_s=120)


def _reducer_as_last_owner() -> None:
    """A group is destroyed with Python's lock held, while its thread waits for the lock to release a tensor.

    Gloo's group joins that thread, and hangs.
    """
    group = dist.new_group()
    model = nn.parallel.DistributedDataParallel(_model(), process_group=group)
    dist.barrier()  # all ranks have finished DDP's first messages before rank 0 leaves
    data = torch.ones(1000)
    data.is_python_s = True  # type: ignore[attr-defined]
    if dist.get_rank() == 1:
        time.sleep(0.2)
        with suppress(dist.DistError):  # rank 0 has left by now
            dist.all_reduce(data, group=group)
        return dist.destroy_process_group(group)
    work = dist.all_reduce(data, async_op=True, group=group)
    del work, data
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no other thread gets the lock unless this one releases it
    try:
        dist.destroy_process_group(group)
        del group
        enough = time.monotonic() + 1
        while time.monotonic() < enough:
            pass
        del model
    finally:
        sys.setswitchinterval(interval)


@on_cpu_and_gpu
def test_ddp_may_be_the_last_owner_of_its_group(two_ranks: RankPool) -> None:
    two_ranks.run(_reducer_as_last_owner)


def _fsdp() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = _mesh()
    for policy in (
        MixedPrecisionPolicy(),
        MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32),
    ):
        with case(policy=policy):
            model = _model()
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh, mp_policy=policy)
            fully_shard(model, mesh=mesh, mp_policy=policy)
            _train(model, _share())
            exact = policy.param_dtype is None
            for parameter, expected in zip(model.parameters(), _alone(), strict=True):
                tolerance = 1e-5 if exact else 5e-2
                torch.testing.assert_close(parameter.full_tensor(), expected, atol=tolerance, rtol=tolerance)


@on_cpu_and_gpu
def test_fsdp2_trains_as_one_process_does(two_ranks: RankPool) -> None:
    two_ranks.run(_fsdp, timeout_s=120)


def _functional() -> None:
    import torch.distributed._functional_collectives as funcol

    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    mine = torch.arange(6.0) + rank
    total = sum(torch.arange(6.0) + other for other in range(num_ranks))
    same_bits(funcol.all_reduce(mine, "sum", group).wait(), total)
    counts = torch.full((4,), num_ranks * (rank + 1))
    average = num_ranks * sum(range(1, num_ranks + 1)) // num_ranks
    same_bits(funcol.all_reduce(counts, "avg", group).wait(), torch.full((4,), average))
    same_bits(
        funcol.all_gather_tensor(mine, 0, group).wait(),
        torch.cat([torch.arange(6.0) + other for other in range(num_ranks)]),
    )
    full = torch.arange(6.0 * num_ranks)
    same_bits(funcol.reduce_scatter_tensor(full, "sum", 0, group).wait(), full.chunk(num_ranks)[rank] * num_ranks)
    sizes = [6 // num_ranks] * num_ranks
    block = torch.arange(float(sum(sizes)))
    incoming = funcol.all_to_all_single(block, sizes, sizes, group).wait()
    same_bits(incoming, block[rank * sizes[0] : (rank + 1) * sizes[0]].repeat(num_ranks))
    both = funcol.all_reduce_coalesced([mine, mine * 2], "sum", group)
    same_bits(both[1].wait(), total * 2)
    same_bits(funcol.broadcast(mine, 0, group).wait(), torch.arange(6.0))


@on_cpu_and_gpu
def test_functional_collectives(ranks: RankPool) -> None:
    ranks.run(_functional)


def _compiled(backend: str, folder: str) -> None:
    import torch._inductor.config as inductor
    import torch.distributed._functional_collectives as funcol

    group = dist.group.WORLD

    def function(data: torch.Tensor) -> torch.Tensor:
        gathered = funcol.all_gather_tensor(funcol.all_reduce(data * 2, "sum", group) + 1, 0, group) * 3
        return funcol.reduce_scatter_tensor(gathered + data.repeat(2), "sum", 0, group) - 1

    data = torch.arange(5.0) + dist.get_rank()
    own_cache = mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder)  # without files of an earlier run
    with own_cache, inductor.patch(compile_threads=1):
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        same_bits(compiled(data), function(data))
        same_bits(compiled(data + 1), function(data + 1))


@on_cpu_and_gpu
def test_compiled_functional_collectives(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(_compiled, "aot_eager", str(tmp_path), timeout_s=180)


@on_cpu_and_gpu
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
def test_functional_collectives_compiled_by_inductor(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(_compiled, "inductor", str(tmp_path), timeout_s=180)
    generated = "".join(file.read_text() for file in tmp_path.rglob("*.py"))
    for collective in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
        assert f"_c10d_functional.{collective}" in generated


def _checkpoint(folder: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(_model(), mesh=_mesh())
    expected = [parameter.full_tensor().detach().clone() for parameter in model.parameters()]
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    for parameter, before in zip(model.parameters(), expected, strict=True):
        same_bits(parameter.full_tensor().detach(), before)


@on_cpu_and_gpu
def test_distributed_checkpoints(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(_checkpoint, str(tmp_path), timeout_s=120)


def _join_in_detail(folder: str) -> int:
    """torch wraps groups, checks shapes and sequence numbers through Gloo, and then calls the backend."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group(BACKEND, init_method=f"file://{folder}/store", rank=own_rank(), world_size=2)
    return dist.get_rank()


def _debug_in_detail(folder: str) -> None:
    rank = _join_in_detail(folder)
    group = dist.new_group()
    for each in (None, group):
        data = torch.ones(10)
        dist.all_reduce(data, group=each)
        same_bits(data, torch.full((10,), 2.0))
        output = torch.zeros(4)
        dist.all_gather_into_tensor(output, torch.full((2,), float(rank)), group=each)
        same_bits(output, torch.tensor([0.0, 0.0, 1.0, 1.0]))
        dist.barrier(each)
        if rank == 0:
            dist.send(data, 1, group=each)
        else:
            dist.recv(data, 0, group=each)
    model = nn.parallel.DistributedDataParallel(_model())
    _train(model, _share())
    dist.destroy_process_group()


@on_cpu_and_gpu
def test_groups_debugged_in_detail(fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_debug_in_detail, str(tmp_path))


def _disagree_in_detail(folder: str) -> None:
    rank = _join_in_detail(folder)
    for call in (
        lambda: dist.all_reduce(torch.ones(10 + rank)),
        lambda: dist.barrier() if rank == 0 else dist.all_reduce(torch.ones(1)),
    ):
        with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks"):
            call()
    data = torch.ones(10)
    dist.all_reduce(data)  # the backend was not called, and still works
    same_bits(data, torch.full((10,), 2.0))
    dist.destroy_process_group()


@on_cpu_and_gpu
def test_a_disagreement_debugged_in_detail_is_told_by_torch(fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_disagree_in_detail, str(tmp_path))
