"""Functional collectives, compiled: digits are read by their nearest neighbours, of which each rank has a part.

    torchrun --nproc-per-node=2 examples/compiled.py

One graph contains everything, collectives included (fullgraph=True): distances to this rank's neighbours, the closest
of them, those of all ranks, and the vote. On CPUs without a C++ compiler, set BACKEND_OF_COMPILE=aot_eager.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from shared import conclude, digits, join
from torch import Tensor

NUM_NEIGHBOURS = 5


def main() -> None:
    device = join()
    data = digits(device)
    group = dist.group.WORLD
    assert group is not None
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, labels = data.images[rank::size], data.labels[rank::size]

    @torch.compile(fullgraph=True, backend=os.environ.get("BACKEND_OF_COMPILE", "inductor"))
    def read(images: Tensor) -> Tensor:
        near = torch.cdist(mine, images).topk(NUM_NEIGHBOURS, dim=0, largest=False)
        distances = funcol.all_gather_tensor(near.values, 0, group)
        candidates = funcol.all_gather_tensor(labels[near.indices], 0, group)
        nearest = candidates.gather(0, distances.topk(NUM_NEIGHBOURS, dim=0, largest=False).indices)
        return torch.nn.functional.one_hot(nearest, 10).sum(0).argmax(1)

    conclude(read(data.held_out_images), data.held_out_labels, loss=0, least_accuracy=0.97)


if __name__ == "__main__":
    main()
