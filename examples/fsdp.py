"""FSDP2 with mixed precision; a checkpoint that is written from shards and read by whoever serves the model.

    torchrun --nproc-per-node=2 examples/fsdp.py        # with 4 processes: two replicas of two shards each (HSDP)
    torchrun --nproc-per-node=2 examples/fsdp.py --cpu-offload      # shards, gradients and optimizer wait on the host

Parameters are gathered as bfloat16, gradients are reduced as float32. The checkpoint is loaded into a model that is not
sharded at all, which reads the held-out digits.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from shared import conclude, digits, join
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

PRECISION = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def build(device: torch.device) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
    ).to(device)


def mesh_of(device: torch.device) -> DeviceMesh:
    size = dist.get_world_size()
    if size % 2 == 0 and size > 2:
        return init_device_mesh(device.type, (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device.type, (size,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-offload", action="store_true")
    arguments = parser.parse_args()
    device = join()
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if arguments.cpu_offload else OffloadPolicy()
    data, mesh, model = digits(device), mesh_of(device), build(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=PRECISION, offload_policy=offload)
    fully_shard(model, mesh=mesh, mp_policy=PRECISION, offload_policy=offload)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(100):
        images, labels = data.share(step)
        loss = nn.functional.cross_entropy(model(images).float(), labels)
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
