"""Two ranks that use their group until one of them is out of reach."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from support.hosts import ADDRESSES, Hosts, pools_on
from support.pool import RankPool
from support.reference import failure, same_bits


@contextmanager
def pair_in_use(
    hosts: Hosts, port: int, timeout_s: float, settings: dict[str, str]
) -> Iterator[tuple[RankPool, RankPool]]:
    """Starts two ranks, one on each host, which use their group until that fails; see use_until_it_fails()."""
    with pools_on(hosts, 1) as pools:
        for rank, pool in enumerate(pools):
            pool.start(_form_pair, f"tcp://{ADDRESSES[0]}:{port}", rank, timeout_s, settings)
        for pool in pools:
            pool.finish()
        for pool in pools:
            pool.start(use_until_it_fails)
        yield pools


def _form_pair(url: str, rank: int, timeout_s: float, settings: dict[str, str]) -> None:
    """Forms the group, and uses it with messages that rails do not carry, and some that they do."""
    os.environ |= settings
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
