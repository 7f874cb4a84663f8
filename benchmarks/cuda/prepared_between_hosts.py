"""Times prepared transfers whose kernels send partitions to another host, emulated by network namespaces.

    python benchmarks/cuda/prepared_between_hosts.py [--cpu-peer] --json prepared_hosts.jsonl

Needs root. Prints one line per operation; `--json` appends records as the other benchmarks do. Operations:

    pready      from pready() in a kernel to the return of wait() in a kernel of the other host: half of a round trip of
                8 bytes, in a kernel of many
    partition   the same for each of 64 partitions of 256 KiB that one kernel sends at once; only where both ranks share
                a GPU, whose clock gives the times
    partitions  64 partitions of 256 KiB, until the last has arrived and been answered: sent by a kernel, or by
                `dist.send` after it

Ranks that share a GPU take turns on it, some milliseconds each, which these times include. With `--cpu-peer` the second
rank has CPU tensors, and its thread does what its kernels do otherwise. So a round trip takes each half of the way
between two kernels once, and what the thread takes for its calls.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from partition_kernels import kernel
from torch import Tensor

import torch_axon
from torch_axon.bench.record import Line, Machine, Side, append_lines, describe_machine

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from two_hosts import ADDRESSES, Hosts, clean_up_when_told_to_end, two_hosts

ROUNDS, WARM_UP = 15, 3
PARTITIONS, PARTITION_BYTES = 64, 256 << 10
NUM_PINGS = 100
Step = Callable[[], None]


class Bench:
    """One of the two ranks, and the lines that it has measured."""

    def __init__(self, machine: Machine, on_gpu: bool, label: str) -> None:
        self.rank, self.peer = dist.get_rank(), 1 - dist.get_rank()
        self.on_gpu = on_gpu
        self.lines: list[Line] = []
        self._machine = machine
        self._label = label

    def is_first(self) -> bool:
        return self.rank == 0

    def has_cpu_peer(self) -> bool:
        return self._label != ""

    def time(self, step: Step) -> float:
        """Returns the microseconds that the step takes on the GPU, or else on the CPU."""
        if not self.on_gpu:
            began = time.perf_counter()
            step()
            return (time.perf_counter() - began) * 1e6
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000

    def prepare(self, tensor: Tensor, sends: bool, partitions: int, tag: int = 0) -> Any:
        return torch_axon.prepare(tensor, "send" if sends else "recv", peer=self.peer, partitions=partitions, tag=tag)

    def medians(self, sides: dict[str, Step], check: Callable[[], bool]) -> tuple[dict[str, float], int]:
        """Times the steps in turn. Returns the microseconds of the slower rank, and the number of wrong results."""
        times: dict[str, list[float]] = {name: [] for name in sides}
        num_wrong = 0
        for _ in range(ROUNDS):
            for name, step in sides.items():
                dist.barrier()
                times[name].append(self.time(step))
                num_wrong += not check()
        results = torch.tensor([median(each[WARM_UP:]) for each in times.values()] + [num_wrong], device="cpu")
        dist.all_reduce(results, op=dist.ReduceOp.MAX)
        *slowest, wrong = results.tolist()
        return dict(zip(sides, slowest, strict=True)), int(wrong)

    def add(self, op: str, size: int, times: dict[str, float], wrong: int = 0) -> None:
        sides = tuple(Side(name, p50_us=round(us, 3), calls=ROUNDS, wrong=wrong) for name, us in times.items())
        self.lines.append(Line(self._label + op, size, size, "uint8", "", 0, 2, 1, sides, self._machine, "cuda"))
        if self.is_first():
            print(
                f"{self._label}{op:>12} {size:>10}  " + "  ".join(f"{name} {us:.2f}" for name, us in times.items()),
                wrong or "",
            )


def pings(bench: Bench) -> None:
    out, into = torch.arange(NUM_PINGS), torch.zeros(NUM_PINGS, dtype=torch.int64)
    sending = bench.prepare(out, True, NUM_PINGS)
    receiving = bench.prepare(into, False, NUM_PINGS)
    if bench.on_gpu:
        handles = torch.tensor([sending.device_handle, receiving.device_handle])
        run = kernel("ping")

    def answer_by_thread() -> None:
        for partition in range(NUM_PINGS):
            receiving.arrived(partition)
            sending.ready(partition)

    def step() -> None:
        receiving.start()
        sending.start()
        if bench.on_gpu:
            run((1, 1, 1), (32, 1, 1), [handles, NUM_PINGS, int(bench.is_first())])
        else:
            answer_by_thread()
        receiving.wait()
        sending.wait()

    def check() -> bool:
        is_right = torch.equal(out, into)
        into.zero_()
        return is_right

    times, wrong = bench.medians({"prepared": step}, check)
    bench.add("pready", 8, {name: us / (2 * NUM_PINGS) for name, us in times.items()}, wrong)


def partitions(bench: Bench) -> None:
    tensor = torch.zeros(PARTITIONS * PARTITION_BYTES // 8, dtype=torch.int64)
    content = torch.arange(tensor.numel())
    answer = torch.zeros(1)
    request = bench.prepare(tensor, bench.is_first(), PARTITIONS, tag=1)
    answering = bench.prepare(answer, not bench.is_first(), 1, tag=2)
    stamps = torch.zeros(PARTITIONS, dtype=torch.int64)
    if bench.on_gpu:
        handles = torch.tensor([request.device_handle])
        run = kernel("send" if bench.is_first() else "receive")
    latencies: list[float] = []

    def end() -> None:
        answering.start()
        if not bench.is_first():
            answering.ready()
        answering.wait()

    def one_by_one() -> None:
        if bench.is_first():
            tensor.copy_(content)
        request.start()
        if bench.on_gpu:
            run((PARTITIONS, 1, 1), (512, 1, 1), [handles, stamps])
        request.wait()
        end()

    def together() -> None:
        if bench.is_first():
            tensor.copy_(content)
            dist.send(tensor, bench.peer)
        else:
            dist.recv(tensor, bench.peer)
        end()

    def check() -> bool:
        both = [torch.zeros(PARTITIONS, dtype=torch.int64, device="cpu") for _ in range(2)]
        dist.all_gather(both, stamps.cpu())
        latencies.extend(((both[1] - both[0]) / 1000).tolist())
        is_right = torch.equal(tensor, content)
        tensor.zero_()
        return is_right

    times, wrong = bench.medians({"one by one": one_by_one, "dist.send": together}, check)
    bench.add("partitions", tensor.nbytes, times, wrong)
    if torch.cuda.device_count() == 1 and not bench.has_cpu_peer():
        bench.add("partition", PARTITION_BYTES, {"prepared": median(latencies[WARM_UP * PARTITIONS :])}, wrong)


def run_rank(arguments: argparse.Namespace, machine: Machine) -> None:
    on_gpu = not (arguments.cpu_peer and arguments.rank == 1)
    torch.cuda.set_device(arguments.rank % torch.cuda.device_count())
    torch.set_default_device("cuda" if on_gpu else "cpu")
    store = f"tcp://{ADDRESSES[0]}:29518"
    dist.init_process_group("axon", init_method=store, rank=arguments.rank, world_size=2)
    bench = Bench(machine, on_gpu, "cpu peer: " if arguments.cpu_peer else "")
    pings(bench)
    partitions(bench)
    if arguments.json and bench.is_first():
        append_lines(arguments.json, bench.lines)
    dist.barrier()
    dist.destroy_process_group()


def start(rank: int, hosts: Hosts) -> subprocess.Popen[bytes]:
    command = [*hosts.prefix(rank), sys.executable, __file__, *sys.argv[1:], "--rank", str(rank)]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="a file to which the first rank appends records")
    parser.add_argument("--cpu-peer", action="store_true", help="let the second rank use CPU tensors")
    parser.add_argument("--commit", help="what the records name as commit")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        command = f"python {shlex.join(sys.argv[:-2])}"
        run_rank(arguments, replace(describe_machine("cuda", arguments.commit), command=command))
        return 0
    clean_up_when_told_to_end()
    with two_hosts() as hosts:
        ranks = [start(rank, hosts) for rank in range(2)]
        try:
            return max((rank.wait() for rank in ranks), key=abs)
        finally:
            for each in ranks:
                each.kill()


if __name__ == "__main__":
    sys.exit(main())
