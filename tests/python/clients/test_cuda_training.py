"""Common training on GPUs: DDP, FSDP2 and tensor parallelism learn digits as one process does."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from support.devices import on
from support.pool import RankPool
from support.reference import case, same_bits

pytestmark = on("cuda", "staged")

STEPS = 30
BATCH = 120  # samples of all ranks together


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    device = torch.get_default_device()
    return torch.tensor(images, dtype=torch.float32, device=device) / 16, torch.tensor(labels, device=device)


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def _train(model: nn.Module, share: slice = slice(None)) -> list[torch.Tensor]:
    """Returns the loss of every step for this rank's share of each batch."""
    images, labels = _digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)  # DTensors beside tensors
    losses = []
    for step in range(STEPS):
        batch = slice(step * BATCH % 1200, step * BATCH % 1200 + BATCH)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch][share]), labels[batch][share])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def _share() -> slice:
    return slice(dist.get_rank(), None, dist.get_world_size())


def _mesh() -> DeviceMesh:
    return init_device_mesh("cuda", (dist.get_world_size(),))


def _compare(model: nn.Module, losses: list[torch.Tensor], alone: nn.Module, expected: list[torch.Tensor]) -> None:
    """Compares the losses, averaged over the ranks, and the full parameters, and checks that the model has learnt."""
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), atol=2e-3, rtol=2e-3)
    assert float(losses[-1]) < 0.5 * float(losses[0])
    for parameter, other in zip(model.parameters(), alone.parameters(), strict=True):
        full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        torch.testing.assert_close(full.detach(), other.detach(), atol=5e-3, rtol=5e-2)


def _mean_over_ranks(losses: list[torch.Tensor]) -> list[torch.Tensor]:
    stacked = torch.stack(losses)
    dist.all_reduce(stacked, dist.ReduceOp.AVG)
    return list(stacked)


def _ddp() -> None:
    alone = _model()
    expected = _train(alone)
    model = nn.parallel.DistributedDataParallel(_model(), bucket_cap_mb=0.01, gradient_as_bucket_view=True)
    _compare(model, _mean_over_ranks(_train(model, _share())), alone, expected)
    compiled = nn.parallel.DistributedDataParallel(_model())
    compiled_losses = _train(torch.compile(compiled, backend="aot_eager"), _share())  # type: ignore[arg-type]
    _compare(compiled, _mean_over_ranks(compiled_losses), alone, expected)


def test_ddp_learns_digits(two_ranks: RankPool) -> None:
    two_ranks.run(_ddp, timeout_s=180)


def _fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    alone = _model()
    expected = _train(alone)
    model, mesh = _model(), _mesh()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _compare(model, _mean_over_ranks(_train(model, _share())), alone, expected)


def test_fsdp2_learns_digits(two_ranks: RankPool) -> None:
    two_ranks.run(_fsdp, timeout_s=180)


def _tensor_parallel() -> None:
    """All ranks see the whole batch; each holds a part of every layer."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    alone = _model()
    expected = _train(alone)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(_model(), _mesh(), plan)
    _compare(model, _train(model), alone, expected)


def test_tensor_parallel_learns_digits(two_ranks: RankPool) -> None:
    two_ranks.run(_tensor_parallel, timeout_s=180)


def _pipeline() -> None:
    """Activations go to the next rank in batches of messages, and gradients return: two stages by hand."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    stages = [nn.Linear(32, 32) for _ in range(num_ranks)]
    inputs = [torch.randn(16, 32) for _ in range(8)]
    for step, data in enumerate(inputs):
        received = data if rank == 0 else _receive(rank - 1).requires_grad_()
        output = stages[rank](received)
        if rank < num_ranks - 1:
            _send(output.detach(), rank + 1)
            output.backward(_receive(rank + 1))
        else:
            output.sum().backward()
        if rank > 0:
            _send(received.grad, rank - 1)
        with case(step=step):
            _check_stage(stages, data, rank)
        stages[rank].zero_grad()


def _send(data: torch.Tensor | None, peer: int) -> None:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, data, peer)]):
        work.wait()


def _receive(peer: int) -> torch.Tensor:
    data = torch.empty(16, 32)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, data, peer)]):
        work.wait()
    return data


def _check_stage(stages: list[nn.Linear], data: torch.Tensor, rank: int) -> None:
    """Returns the gradient of the whole, computed in this process, for this rank's stage."""
    found = [parameter.grad.clone() for parameter in stages[rank].parameters() if parameter.grad is not None]
    copies = [nn.Linear(32, 32) for _ in stages]
    for copy, stage in zip(copies, stages, strict=True):
        copy.load_state_dict(stage.state_dict())
    nn.Sequential(*copies)(data).sum().backward()
    for gradient, parameter in zip(found, copies[rank].parameters(), strict=True):
        assert parameter.grad is not None
        same_bits(gradient, parameter.grad)


def test_a_pipeline_of_messages_yields_the_same_gradients(ranks: RankPool) -> None:
    ranks.run(_pipeline)
