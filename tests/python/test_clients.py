"""What else builds on torch.distributed: FSDP1, hybrid sharding, hooks, sequence parallelism, pipelines, checkpoints.

Each trains as one process does; what a single process cannot do is compared with Gloo.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from pool import RankPool
from reference import case, same_bits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

STEPS = 5


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(24, 16, generator=generator), torch.randn(24, 4, generator=generator)


def _train(model: nn.Module, share: slice = slice(None)) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[share]), targets[share]).backward()
        optimizer.step()


def _share() -> slice:
    return slice(dist.get_rank(), None, dist.get_world_size())


def _alone() -> list[torch.Tensor]:
    model = _model()
    _train(model)
    return [parameter.detach() for parameter in model.parameters()]


def _fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        with case(strategy=strategy.name):
            model = FullyShardedDataParallel(
                _model(), sharding_strategy=strategy, device_id=torch.device("cpu"), use_orig_params=True
            )
            _train(model, _share())
            with FullyShardedDataParallel.summon_full_params(model):
                for parameter, expected in zip(model.parameters(), _alone(), strict=True):
                    torch.testing.assert_close(parameter.detach(), expected)


def test_fsdp1_trains_as_one_process_does(two_ranks: RankPool) -> None:
    two_ranks.run(_fsdp1, timeout_s=120)


def _hybrid() -> None:
    """Sharded within pairs of ranks, replicated between them."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = _model()
    for layer in (model[0], model[3], model[5]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _train(model, _share())
    for parameter, expected in zip(model.parameters(), _alone(), strict=True):
        torch.testing.assert_close(parameter.full_tensor().detach(), expected)


def test_fsdp2_over_a_mesh_of_two_dimensions(four_ranks: RankPool) -> None:
    four_ranks.run(_hybrid, timeout_s=120)


def _divided_and_exported() -> None:
    """Gradients are divided by what the program says; the whole state is to be had on rank 0."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    num_ranks = dist.get_world_size()
    model = fully_shard(_model(), mesh=init_device_mesh("cpu", (num_ranks,)))
    model.set_gradient_divide_factor(2.0 * num_ranks)
    whole = _model()
    inputs, targets = _batch(0)
    nn.functional.mse_loss(model(inputs[_share()]), targets[_share()]).backward()
    nn.functional.mse_loss(whole(inputs), targets).backward()
    for parameter, expected in zip(model.parameters(), whole.parameters(), strict=True):
        assert parameter.grad is not None
        assert expected.grad is not None
        torch.testing.assert_close(parameter.grad.full_tensor(), expected.grad / 2)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert list(state) == (list(whole.state_dict()) if dist.get_rank() == 0 else [])
    for name, value in state.items():
        same_bits(value, whole.state_dict()[name])


def test_fsdp2_divides_gradients_and_exports_its_state(ranks: RankPool) -> None:
    ranks.run(_divided_and_exported, timeout_s=120)


def _with_hook(group: dist.ProcessGroup, hook: str) -> list[torch.Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = nn.parallel.DistributedDataParallel(_model(), process_group=group, static_graph=True)
    compressions = {"float16": default_hooks.fp16_compress_hook, "bfloat16": default_hooks.bf16_compress_hook}
    if hook in compressions:
        model.register_comm_hook(group, compressions[hook])
    else:
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    _train(model, _share())
    return [parameter.detach() for parameter in model.parameters()]


def _hooks() -> None:
    gloo = dist.new_group(backend="gloo")
    for hook in ("float16", "bfloat16", "PowerSGD"):
        with case(hook=hook):
            for ours, theirs in zip(_with_hook(dist.group.WORLD, hook), _with_hook(gloo, hook), strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-2)


def test_ddp_with_hooks_trains_as_over_gloo(two_ranks: RankPool) -> None:
    two_ranks.run(_hooks, timeout_s=120)


def _sharded_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for step in range(STEPS):
        inputs, targets = _batch(step)
        model.zero_grad()
        nn.functional.mse_loss(model(inputs[_share()]), targets[_share()]).backward()
        optimizer.step()
    for parameter, expected in zip(model.parameters(), _alone(), strict=True):
        torch.testing.assert_close(parameter.detach(), expected)
    optimizer.consolidate_state_dict(to=0)


def test_an_optimizer_shards_its_state(two_ranks: RankPool) -> None:
    two_ranks.run(_sharded_optimizer, timeout_s=120)


def _sequence_parallel() -> None:
    """Columns, then rows; between the layers each rank has a part of the sequence."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    model = parallelize_module(
        _model(),
        init_device_mesh("cpu", (dist.get_world_size(),)),
        {
            "0": ColwiseParallel(output_layouts=Shard(0), use_local_output=False),
            "1": SequenceParallel(sequence_dim=0),
            "3": ColwiseParallel(input_layouts=Shard(0)),
            "5": RowwiseParallel(),
        },
    )
    with torch.no_grad():
        inputs, _ = _batch(0)
        torch.testing.assert_close(model(inputs), _model()(inputs))


def test_sequence_parallelism(two_ranks: RankPool) -> None:
    two_ranks.run(_sequence_parallel, timeout_s=120)


def _layer(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh())


def _pipeline_schedule(name: str) -> None:
    from torch.distributed.pipelining import PipelineStage, schedules

    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    num_stages = num_ranks * (2 if "Interleaved" in name else 1)
    device = torch.device("cpu")
    layers = {number: _layer(number) for number in range(rank, num_stages, num_ranks)}
    stages = [PipelineStage(layer, number, num_stages, device) for number, layer in layers.items()]
    make: Callable[..., schedules._PipelineSchedule] = getattr(schedules, name)
    schedule = make(stages if "Interleaved" in name else stages[0], n_microbatches=8, loss_fn=nn.functional.mse_loss)
    inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    targets = torch.randn(32, 16, generator=torch.Generator().manual_seed(2))
    keywords = {"target": targets} if rank == num_ranks - 1 else {}
    schedule.step(*([inputs] if rank == 0 else []), **keywords)

    whole = [_layer(number) for number in range(num_stages)]
    chunks = zip(inputs.chunk(8), targets.chunk(8), strict=True)
    sum(nn.functional.mse_loss(nn.Sequential(*whole)(data), target) / 8 for data, target in chunks).backward()
    for number, layer in layers.items():
        for found, expected in zip(layer.parameters(), whole[number].parameters(), strict=True):
            assert found.grad is not None
            assert expected.grad is not None
            torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_pipeline_schedules(name: str, ranks: RankPool) -> None:
    ranks.run(_pipeline_schedule, name, timeout_s=120)


def _checkpoint_elsewhere(folder: str) -> None:
    """Saved in the background from four shards, loaded into two pairs of replicas."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(_model(), mesh=init_device_mesh("cpu", (4,)))
    _train(model, _share())
    expected = [parameter.full_tensor().detach() for parameter in model.parameters()]
    saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder, process_group=dist.new_group())
    saving.result()
    other = fully_shard(_model(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state["model"])
    for parameter, before in zip(other.parameters(), expected, strict=True):
        same_bits(parameter.full_tensor().detach(), before)


def test_checkpoints_are_saved_in_the_background_and_loaded_otherwise(four_ranks: RankPool, tmp_path: Path) -> None:
    four_ranks.run(_checkpoint_elsewhere, str(tmp_path), timeout_s=120)
