"""Windows of ranks on two hosts."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

import torch_axon
from support.hosts import pools_on, two_hosts
from support.pool import own_rank
from support.reference import same_bits


def _put(store: str, host: int) -> None:
    rank, size = 2 * own_rank() + host, 4
    dist.init_process_group("axon", store=dist.FileStore(store, size), rank=rank, world_size=size)
    tensor = torch.zeros(size, 100_000)
    window = torch_axon.new_window(tensor)
    for other in range(size):
        window.put(torch.full((100_000,), rank + 1.0), other, rank * 100_000, async_op=True)
        window.signal(other)
    for other in range(size):
        window.wait_signal(other)
        same_bits(tensor[other], torch.full((100_000,), other + 1.0))
    window.tensor_deregister()
    dist.destroy_process_group()


def test_windows_reach_other_hosts(tmp_path: Path) -> None:
    with two_hosts() as hosts, pools_on(hosts, 2) as pools:
        for host, pool in enumerate(pools):
            pool.start(_put, str(tmp_path / "store"), host)
        for pool in pools:
            pool.finish(60)
