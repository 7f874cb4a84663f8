"""Context parallelism: a transformer reads a digit pixel by pixel, and each rank has a part of the pixels.

    torchrun --nproc-per-node=2 examples/context_parallel.py        # on GPUs only: torch has no other ring attention

Keys and values go around the ranks. Each rank's gradients come from its own pixels: DDP adds them up.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from shared import conclude, digits, join
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_reduce
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

FEATURES, HEADS, PIXELS = 64, 4, 64


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(1, FEATURES), nn.Embedding(PIXELS, FEATURES)
        self.norm1, self.norm2 = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
        self.project, self.output = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)
        self.up, self.down = nn.Linear(FEATURES, 4 * FEATURES), nn.Linear(4 * FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, 10)

    def forward(self, pixels: Tensor, places: Tensor) -> Tensor:
        """Returns the pixels: [batch, own part of 64, 1]."""
        x = self.embed(pixels) + self.place(places)
        heads = self.project(self.norm1(x)).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, dim=1)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        x = x + self.down(self.up(self.norm2(x)).relu())
        logits: Tensor = self.head(all_reduce(x.sum(1)) / PIXELS)
        return logits


def main() -> None:
    device = join()
    if device.type == "cpu":
        raise SystemExit("context_parallel.py needs GPUs: torch has no ring attention for CPU tensors")
    data = digits(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = DistributedDataParallel(Reader().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(300):
        images, labels = data.batch(step)
        pixels, places = images.unsqueeze(-1), torch.arange(PIXELS, device=device)
        spread = context_parallel(mesh, buffers=[pixels, places], buffer_seq_dims=[1, 0])
        with spread, sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast(device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(pixels, places), labels)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    pixels, places = data.held_out_images.unsqueeze(-1), torch.arange(PIXELS, device=device)
    spread = context_parallel(mesh, buffers=[pixels, places], buffer_seq_dims=[1, 0])
    with torch.no_grad(), spread, sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast(device.type, torch.bfloat16):
        logits = model(pixels, places)
    conclude(logits.argmax(1), data.held_out_labels, loss.detach())


if __name__ == "__main__":
    main()
