"""FSDP with mixed precision; a checkpoint that is written from shards and loaded by a process that serves the model.

    torchrun --nproc-per-node=2 examples/fsdp.py        # with 4 processes: two replicas of two shards each (HSDP)
    torchrun --nproc-per-node=2 examples/fsdp.py --cpu-offload      # shards, gradients and optimizer stay on the host
    torchrun --nproc-per-node=2 examples/fsdp.py --fsdp1            # FSDP1 instead of FSDP2
    torchrun --nproc-per-node=2 examples/fsdp.py --summed-loss      # FSDP2 divides gradients by a given factor

Parameters are gathered as bfloat16, and gradients are reduced as float32. The checkpoint is loaded into a model without
shards, which reads the held-out digits.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from shared import BATCH_SIZE, conclude, digits, join
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def build(device: torch.device) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
    ).to(device)


def mesh_of(device: torch.device) -> DeviceMesh:
    size = dist.get_world_size()
    if size % 2 == 0 and size > 2:
        return init_device_mesh(device.type, (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device.type, (size,))


def shard(model: nn.Sequential, mesh: DeviceMesh, arguments: argparse.Namespace) -> nn.Module:
    """Shards the model with FSDP2."""
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if arguments.cpu_offload else OffloadPolicy()
    for layer in (*(each for each in model if isinstance(each, nn.Linear)), model):
        sharded = fully_shard(layer, mesh=mesh, mp_policy=precision, offload_policy=offload)
        if arguments.summed_loss:  # over all ranks; else each takes the mean of its share, and they are averaged
            sharded.set_gradient_divide_factor(BATCH_SIZE)
    return model


def shard_with_fsdp1(model: nn.Sequential, mesh: DeviceMesh, arguments: argparse.Namespace) -> nn.Module:
    return FullyShardedDataParallel(
        model,
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.FULL_SHARD if mesh.ndim == 1 else ShardingStrategy.HYBRID_SHARD,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        cpu_offload=CPUOffload(arguments.cpu_offload and mesh.device_type == "cuda"),  # torch pins what it offloads
        device_id=next(model.parameters()).device,
        use_orig_params=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-offload", action="store_true")
    generation = parser.add_mutually_exclusive_group()
    generation.add_argument("--fsdp1", action="store_true")
    generation.add_argument("--summed-loss", action="store_true")
    arguments = parser.parse_args()
    device = join()
    data = digits(device)
    model = (shard_with_fsdp1 if arguments.fsdp1 else shard)(build(device), mesh_of(device), arguments)
    reduction = "sum" if arguments.summed_loss else "mean"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(100):
        images, labels = data.share(step)
        loss = nn.functional.cross_entropy(model(images).float(), labels, reduction=reduction)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    dcp.save(get_model_state_dict(model), checkpoint_id=folder[0])
    served = build(device)
    state = served.state_dict()
    dcp.load(state, checkpoint_id=folder[0])
    served.load_state_dict(state)
    with torch.no_grad():
        conclude(served(data.held_out_images).argmax(1), data.held_out_labels, loss.detach())


if __name__ == "__main__":
    main()
