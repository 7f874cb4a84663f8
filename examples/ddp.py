"""DistributedDataParallel with what people switch on: layers that a step leaves out, compressed gradients, uneven data.

    torchrun --nproc-per-node=2 examples/ddp.py

Layers are dropped at random (stochastic depth), so some parameters have no gradient. Gradients travel as bfloat16.
Rank 0 has more batches than the others, which go on taking part in its reductions until it is through.
"""

from __future__ import annotations

import random

import torch
import torch.distributed as dist
from shared import conclude, digits, join
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel


class StochasticDepth(nn.Module):
    def __init__(self, num_layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 128)
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(num_layers))
        self.head = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.embed(images)
        for layer in self.layers:
            if not self.training or random.random() < 0.8:
                hidden = hidden + layer(hidden).relu()
        logits: Tensor = self.head(hidden)
        return logits


def main() -> None:
    device = join()
    random.seed(dist.get_rank())
    data = digits(device)
    model = DistributedDataParallel(
        StochasticDepth().to(device), find_unused_parameters=True, gradient_as_bucket_view=True
    )
    model.register_comm_hook(None, bf16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with model.join():
        for step in range(100 if dist.get_rank() == 0 else 90):
            images, labels = data.share(step)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        conclude(model.module(data.held_out_images).argmax(1), data.held_out_labels, loss.detach())


if __name__ == "__main__":
    main()
