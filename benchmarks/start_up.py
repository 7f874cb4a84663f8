"""What it costs to start a job: the time until a group of N processes has formed and been used, and what each holds.

    python benchmarks/start_up.py --ranks 64 --json benchmarks/results/name.jsonl
    python benchmarks/start_up.py --ranks 8 --rounds 9

The backends alternate. Each round of each backend has new processes, forked from a server that has imported torch and
torch_axon. They find each other as under torchrun, through a TCPStore in the process that started them. The starter
releases all ranks of a step at one moment of the host's monotonic clock. Times run from that moment to the last rank's
end of the call, in ms. An all_reduce has 8 bytes, and its result is checked.

The steps are: the ranks connect to the store (`store_ms`), they call init_process_group with it (`init_ms`) and then
all_reduce (`first_all_reduce_ms`). Later, they call new_group with eight ranks and with all of them, each until the end
of its first all_reduce. A process loads the extension for its first group. `init_ms` includes that, unless `--loaded`
is given.

The starter reads what a process holds in /proc, before the default group is formed and after its first all_reduce.
The figures are the differences. Private memory is that of pages which no other process has mapped. The proportional
memory (PSS) adds the process's share of the pages which several have mapped, such as rings in shared memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from torch_axon.bench.memory import numbers_of
from torch_axon.bench.record import describe_machine

BACKENDS = ("axon", "gloo")
TIMEOUT = timedelta(minutes=5)
LEAD_S = 0.2  # from the announcement of a step to its beginning, so that all ranks have read it
SUBGROUP = 8
HOST = "localhost"  # torch looks up the names of addresses, and those of this name are known without a name server
Figures = dict[str, float]


class Connected:
    """This rank's connection to the store."""

    store: dist.Store


def work(rank: int, size: int, backend: str, port: int, starter: Connection) -> None:
    """Runs a rank: each step at the moment that the starter announces. Answers with what the step returns."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR=HOST,
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # as torchrun sets it: the starter has the store
    )
    torch.set_num_threads(1)
    steps: dict[str, Callable[[], Figures]] = {
        "connect": connect,
        "form": lambda: form(backend, rank, size),
        "some": lambda: open_group(list(range(min(SUBGROUP, size)))),
        "all": lambda: open_group(list(range(size))),
    }
    starter.send({})
    while True:
        name, begins_at = starter.recv()
        if name == "end":
            break
        time.sleep(max(0.0, begins_at - time.monotonic()))
        ends = steps[name]()
        starter.send({what: end - begins_at for what, end in ends.items()})
    dist.destroy_process_group()
    starter.send({})


def connect() -> Figures:
    Connected.store, _, _ = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    return {"connected": time.monotonic()}


def form(backend: str, rank: int, size: int) -> Figures:
    dist.init_process_group(backend, store=Connected.store, rank=rank, world_size=size, timeout=TIMEOUT)
    formed = time.monotonic()
    return {"formed": formed, "first all_reduce": all_reduce(None, size)}


def open_group(members: Sequence[int]) -> Figures:
    group = dist.new_group(list(members), timeout=TIMEOUT)
    formed = time.monotonic()
    if dist.get_rank() not in members:
        return {"formed": formed}
    return {"formed": formed, "first all_reduce": all_reduce(group, len(members))}


def all_reduce(group: Any, size: int) -> float:
    """Returns when it ended. Its result is checked after that."""
    data = torch.ones(1, dtype=torch.int64)
    dist.all_reduce(data, group=group)
    ended = time.monotonic()
    if data.item() != size:
        raise AssertionError(f"the all_reduce of {size} ranks returned {data.item()}")
    return ended


@dataclass(frozen=True)
class Holding:
    """What a process holds."""

    private_kib: int
    pss_kib: int
    descriptors: int
    threads: int

    def __sub__(self, other: Holding) -> Holding:
        return Holding(
            self.private_kib - other.private_kib,
            self.pss_kib - other.pss_kib,
            self.descriptors - other.descriptors,
            self.threads - other.threads,
        )


def holding_of(pid: int) -> Holding:
    folder = Path(f"/proc/{pid}")
    memory = numbers_of(folder / "smaps_rollup")
    return Holding(
        private_kib=memory["Private_Clean"] + memory["Private_Dirty"],
        pss_kib=memory["Pss"],
        descriptors=len(os.listdir(folder / "fd")),
        threads=len(os.listdir(folder / "task")),
    )


class Job:
    """The processes of one round of one backend."""

    def __init__(self, backend: str, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self.store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.processes, self.connections = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(rank, size, backend, self.store.port, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)
        self.collect()

    def run(self, step: str) -> Figures:
        """Returns when the last rank ended each part of a step, in ms from its beginning."""
        begins_at = time.monotonic() + LEAD_S
        for connection in self.connections:
            connection.send((step, begins_at))
        answers = self.collect()
        names = {name: None for answer in answers for name in answer}
        return {name: 1e3 * max(answer.get(name, 0.0) for answer in answers) for name in names}

    def collect(self) -> list[Figures]:
        answers: dict[Any, Figures] = {}
        while pending := [each for each in self.connections if each not in answers]:
            ready: list[Any] = wait(pending, TIMEOUT.total_seconds())
            if not ready:
                raise TimeoutError(f"{len(pending)} ranks have not answered within {TIMEOUT}")
            for connection in ready:
                answers[connection] = connection.recv()
        return [answers[each] for each in self.connections]

    def holdings(self) -> list[Holding]:
        return [holding_of(process.pid or 0) for process in self.processes]

    def close(self) -> None:
        self.run("end")
        for process in self.processes:
            process.join(TIMEOUT.total_seconds())


def measure(backend: str, size: int) -> Figures:
    """Returns the figures of a round."""
    job = Job(backend, size)
    connected = job.run("connect")
    before = job.holdings()
    formed = job.run("form")
    grown = [later - earlier for later, earlier in zip(job.holdings(), before, strict=True)]
    some, everyone = job.run("some"), job.run("all")
    job.close()
    return {
        "store_ms": connected["connected"],
        "init_ms": formed["formed"],
        "first_all_reduce_ms": formed["first all_reduce"],
        "group_of_8_ms": some["first all_reduce"],
        "group_of_all_ms": everyone["first all_reduce"],
        "private_kib": median(each.private_kib for each in grown),
        "most_private_kib": max(each.private_kib for each in grown),
        "pss_kib": median(each.pss_kib for each in grown),
        "most_pss_kib": max(each.pss_kib for each in grown),
        "descriptors": max(each.descriptors for each in grown),
        "threads": max(each.threads for each in grown),
    }


def main(command_line: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Times the start of a job, and counts what its processes hold.")
    parser.add_argument("--ranks", type=int, default=64, help="number of processes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each backend (%(default)s)")
    parser.add_argument("--loaded", action="store_true", help="fork from a server that has loaded the extension, too")
    parser.add_argument("--json", type=Path, help="a file to which a record is appended")
    parser.add_argument("--commit", help="what the record names as commit")
    arguments = parser.parse_args(command_line)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun sets it
    preloaded = "torch_axon.options" if arguments.loaded else "torch_axon"  # the former needs the extension
    multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", preloaded])
    rounds: dict[str, list[Figures]] = {backend: [] for backend in BACKENDS}
    for number in range(arguments.rounds):
        for backend in BACKENDS if number % 2 == 0 else reversed(BACKENDS):
            rounds[backend].append(measure(backend, arguments.ranks))
    sides = [{"backend": backend, **medians_of(each), "rounds": each} for backend, each in rounds.items()]
    print_table(sides)
    if arguments.json:
        machine = asdict(describe_machine(commit=arguments.commit))
        machine["command"] = " ".join(["python", "benchmarks/start_up.py", *command_line])
        record = {
            "what": "start_up",
            "ranks": arguments.ranks,
            "loaded": arguments.loaded,
            "sides": sides,
            "machine": machine,
        }
        with arguments.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def medians_of(rounds: Sequence[Figures]) -> Figures:
    return {name: round(median(figures[name] for figures in rounds), 3) for name in rounds[0]}


def print_table(sides: Sequence[dict[str, Any]]) -> None:
    axon, gloo = sides
    print(f"{'median':<22} {'axon':>10} {'gloo':>10} {'gloo / axon':>12}")
    for name in [key for key in axon if key not in ("backend", "rounds")]:
        ratio = f"{gloo[name] / axon[name]:.2f}" if axon[name] > 0 else "–"
        print(f"{name:<22} {axon[name]:>10.1f} {gloo[name]:>10.1f} {ratio:>12}")


if __name__ == "__main__":
    main(sys.argv[1:])
