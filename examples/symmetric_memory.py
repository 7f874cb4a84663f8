"""Serving over symmetric memory: each rank has half of a layer, and torch's own kernel adds the halves up.

    torchrun --nproc-per-node=2 examples/symmetric_memory.py        # on GPUs with peer access

The ranks train together with DDP, then each keeps its part of the hidden features. The memory and the kernel are
torch's; the ranks exchange its handles through an axon group.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from shared import conclude, digits, join
from torch import Tensor, nn
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.nn.parallel import DistributedDataParallel

HIDDEN, MOST_IMAGES = 256, 512


class Server:
    """This rank's part of a trained model."""

    def __init__(self, model: nn.Sequential, group: dist.ProcessGroup, device: torch.device) -> None:
        own = slice(group.rank() * HIDDEN // group.size(), (group.rank() + 1) * HIDDEN // group.size())
        up, _, down = model
        self._up, self._bias, self._down = up.weight[own], up.bias[own], down.weight[:, own]
        self._last_bias, self._group_name = down.bias, group.group_name
        self._partial = symmetric_memory.empty(MOST_IMAGES, 10, dtype=torch.float32, device=device)
        symmetric_memory.rendezvous(self._partial, group)

    def logits(self, images: Tensor) -> Tensor:
        """Takes images [at most MOST_IMAGES, 64], the same on every rank."""
        hidden = nn.functional.gelu(images @ self._up.T + self._bias)
        self._partial[: len(images)] = hidden @ self._down.T
        total: Tensor = torch.ops.symm_mem.one_shot_all_reduce(self._partial, "sum", self._group_name)
        return total[: len(images)] + self._last_bias


def main() -> None:
    device = join()
    if device.type == "cpu":
        raise SystemExit("symmetric_memory.py needs GPUs: torch has no symmetric memory on CPUs")
    data = digits(device)
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 10)).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(100):
        images, labels = data.share(step)
        loss = nn.functional.cross_entropy(parallel(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    group = dist.group.WORLD
    assert group is not None
    with torch.no_grad():
        logits = Server(model, group, device).logits(data.held_out_images)
    conclude(logits.argmax(1), data.held_out_labels, loss.detach())


if __name__ == "__main__":
    main()
