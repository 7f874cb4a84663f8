"""Two ranks that use their group until one of them is out of reach."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from support.reference import failure, same_bits


def form_pair(url: str, rank: int, timeout_s: float) -> None:
    """Forms the group, and uses it with messages that rails do not carry, and some that they do."""
    dist.init_process_group("axon", init_method=url, rank=rank, world_size=2, timeout=timedelta(seconds=timeout_s))
    for size in (1, 1000, 1 << 18):
        data = torch.full((size,), float(rank + 1))
        dist.all_reduce(data)
        same_bits(data, torch.full((size,), 3.0))


def use_until_it_fails() -> tuple[float, str]:
    """Returns the time from the last success to the error, and the error."""
    data = torch.ones(1 << 18)
    last = time.monotonic()

    def use() -> None:
        nonlocal last
        while True:
            dist.broadcast(data, src=0)
            dist.broadcast(data, src=1)
            dist.all_reduce(data)
            last = time.monotonic()
            time.sleep(0.01)

    message = failure(use)
    seconds = time.monotonic() - last
    dist.destroy_process_group()
    return seconds, message
