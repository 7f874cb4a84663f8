"""How long a group takes to get other members: a planned change, a killed rank, a joining one, and a killed rank in a
CUDA graph. Beside it, the same ranks destroy their group and form another one, over axon and over Gloo or NCCL.

    python benchmarks/reconfigure.py --ranks 4 --json benchmarks/results/name.jsonl
    python benchmarks/reconfigure.py --ranks 4 --device cuda          # ranks share GPUs where there are fewer

Times are those of the slowest rank, in ms, medians over the rounds. Each round kills a rank while the others reduce
tensors of 1 MiB in a loop. The time of a killed rank runs from the signal to the end of the survivors' first
all_reduce. That of a joining rank runs from its call to the end of its first all_reduce.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import torch_axon
from torch_axon.bench.record import describe_machine

PLANNED = 30
AGAIN = 5
COUNT = 1 << 18  # float32 elements: 1 MiB


class Program:
    """One process, which is a member of the group or waits to become one."""

    def __init__(self, number: int, arguments: argparse.Namespace, port: int, results: Any) -> None:
        self.number, self.ranks, self.rounds = number, arguments.ranks, arguments.rounds
        self.is_cuda = arguments.device == "cuda"
        if self.is_cuda:
            torch.cuda.set_device(number % torch.cuda.device_count())
            torch.set_default_device("cuda")
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False)
        self.members = list(range(self.ranks))
        self.uuid = 0
        self.results = results
        self.data = torch.ones(COUNT)

    def run(self) -> None:
        if self.number < self.ranks:
            for backend in ("axon", "nccl" if self.is_cuda else "gloo") * AGAIN:
                if backend != "nccl" or torch.cuda.device_count() >= self.ranks:
                    self.note(f"form {backend}", self.form_again(backend))
        dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=30))
        self.all_reduce()
        self.store.set(f"handle {self.number}", torch_axon.reconfigure_handle())
        everyone = range(self.ranks + self.rounds)
        self.handles = [self.store.get(f"handle {each}").decode() for each in everyone]
        self.uuid = 100  # as on the ranks that have formed no groups
        for _ in range(PLANNED):
            self.note("planned", self.change(self.members))
        for lost in range(self.rounds):
            self.lose(self.members[0], self.ranks + lost, captured=self.is_cuda and lost % 2 == 1)

    def note(self, name: str, seconds: float | None) -> None:
        if seconds is not None:
            self.results.put((name, self.uuid, 1e3 * seconds))

    def all_reduce(self) -> None:
        dist.all_reduce(self.data)
        self.finish()

    def capture(self) -> Callable[[], None]:
        """Returns a step that replays a graph with an all_reduce, and makes a call that reports its failure."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(self.data)

        def step() -> None:
            graph.replay()
            self.all_reduce()

        return step

    def finish(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def form_again(self, backend: str) -> float:
        """Returns how long the ranks take to form a group in a store, and to use it."""
        self.uuid += 1
        store = dist.PrefixStore(f"group {self.uuid}", self.store)
        dist.init_process_group(backend, store=store, rank=self.number, world_size=self.ranks)
        self.all_reduce()
        dist.barrier()
        began = time.monotonic()
        dist.destroy_process_group()
        store = dist.PrefixStore(f"group {self.uuid} again", self.store)
        dist.init_process_group(backend, store=store, rank=self.number, world_size=self.ranks)
        self.all_reduce()
        taken = time.monotonic() - began
        dist.destroy_process_group()
        return taken

    def change(self, members: list[int]) -> float | None:
        """Makes the group one of these members, and uses it. Returns how long that took."""
        self.uuid += 1
        self.members = members
        if self.number not in members:
            return None
        began = time.monotonic()
        torch_axon.reconfigure(self.uuid, [self.handles[member] for member in members])
        self.all_reduce()
        return time.monotonic() - began

    def lose(self, lost: int, spare: int, captured: bool) -> None:
        others = [member for member in self.members if member != lost]
        step = self.capture() if captured and self.number in self.members else self.all_reduce
        if self.number == lost:
            for _ in range(20):
                step()
            self.store.set(f"killed {lost}", repr(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        if self.number in others:
            try:
                while True:
                    step()
            except dist.DistBackendError:
                pass
            self.change(others)
            ended = time.monotonic()
            self.note("killed in graph" if captured else "killed", ended - float(self.store.get(f"killed {lost}")))
        else:
            self.change(others)
        self.store.get(f"killed {lost}")
        joined = self.change([*others, spare])
        if self.number == spare:
            self.note("joining", joined)


def _work(number: int, arguments: argparse.Namespace, port: int, results: Any) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    Program(number, arguments, port, results).run()
    results.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="ranks to kill")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit")
    arguments = parser.parse_args()
    context = mp.get_context("spawn")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results = context.SimpleQueue()  # a killed process has put all of its results
    everyone = range(arguments.ranks + arguments.rounds)
    processes = [context.Process(target=_work, args=(each, arguments, store.port, results)) for each in everyone]
    for process in processes:
        process.start()
    taken: dict[str, dict[int, float]] = {}
    num_running = arguments.ranks
    while num_running:
        told = results.get()
        if told is None:
            num_running -= 1
        else:
            name, number, milliseconds = told
            of_name = taken.setdefault(name, {})
            of_name[number] = max(of_name.get(number, 0.0), milliseconds)
    for process in processes:
        process.join(30)
    record = {
        "what": "reconfigure",
        "device": arguments.device,
        "ranks": arguments.ranks,
        "ms": {name: _summary([*taken[name].values()]) for name in sorted(taken)},
        "machine": asdict(describe_machine(arguments.device, arguments.commit)),
    }
    for name, summary in record["ms"].items():
        print(f"{name:15} median {summary['median']:8.2f} ms, most {summary['most']:8.2f} ms, of {summary['of']}")
    if arguments.json:
        with arguments.json.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _summary(times: list[float]) -> dict[str, float]:
    return {"median": round(median(times), 2), "most": round(max(times), 2), "of": len(times)}


if __name__ == "__main__":
    main()
