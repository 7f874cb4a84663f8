"""Shows what a training sends: torch's profiler over DDP, and a Chrome trace of it.

    torchrun --nproc-per-node=2 examples/profiled.py [FOLDER]
    TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun …       # also compares every collective before it starts

The profile names the operations of the group, with the shapes of their tensors. Nsight Systems shows the same names as
NVTX ranges: run nsys profile -t cuda,nvtx torchrun …, with torch.autograd.profiler.emit_nvtx() in place of the
profiler.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from shared import conclude, digits, join
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

NUM_STEPS, NUM_PROFILED = 60, 10
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir())


def tell(profiler: profile) -> None:
    """Prints the group's calls by name and shape: "all_reduce of [9610]: 10 calls"."""
    backend = dist.get_backend()
    for row in profiler.key_averages(group_by_input_shape=True):
        name, _, operation = row.key.partition(":")
        if name == backend and row.input_shapes:  # the GPU's part of a call has none
            print(f"{operation} of {row.input_shapes[0]}: {row.count} calls")


def main() -> None:
    device = join()
    data = digits(device)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).to(device)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    profiler = profile(activities=activities, record_shapes=True, acc_events=True)
    for step in range(NUM_STEPS):
        if step == NUM_STEPS - NUM_PROFILED:
            profiler.start()
        images, labels = data.share(step)
        loss = nn.functional.cross_entropy(parallel(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    profiler.stop()
    profiler.export_chrome_trace(str(FOLDER / f"profiled-rank{dist.get_rank()}.json"))
    if dist.get_rank() == 0:
        tell(profiler)
    with torch.no_grad():
        conclude(model(data.held_out_images).argmax(1), data.held_out_labels, loss.detach())


if __name__ == "__main__":
    main()
