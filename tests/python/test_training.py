"""What trains over the backend: DDP, FSDP2, functional collectives, compiled code, checkpoints, DETAIL debugging."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from devices import on_cpu_and_gpu
from pool import BACKEND, RankPool, own_rank
from reference import case, same_bits
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

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


def _train(model: nn.Module, share: slice) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in _batches():
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
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs) if dist.get_rank() == 0 else self.unused(inputs)


def _ddp_corners() -> None:
    """Unused parameters, gradient accumulation without synchronisation, uneven inputs, synchronised buffers."""
    model = nn.parallel.DistributedDataParallel(_Branches(), find_unused_parameters=True)
    _train(model, _share())
    model = nn.parallel.DistributedDataParallel(_model())
    inputs = torch.randn(4, 16)
    with model.no_sync():
        model(inputs).sum().backward()
    model(inputs).sum().backward()
    with model.join():
        for _ in range(1 + dist.get_rank()):
            model(inputs).sum().backward()


@on_cpu_and_gpu
def test_ddp_with_unused_parameters_no_sync_and_join(two_ranks: RankPool) -> None:
    two_ranks.run(_ddp_corners, timeout_s=120)


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


def _compiled() -> None:
    import torch.distributed._functional_collectives as funcol

    def function(data: torch.Tensor) -> torch.Tensor:
        return (
            funcol.all_gather_tensor(funcol.all_reduce(data * 2, "sum", dist.group.WORLD) + 1, 0, dist.group.WORLD) * 3
        )

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    data = torch.arange(5.0) + dist.get_rank()
    same_bits(compiled(data), function(data))
    same_bits(compiled(data + 1), function(data + 1))


@on_cpu_and_gpu
def test_compiled_functional_collectives(two_ranks: RankPool) -> None:
    two_ranks.run(_compiled, timeout_s=180)


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


def _debug_in_detail(folder: str) -> None:
    """torch wraps every group, checks shapes and sequence numbers through Gloo, and then calls the backend."""
    rank = own_rank()
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group(BACKEND, init_method=f"file://{folder}/store", rank=rank, world_size=2)
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


def test_groups_debugged_in_detail(fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_debug_in_detail, str(tmp_path))
