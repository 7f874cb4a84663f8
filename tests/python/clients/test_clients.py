"""Other clients of torch.distributed: FSDP1, hybrid sharding, hooks, sequence parallelism, pipelines, checkpoints.

Each trains as one process does; where a single process cannot, the results are compared with Gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)

from support.devices import on, on_cpu_and_gpu
from support.gpu import backend_of
from support.pool import RankPool
from support.reference import case, same_bits

STEPS = 5


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return _random(24, 16, generator), _random(24, 4, generator)


def _random(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, columns, generator=generator, device="cpu").to(torch.get_default_device())


def _mesh(*shape: int) -> DeviceMesh:
    """In a mesh of two dimensions, ranks are sharded within rows and replicated between them."""
    names = ("replicate", "shard")[-len(shape) :]
    return init_device_mesh(torch.get_default_device().type, shape, mesh_dim_names=names)


def _train(model: nn.Module, share: slice = slice(None)) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[share]).float(), targets[share]).backward()
        optimizer.step()


def _share() -> slice:
    return slice(dist.get_rank(), None, dist.get_world_size())


def _alone() -> list[torch.Tensor]:
    model = _model()
    _train(model)
    return [parameter.detach() for parameter in model.parameters()]


def _sharded_by_fsdp1(**options: Any) -> FullyShardedDataParallel:
    return FullyShardedDataParallel(_model(), device_id=torch.get_default_device(), use_orig_params=True, **options)


def _agrees_with_fsdp1(model: FullyShardedDataParallel, alone: Sequence[torch.Tensor], atol: float = 1e-5) -> None:
    with FullyShardedDataParallel.summon_full_params(model):
        for parameter, expected in zip(model.parameters(), alone, strict=True):
            torch.testing.assert_close(parameter.detach().to(expected.device), expected, atol=atol, rtol=1e-5)


def _fsdp1(strategies: Sequence[ShardingStrategy], *mesh: int) -> None:
    """Trains over the default group, or over a mesh of this shape."""
    for strategy in strategies:
        with case(strategy=strategy.name):
            model = _sharded_by_fsdp1(sharding_strategy=strategy, device_mesh=_mesh(*mesh) if mesh else None)
            _train(model, _share())
            _agrees_with_fsdp1(model, _alone())


@on_cpu_and_gpu
def test_fsdp1_trains_as_one_process_does(two_ranks: RankPool) -> None:
    strategies = (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD)
    two_ranks.run(_fsdp1, strategies, timeout_s=120)


@on_cpu_and_gpu
def test_fsdp1_over_a_mesh_of_two_dimensions(four_ranks: RankPool) -> None:
    strategies = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
    four_ranks.run(_fsdp1, strategies, 2, 2, timeout_s=120)


def _alone_in_mixed_precision(reduced_as: torch.dtype) -> list[torch.Tensor]:
    """Each rank's share uses parameters rounded to bfloat16; their gradients are averaged as `reduced_as`."""
    num_ranks, model = dist.get_world_size(), _model()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = _batch(step)
        totals = [torch.zeros_like(parameter, dtype=reduced_as) for parameter in parameters.values()]
        for share in (slice(rank, None, num_ranks) for rank in range(num_ranks)):
            rounded = {name: parameter.detach().bfloat16().requires_grad_() for name, parameter in parameters.items()}
            output = torch.func.functional_call(model, rounded, inputs[share].bfloat16())
            nn.functional.mse_loss(output.float(), targets[share]).backward()
            for total, parameter in zip(totals, rounded.values(), strict=True):
                assert parameter.grad is not None
                total += parameter.grad.to(reduced_as) / num_ranks
        for parameter, total in zip(parameters.values(), totals, strict=True):
            parameter.grad = total.float()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def _fsdp1_in_mixed_precision() -> None:
    on_gpu = torch.get_default_device().type == "cuda"  # where products may depend on the alignment of parameters
    for reduced_as in (torch.float32, torch.bfloat16):
        with case(reduced_as=reduced_as):
            precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduced_as)
            model = _sharded_by_fsdp1(mixed_precision=precision)
            _train(model, _share())
            _agrees_with_fsdp1(model, _alone_in_mixed_precision(reduced_as), atol=3e-4 if on_gpu else 1e-5)


@on_cpu_and_gpu
def test_fsdp1_in_mixed_precision(two_ranks: RankPool) -> None:
    two_ranks.run(_fsdp1_in_mixed_precision, timeout_s=120)


def _fsdp2_in_mixed_precision() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for reduced_as in (torch.float32, torch.bfloat16, torch.float16):
        with case(reduced_as=reduced_as):
            policy = MixedPrecisionPolicy(torch.bfloat16, reduced_as)
            model = fully_shard(_model(), mesh=_mesh(dist.get_world_size()), mp_policy=policy)
            _train(model, _share())
            for parameter, expected in zip(model.parameters(), _alone_in_mixed_precision(reduced_as), strict=True):
                torch.testing.assert_close(parameter.full_tensor().detach(), expected, atol=3e-4, rtol=1e-5)


@on_cpu_and_gpu
def test_fsdp2_in_mixed_precision(two_ranks: RankPool) -> None:
    two_ranks.run(_fsdp2_in_mixed_precision, timeout_s=120)


def _fsdp1_offloaded() -> None:
    model = _sharded_by_fsdp1(cpu_offload=CPUOffload(offload_params=True))
    _train(model, _share())
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    _agrees_with_fsdp1(model, _alone())


@on("cuda", "staged")  # torch pins the shards
def test_fsdp1_offloads_to_the_cpu(two_ranks: RankPool) -> None:
    two_ranks.run(_fsdp1_offloaded, timeout_s=120)


def _fsdp1_states() -> None:
    """Loads the trained state into an untrained model: whole on rank 0, or a shard on each rank."""
    mesh, alone = _mesh(dist.get_world_size()), _model()
    trained = _sharded_by_fsdp1(device_mesh=mesh)
    _train(trained, _share())
    _train(alone)
    on_gpu = torch.get_default_device().type == "cuda"  # torch offloads freed memory from the CPU
    whole = FullStateDictConfig(offload_to_cpu=on_gpu, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(trained, StateDictType.FULL_STATE_DICT, whole):
        state = trained.state_dict()
    assert list(state) == (list(alone.state_dict()) if dist.get_rank() == 0 else [])
    for name, value in state.items():
        assert value.device.type == "cpu"
        torch.testing.assert_close(value, alone.state_dict()[name].cpu())
    for kind in (StateDictType.SHARDED_STATE_DICT, StateDictType.FULL_STATE_DICT):
        with case(kind=kind.name):
            other = _sharded_by_fsdp1(device_mesh=mesh)
            for each in (trained, other):
                FullyShardedDataParallel.set_state_dict_type(each, kind)
            other.load_state_dict(trained.state_dict())
            _agrees_with_fsdp1(other, [parameter.detach() for parameter in alone.parameters()])


@on_cpu_and_gpu
def test_fsdp1_exports_and_loads_its_state(two_ranks: RankPool) -> None:
    two_ranks.run(_fsdp1_states, timeout_s=120)


def _hybrid() -> None:
    """Trains a model sharded within pairs of ranks and replicated between them."""
    from torch.distributed.fsdp import fully_shard

    mesh, model = _mesh(2, 2), _model()
    for layer in (model[0], model[3], model[5]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _train(model, _share())
    for parameter, expected in zip(model.parameters(), _alone(), strict=True):
        torch.testing.assert_close(parameter.full_tensor().detach(), expected)


@on_cpu_and_gpu
def test_fsdp2_over_a_mesh_of_two_dimensions(four_ranks: RankPool) -> None:
    four_ranks.run(_hybrid, timeout_s=120)


def _divided_and_exported() -> None:
    """The program sets the divisor of the gradients, and rank 0 can get the whole state."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    num_ranks = dist.get_world_size()
    model = fully_shard(_model(), mesh=_mesh(num_ranks))
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


@on_cpu_and_gpu
def test_fsdp2_divides_gradients_and_exports_its_state(ranks: RankPool) -> None:
    ranks.run(_divided_and_exported, timeout_s=120)


def _in_memory_of_the_group() -> None:
    """FSDP gathers into and reduces from the backend's own memory where it has any: on GPUs."""
    from torch.distributed.fsdp import fully_shard

    backend = backend_of()
    allocate, num_allocated = type(backend).allocate_tensor, 0

    def count_and_allocate(*arguments: Any, **keywords: Any) -> torch.Tensor:
        nonlocal num_allocated
        num_allocated += 1
        tensor: torch.Tensor = allocate(*arguments, **keywords)
        return tensor

    model, mesh = _model(), _mesh(dist.get_world_size())
    for layer in (model[0], model[3], model[5], model):
        fully_shard(layer, mesh=mesh).set_allocate_memory_from_process_group_for_comm(True)
    with mock.patch.object(type(backend), "allocate_tensor", count_and_allocate):
        _train(model, _share())
    assert (num_allocated > 0) == (torch.get_default_device().type == "cuda")
    for parameter, expected in zip(model.parameters(), _alone(), strict=True):
        torch.testing.assert_close(parameter.full_tensor().detach(), expected)


@on_cpu_and_gpu
def test_fsdp2_communicates_from_memory_of_the_group(two_ranks: RankPool) -> None:
    two_ranks.run(_in_memory_of_the_group, timeout_s=120)


class _Adapted(nn.Module):
    """Trained and frozen parameters differ in type."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.frozen = nn.Linear(16, 33, dtype=torch.bfloat16).requires_grad_(False)
        self.trained = nn.Linear(33, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.trained(self.frozen(inputs.bfloat16()).float().relu())
        return output


def _mixed_types() -> None:
    """Parameters of one group differ in type: FSDP gathers them as bytes."""
    from torch.distributed.fsdp import fully_shard

    alone, model = _Adapted(), fully_shard(_Adapted(), mesh=_mesh(dist.get_world_size()))
    _train(alone)
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"  # since torch 2.14
    with mock.patch.object(dist, name, wraps=getattr(dist, name)) as gather:
        _train(model, _share())
    gathered = [next(iter([*call.args, *call.kwargs.values()])) for call in gather.call_args_list]
    assert {tensor.dtype for tensor in gathered} == {torch.uint8}
    same_bits(model.frozen.weight.full_tensor(), alone.frozen.weight)
    for parameter, expected in zip(model.trained.parameters(), alone.trained.parameters(), strict=True):
        # bfloat16 is rounded after sums whose order depends on the batch.
        torch.testing.assert_close(parameter.full_tensor().detach(), expected.detach(), atol=1e-3, rtol=1e-3)


@on_cpu_and_gpu
def test_fsdp2_gathers_parameters_of_mixed_types(ranks: RankPool) -> None:
    ranks.run(_mixed_types, timeout_s=120)


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


@on_cpu_and_gpu
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


@on_cpu_and_gpu
def test_an_optimizer_shards_its_state(two_ranks: RankPool) -> None:
    two_ranks.run(_sharded_optimizer, timeout_s=120)


def _sequence_parallel() -> None:
    """Shards columns, then rows; between the layers each rank has a part of the sequence."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    model = parallelize_module(
        _model(),
        _mesh(dist.get_world_size()),
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


@on_cpu_and_gpu
def test_sequence_parallelism(two_ranks: RankPool) -> None:
    two_ranks.run(_sequence_parallel, timeout_s=120)


def _layer(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh())


def _pipeline_schedule(name: str) -> None:
    from torch.distributed.pipelining import PipelineStage, schedules

    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    num_stages = num_ranks * (2 if "Interleaved" in name else 1)
    device = torch.get_default_device()
    layers = {number: _layer(number) for number in range(rank, num_stages, num_ranks)}
    stages = [PipelineStage(layer, number, num_stages, device) for number, layer in layers.items()]
    make: Callable[..., schedules._PipelineSchedule] = getattr(schedules, name)
    schedule = make(stages if "Interleaved" in name else stages[0], n_microbatches=8, loss_fn=nn.functional.mse_loss)
    inputs = _random(32, 16, torch.Generator().manual_seed(1))
    targets = _random(32, 16, torch.Generator().manual_seed(2))
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


@on_cpu_and_gpu
@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_pipeline_schedules(name: str, ranks: RankPool) -> None:
    ranks.run(_pipeline_schedule, name, timeout_s=120)


def _checkpoint_elsewhere(folder: str) -> None:
    """Saves in the background from four shards, and loads into two pairs of replicas."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(_model(), mesh=_mesh(4))
    _train(model, _share())
    expected = [parameter.full_tensor().detach() for parameter in model.parameters()]
    saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder, process_group=dist.new_group())
    saving.result()
    other = fully_shard(_model(), mesh=_mesh(2, 2))
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state["model"])
    for parameter, before in zip(other.parameters(), expected, strict=True):
        same_bits(parameter.full_tensor().detach(), before)


@on_cpu_and_gpu
def test_checkpoints_are_saved_in_the_background_and_loaded_otherwise(four_ranks: RankPool, tmp_path: Path) -> None:
    four_ranks.run(_checkpoint_elsewhere, str(tmp_path), timeout_s=120)
