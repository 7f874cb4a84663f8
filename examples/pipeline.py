"""A pipeline: each rank has every other quarter of the layers, and passes on its results (interleaved 1F1B).

    torchrun --nproc-per-node=2 examples/pipeline.py [--schedule 1F1B]

In plain 1F1B a rank has one stage only, so that there are half as many layers.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from shared import BATCH_SIZE, conclude, digits, join
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

NUM_MICROBATCHES = 4


def build(stage: int, num_stages: int) -> nn.Module:
    torch.manual_seed(stage)
    first = nn.Linear(64, 128) if stage == 0 else nn.Identity()
    last = nn.Linear(128, 10) if stage == num_stages - 1 else nn.Identity()
    return nn.Sequential(first, nn.Linear(128, 128), nn.GELU(), last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", choices=("1F1B", "interleaved"), default="interleaved")
    interleaved = parser.parse_args().schedule == "interleaved"
    device = join()
    data = digits(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    num_stages = size * (2 if interleaved else 1)
    layers = {stage: build(stage, num_stages).to(device) for stage in range(rank, num_stages, size)}
    stages = [PipelineStage(module, stage, num_stages, device) for stage, module in layers.items()]
    schedule = (
        ScheduleInterleaved1F1B(stages, NUM_MICROBATCHES, loss_fn=nn.functional.cross_entropy)
        if interleaved
        else Schedule1F1B(stages[0], NUM_MICROBATCHES, loss_fn=nn.functional.cross_entropy)
    )
    optimizer = torch.optim.AdamW([each for module in layers.values() for each in module.parameters()], lr=2e-3)
    is_first, is_last = rank == 0, rank == size - 1
    losses: list[Tensor] = []
    for step in range(120):
        images, labels = data.batch(step)
        optimizer.zero_grad()
        losses.clear()
        schedule.step(
            *([images] if is_first else []), target=labels if is_last else None, losses=losses if is_last else None
        )
        optimizer.step()

    num_read = len(data.held_out_labels) // BATCH_SIZE * BATCH_SIZE  # whole batches only
    labels, predicted = data.held_out_labels[:num_read], torch.zeros_like(data.held_out_labels[:num_read])
    loss = torch.stack(losses).mean().detach() if is_last else torch.zeros((), device=device)
    for begin in range(0, num_read, BATCH_SIZE):
        chunk = slice(begin, begin + BATCH_SIZE)
        logits = schedule.eval(
            *([data.held_out_images[chunk]] if is_first else []), target=labels[chunk] if is_last else None
        )
        if is_last:
            predicted[chunk] = logits.argmax(1)
    for result in (predicted, loss):
        dist.broadcast(result, src=size - 1)
    conclude(predicted, labels, loss)


if __name__ == "__main__":
    main()
