"""Writes checkpoints while training continues, and reads them under another sharding: from FSDP1 to FSDP2.

    torchrun --nproc-per-node=2 examples/checkpoints.py

The job trains half of its steps with FSDP1 and writes checkpoints meanwhile. Then, as after a move to another cluster,
a job sharded by FSDP2 continues from the last checkpoint with the same optimizer. Object collectives pass on what the
first job tells the second.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from shared import Digits, conclude, digits, join
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

NUM_STEPS, STEPS_BETWEEN_CHECKPOINTS = 100, 10


def build(device: torch.device) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).to(device)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, data: Digits, step: int) -> torch.Tensor:
    images, labels = data.share(step)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train_with_fsdp1(mesh: DeviceMesh, data: Digits, folder: str) -> str:
    """Returns the name of the last checkpoint."""
    device = data.images.device
    model = FullyShardedDataParallel(build(device), use_orig_params=True, device_id=device, device_mesh=mesh)
    optimizer = adam(model)
    beside = dist.new_group()  # for checkpoints beside the training, in an order of its own
    written: Any = None
    for step in range(NUM_STEPS // 2):
        learn(model, optimizer, data, step)
        if (step + 1) % STEPS_BETWEEN_CHECKPOINTS == 0:
            if written is not None:
                written.result()
            written = dcp.async_save(
                state_of(model, optimizer), checkpoint_id=f"{folder}/{step + 1}", process_group=beside
            )
    assert written is not None
    written.result()
    return f"{folder}/{NUM_STEPS // 2}"


def main() -> None:
    device = join()
    data = digits(device)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    checkpoint = train_with_fsdp1(mesh, data, folder[0])

    torch.manual_seed(8)  # another model, until it is loaded
    model = build(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = adam(model)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=checkpoint)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for step in range(NUM_STEPS // 2, NUM_STEPS):
        loss = learn(model, optimizer, data, step)
    with torch.no_grad():
        conclude(model(data.held_out_images).argmax(1), data.held_out_labels, loss)


if __name__ == "__main__":
    main()
