"""Measures what each further peer costs a process: the memory of a group of all ranks above that of one of two.

Each rank starts a new process for it (this module as a program), since a process that had a group already knows its
peers. It counts private memory and, in full on either side, shared memory (RssAnon and RssShmem of proc(5)). It does
not count pages of libraries, because larger groups need more of them in any case. The first groups of a process include
one-time costs; the last group of two ranks has the cost of any group.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from torch_axon.bench.contenders import register
from torch_axon.bench.memory import numbers_of

# Groups of two ranks, one after the other. A process with Gloo grew by 770 KiB with its fourth group, then by 220.
_NUM_PAIRS = 5
_ROUNDS = 300  # of one message to each peer, so that all ring memory has been used once
_NUM_ELEMENTS = 16  # 64 bytes per message


def peer_kib(backend: str, timeout: timedelta) -> float:
    """Returns the KiB per peer of this rank; 0 without a third rank and on an odd last rank. A collective call."""
    num_ranks = int(os.environ["WORLD_SIZE"])
    if num_ranks < 3:
        return 0.0
    command = [sys.executable, "-m", "torch_axon.bench.peers", backend]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=timeout.total_seconds() + num_ranks
    )
    return float(done.stdout.split()[-1]) / (num_ranks - 2)


def main(backend: str) -> int:
    """Prints how many KiB this rank's further peers use."""
    register(backend)
    store, rank, num_ranks = next(iter(rendezvous("env://")))
    dist.init_process_group("gloo", store=PrefixStore(f"peers/{backend}", store), rank=rank, world_size=num_ranks)
    print(_further_peers_kib(backend, rank, num_ranks))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _further_peers_kib(backend: str, rank: int, num_ranks: int) -> int:
    """Returns the KiB of all peers but the first; 0 on an odd last rank. A collective call."""
    pairs = [[first, first + 1] for first in range(0, num_ranks - 1, 2)]
    group = [_growth_kib(backend, pairs) for _ in range(_NUM_PAIRS)][-1]
    group_and_peers = _growth_kib(backend, [list(range(num_ranks))])
    return group_and_peers - group if rank // 2 < len(pairs) else 0


def _growth_kib(backend: str, teams: Sequence[list[int]]) -> int:
    """Returns the growth by new groups of those ranks and by messages in this rank's group. A collective call."""
    before = _own_kib()
    for group in [dist.new_group(team, backend=backend) for team in teams]:
        if dist.get_rank(group) >= 0:
            _talk(group)
    return _own_kib() - before


def _talk(group: dist.ProcessGroup) -> None:
    source, target = (torch.zeros(_NUM_ELEMENTS * dist.get_world_size(group)) for _ in range(2))
    for _ in range(_ROUNDS):
        dist.all_to_all_single(target, source, group=group)


def _own_kib() -> int:
    status = numbers_of(Path("/proc/self/status"))
    return status["RssAnon"] + status["RssShmem"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
