"""A training that survives the death of a rank: torchrun restarts all ranks, and they continue from the checkpoint.

    torchrun --standalone --nproc-per-node=2 --max-restarts=1 examples/elastic.py [FOLDER]

In the first life of the job, rank 1 is killed half-way. The other rank raises at once, instead of waiting for it. Each
life begins when all ranks have arrived; ranks that have not arrived within a minute are all named (monitored_barrier).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from shared import conclude, digits, join
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NUM_STEPS, STEPS_BETWEEN_CHECKPOINTS = 80, 10
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir())


def main() -> None:
    device = join()
    checkpoint = FOLDER / f"{os.environ['TORCHELASTIC_RUN_ID']}.pt"
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.monitored_barrier(timeout=timedelta(minutes=1), wait_all_ranks=True)
    data = digits(device)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    begin = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    if dist.get_rank() == 0:
        print(f"life {life} begins at step {begin}", flush=True)
    for step in range(begin, NUM_STEPS):
        if step % STEPS_BETWEEN_CHECKPOINTS == 0 and dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
        if (life, step, dist.get_rank()) == (0, NUM_STEPS // 2 + 5, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        images, labels = data.share(step)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    checkpoint.unlink(missing_ok=True)
    with torch.no_grad():
        conclude(model.module(data.held_out_images).argmax(1), data.held_out_labels, loss.detach())


if __name__ == "__main__":
    main()
