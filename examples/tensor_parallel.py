"""Tensor and sequence parallelism: a transformer reads a digit as eight rows of pixels.

    torchrun --nproc-per-node=2 examples/tensor_parallel.py

Each rank has half of the heads and half of the hidden features; norms and residuals are split along the sequence.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from shared import conclude, digits, join
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

FEATURES, HEAD_FEATURES, ROWS = 64, 16, 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(3))
        self.output = nn.Linear(FEATURES, FEATURES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Takes [batch, rows, features]; the width of a rank's products determines its number of heads."""
        heads = (
            product(x).unflatten(-1, (-1, HEAD_FEATURES)).transpose(1, 2)
            for product in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        attended: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return attended


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
        self.attention = Attention()
        self.up, self.down = nn.Linear(FEATURES, 4 * FEATURES), nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)).relu())


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(64 // ROWS, FEATURES)
        self.place = nn.Parameter(torch.randn(ROWS, FEATURES) * 0.1)
        self.block = Block()
        self.head = nn.Linear(ROWS * FEATURES, 10)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.embed(images.unflatten(-1, (ROWS, -1))) + self.place
        logits: Tensor = self.head(self.block(rows).flatten(1))
        return logits


PLAN = {
    "block": PrepareModuleInputOutput(
        input_layouts=Replicate(),
        desired_input_layouts=Shard(1),
        output_layouts=Shard(1),
        desired_output_layouts=Replicate(),
    ),
    "block.norm1": SequenceParallel(),
    "block.attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    "block.attention.query": ColwiseParallel(),
    "block.attention.key": ColwiseParallel(),
    "block.attention.value": ColwiseParallel(),
    "block.attention.output": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    "block.norm2": SequenceParallel(),
    "block.up": ColwiseParallel(input_layouts=Shard(1)),
    "block.down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
}


def main() -> None:
    device = join()
    data = digits(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = parallelize_module(Reader().to(device), mesh, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    for step in range(60):
        images, labels = data.batch(step)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        conclude(model(data.held_out_images).argmax(1), data.held_out_labels, loss.detach())


if __name__ == "__main__":
    main()
