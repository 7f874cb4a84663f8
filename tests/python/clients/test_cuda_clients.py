"""Clients of torch.distributed that work on GPUs alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from support.devices import needs_two_gpus, on
from support.pool import RankPool
from support.reference import case, same_bits


def _mesh() -> DeviceMesh:
    return init_device_mesh("cuda", (dist.get_world_size(),))


def _share() -> slice:
    return slice(dist.get_rank(), None, dist.get_world_size())


def _synchronised_statistics() -> None:
    """Each rank has a part of the batch that one process normalises as a whole."""
    torch.manual_seed(2)
    inputs = torch.randn(12, 5, 6, 6)
    whole = inputs.clone().requires_grad_()
    alone = nn.BatchNorm2d(5)
    expected = alone(whole)
    expected.pow(3).sum().backward()
    part = inputs[_share()].clone().requires_grad_()
    together = nn.SyncBatchNorm(5)
    found = together(part)
    found.pow(3).sum().backward()
    assert part.grad is not None
    assert whole.grad is not None
    torch.testing.assert_close(found, expected[_share()])
    torch.testing.assert_close(part.grad, whole.grad[_share()], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(together.running_var, alone.running_var)


@on("cuda", "staged")
def test_batch_norm_over_the_ranks(ranks: RankPool) -> None:
    ranks.run(_synchronised_statistics)


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def _train(model: nn.Module, share: slice = slice(None)) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        torch.manual_seed(step)
        inputs, targets = torch.randn(24, 16), torch.randn(24, 4)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[share]), targets[share]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # a reduction of CPU tensors
        optimizer.step()


def _offloaded() -> None:
    """Parameters, gradients and optimizer are on the CPU, and use the same group as the tensors on the GPU."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    alone, model = _model(), _model()
    _train(alone)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=_mesh(), offload_policy=CPUOffloadPolicy())
    _train(model, _share())
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert parameter.device.type == "cpu"
        torch.testing.assert_close(parameter.full_tensor().detach(), expected.detach().cpu(), atol=1e-4, rtol=1e-4)


@on("cuda", "staged")
def test_fsdp2_offloads_to_the_cpu(two_ranks: RankPool) -> None:
    two_ranks.run(_offloaded, timeout_s=120)


def _ring_attention() -> None:
    """A sequence is split over the ranks, which pass keys and values around; output and gradients match the whole."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = _mesh()

    def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)  # which torch replaces

    for method in ("allgather", "alltoall"):
        torch.manual_seed(5)
        whole = [torch.randn(2, 4, 64 * dist.get_world_size(), 64, dtype=torch.bfloat16) for _ in range(3)]
        parts = [each.clone() for each in whole]
        with case(method=method), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            expected = attention(*(each.requires_grad_() for each in whole))
            expected.float().square().sum().backward()
            set_rotate_method(method)
            with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 3, no_restore_buffers=set(parts)):
                output = attention(*(each.requires_grad_() for each in parts))
                output.float().square().sum().backward()
            spread = [output.detach(), *(each.grad for each in parts)]
            found = context_parallel_unshard(mesh, spread, [2] * 4)
            for ours, theirs in zip(found, [expected.detach(), *(each.grad for each in whole)], strict=True):
                torch.testing.assert_close(ours, theirs, atol=5e-2, rtol=5e-2)


@on("cuda", "staged")
def test_context_parallelism(two_ranks: RankPool) -> None:
    two_ranks.run(_ring_attention, timeout_s=120)


def _symmetric_memory() -> None:
    """Runs torch's own kernels over its own memory; the ranks exchange its handles through a group of ours."""
    from torch.distributed import _symmetric_memory as symmetric_memory

    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    for each in (group, dist.new_group()):
        data = symmetric_memory.empty(1024, dtype=torch.float32, device=torch.get_default_device())
        handle = symmetric_memory.rendezvous(data, each)
        data.fill_(rank + 1)
        handle.barrier()
        same_bits(handle.get_buffer(1 - rank, (1024,), torch.float32), torch.full((1024,), 2.0 - rank))
        handle.barrier()
        total = torch.ops.symm_mem.one_shot_all_reduce(data, "sum", each.group_name)
        same_bits(total, torch.full((1024,), 3.0))


@needs_two_gpus
@on("cuda")
def test_symmetric_memory_meets_over_a_group(two_ranks: RankPool) -> None:
    two_ranks.run(_symmetric_memory)
