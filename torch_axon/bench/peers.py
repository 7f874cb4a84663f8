"""What each further peer costs a process: what it grows by when groups of two ranks become one of all of them.

Each rank starts a fresh process for it (this module as a program), since one that has had a group knows its peers
already. Counted is memory that is the process's own or shared with others (RssAnon, RssShmem of proc(5)): shared memory
in full on either side, and no pages of libraries, of which larger groups need more whatever their peers.
"""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from torch_axon.bench.contenders import register

_ROUNDS = 300  # of a message to each peer: memory that they go round in has been used once
_NUM_ELEMENTS = 16  # 64 bytes a message


def peer_kib(backend: str, timeout: timedelta) -> float:
    """Of this rank; 0 where there is no third one, and of an odd last rank. A collective call."""
    num_ranks = int(os.environ["WORLD_SIZE"])
    if num_ranks < 3:
        return 0.0
    command = [sys.executable, "-m", "torch_axon.bench.peers", backend]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=timeout.total_seconds() + num_ranks
    )
    return float(done.stdout.split()[-1]) / (num_ranks - 2)


def main(backend: str) -> int:
    """Prints by how many KiB this rank has grown."""
    register(backend)
    store, rank, num_ranks = next(iter(rendezvous("env://")))
    dist.init_process_group("gloo", store=PrefixStore(f"peers/{backend}", store), rank=rank, world_size=num_ranks)
    pairs = [dist.new_group([first, first + 1], backend=backend) for first in range(0, num_ranks - 1, 2)]
    if rank // 2 < len(pairs):
        _talk(pairs[rank // 2])
    before = _own_kib()
    _talk(dist.new_group(backend=backend))
    print(_own_kib() - before if rank // 2 < len(pairs) else 0)
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _talk(group: dist.ProcessGroup) -> None:
    source, target = (torch.zeros(_NUM_ELEMENTS * dist.get_world_size(group)) for _ in range(2))
    for _ in range(_ROUNDS):
        dist.all_to_all_single(target, source, group=group)


def _own_kib() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
