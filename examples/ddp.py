"""DistributedDataParallel with common options: layers that a step leaves out, compressed gradients, uneven data.

    torchrun --nproc-per-node=2 examples/ddp.py [--gradients exact|fp16|bf16|powersgd] [--batch-norm]

Layers are dropped at random (stochastic depth), so some parameters have no gradient. Gradients are sent as bfloat16, or
as --gradients says. Rank 0 has more batches than the others, which take part in its reductions until it has finished.
With PowerSGD no layer is dropped. Its second all_reduce starts when its first completes, which on CPUs has no fixed
order with DDP's own all_reduce of the used parameters. Batches are normalised over all ranks (SyncBatchNorm). On CPUs,
where torch has no SyncBatchNorm, each rank normalises its own. With --batch-norm all ranks have equally many batches,
since no rank replaces another in the forward pass.
"""

from __future__ import annotations

import argparse
import random
from contextlib import nullcontext

import torch
import torch.distributed as dist
from shared import conclude, digits, join
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


class StochasticDepth(nn.Module):
    def __init__(self, kept: float, norm: nn.Module, num_layers: int = 3) -> None:
        super().__init__()
        self.kept = kept
        self.embed = nn.Linear(64, 128)
        self.norm = norm
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(num_layers))
        self.head = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.embed(images))
        for layer in self.layers:
            if not self.training or random.random() < self.kept:
                hidden = hidden + layer(hidden).relu()
        logits: Tensor = self.head(hidden)
        return logits


def compress(model: DistributedDataParallel, gradients: str) -> None:
    if gradients == "powersgd":
        state = PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=10)
        model.register_comm_hook(state, powerSGD_hook)
    elif gradients != "exact":
        model.register_comm_hook(None, {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}[gradients])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gradients", choices=("exact", "fp16", "bf16", "powersgd"), default="bf16")
    parser.add_argument("--batch-norm", action="store_true")
    arguments = parser.parse_args()
    device = join()
    random.seed(dist.get_rank())
    data = digits(device)
    kept = 1.0 if arguments.gradients == "powersgd" else 0.8
    module = StochasticDepth(kept, nn.BatchNorm1d(128) if arguments.batch_norm else nn.Identity()).to(device)
    if device.type == "cuda":
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    model = DistributedDataParallel(module, find_unused_parameters=kept < 1, gradient_as_bucket_view=True)
    compress(model, arguments.gradients)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    is_even = arguments.batch_norm
    with nullcontext() if is_even else model.join():
        for step in range(90 if is_even or dist.get_rank() != 0 else 100):
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
