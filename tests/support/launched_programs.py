"""Programs that launchers start: python launched_programs.py PROGRAM [ARGUMENT …]"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import torch_axon


def runs_under_a_launcher() -> None:
    """Forms a group through env://, with the variables that torchrun sets."""
    dist.init_process_group("axon")
    data = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(data)
    # The program writes once: the ranks share the launcher's output, and an unbuffered print would write the newline
    # separately.
    sys.stdout.write(f"rank {os.environ['RANK']} of {dist.get_world_size()}: sum {int(data)}\n")
    dist.destroy_process_group()


def dies_in_its_first_attempt() -> None:
    """Under torchrun: rank 1 exits once rank 0 waits for it in the default ("init") or in a new group ("new")."""
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    dies_early, dies_late = (is_first and os.environ["RANK"] == "1" and sys.argv[2] == name for name in ("init", "new"))
    if dies_early:
        _end_once_awaited("default_pg")
    dist.init_process_group("axon", timeout=timedelta(seconds=60))
    if dies_late:
        _end_once_awaited("1/")
    group = dist.new_group()
    data = torch.ones(1000)
    dist.all_reduce(data, group=group)
    sys.stdout.write(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}: sum {int(data[0])}\n")
    dist.destroy_process_group()


def is_elastic() -> None:
    """Under torchrun: ranks use their group until a file tells all of them to end, and write down what they are."""
    _, _, folder = sys.argv
    dist.init_process_group("axon", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    others = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
    dist.all_gather(others, torch.tensor([os.getpid()]))
    pids = [int(pid) for pid in others]
    ends = torch.zeros(1)
    for step in itertools.count():
        data = torch.full((5000,), float(rank + 1))
        dist.all_reduce(data)
        assert data.eq(size * (size + 1) / 2).all(), data
        if step == 10:
            new = Path(folder, f"{os.getpid()}.new")
            new.write_text(json.dumps({"rank": rank, "pids": pids}))
            new.rename(Path(folder, f"rank of {os.getpid()}"))
        ends.fill_(Path(folder, "end").exists())
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if ends:
            break
        time.sleep(0.01)
    dist.destroy_process_group()


def outlives_other_nodes() -> None:
    """Under one torchrun per node: the processes of all nodes are one group, whose members a coordinator lists."""
    store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), is_master=False, wait_for_workers=False)
    dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=60))
    own, pid = torch_axon.reconfigure_handle(), os.getpid()
    store.set(f"process/{store.add('processes', 1)}", json.dumps([sys.argv[3], pid, own]))
    for generation in itertools.count(1):
        handles = json.loads(store.get(f"members/{generation}"))  # waits for it
        if not handles:
            break
        if own not in handles:
            continue
        try:
            torch_axon.reconfigure(generation, handles)
            _use_until_told(store, generation)
        except dist.DistBackendError:
            store.set(f"failed/{generation}/{pid}", "")


def _use_until_told(store: dist.Store, generation: int) -> None:
    size, ends = dist.get_world_size(), torch.zeros(1)
    for step in itertools.count():
        data = torch.full((5000,), float(dist.get_rank() + 1))
        dist.all_reduce(data)
        assert data.eq(size * (size + 1) / 2).all(), data
        if step == 10:
            store.set(f"used/{generation}/{os.getpid()}", "")
        ends.fill_(store.check([f"members/{generation + 1}"]))
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if ends:
            return
        time.sleep(0.01)


def _end_once_awaited(name: str) -> None:
    """Exits once a rank has written our entry for the group of this name to the agent's store."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    while not any("axon/2/round" in key and name in key for key in store.list_keys()):
        time.sleep(0.01)
    os._exit(1)


def _spawned(rank: int, store: str, results: str) -> None:
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2)
    data = torch.ones(1)
    dist.all_reduce(data)
    dist.destroy_process_group()
    with open(f"{results}{rank}", "w") as result:
        result.write(str(int(data)))


def spawns() -> None:
    import torch.multiprocessing as mp

    _, _, _, _, store, results = sys.argv
    mp.spawn(_spawned, args=(store, results), nprocs=2)
    print("ready", flush=True)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    program: Callable[[], None] = globals()[sys.argv[1]]
    program()
