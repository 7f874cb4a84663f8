"""Times prepared transfers between two GPUs, beside send and recv of axon and NCCL.

    torchrun --nproc-per-node=2 benchmarks/cuda/prepared.py --json prepared.jsonl

Prints one line per operation and size, with the microseconds of each side; `--json` appends records as the other
benchmarks do. Operations:

    ping        half of a round trip, in a CUDA graph of many
    one way     a message to a rank that waits for it, in a graph of many, back to back
    eager       the same, called one by one
    pready      from pready() in a kernel to the return of wait() in a kernel of the other GPU
    partitions  a kernel that makes 64 partitions of 256 KiB, 5 µs apart, until the last has arrived and been answered:
                sent one by one as they are made, or together after it; `kernel` is the kernel alone
    host        the host's time for one call of start, ready or wait

The sides take turns. Received data is compared in every round.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
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

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
ROUNDS, WARM_UP = 15, 3
PARTITIONS, PARTITION_BYTES, STEP_NS = 64, 256 << 10, 5000
NUM_PINGS = 1000  # partitions of the operation pready
Step = Callable[[], None]


class Bench:
    """The two ranks, their groups, and the lines that they have measured."""

    def __init__(self, commit: str | None) -> None:
        self.rank = int(os.environ["RANK"])
        self.peer = 1 - self.rank
        torch.cuda.set_device(self.rank)
        torch.set_default_device("cuda")
        dist.init_process_group("cpu:gloo,cuda:nccl")
        self.axon = dist.new_group(backend="axon")
        self.nccl = dist.group.WORLD
        self.lines: list[Line] = []
        command = f"torchrun --nproc-per-node=2 {shlex.join(sys.argv)}"
        self._machine: Machine = replace(describe_machine("cuda", commit), command=command)

    def is_first(self) -> bool:
        return self.rank == 0

    def meet(self) -> None:
        torch.cuda.synchronize()
        dist.all_reduce(torch.zeros(1, device="cpu"))

    def slowest(self, value: float) -> float:
        both = torch.tensor([value], device="cpu")
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        return float(both)

    def prepare(self, tensor: Tensor, sends: bool, partitions: int | None = None, tag: int = 0) -> Any:
        operation = "send" if sends else "recv"
        return torch_axon.prepare(tensor, operation, peer=self.peer, partitions=partitions, tag=tag, group=self.axon)

    def in_graph(self, step: Step) -> Step:
        step()
        self.meet()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        self.meet()
        return graph.replay

    def add(
        self, op: str, size: int, sides: dict[str, Step], calls: int, check: Callable[[], bool], graph: bool
    ) -> None:
        """Times the steps in turn, and appends a line. Each step makes `calls` calls."""
        times: dict[str, list[float]] = {name: [] for name in sides}
        num_wrong = 0
        for _ in range(ROUNDS):
            for name, step in sides.items():
                self.meet()
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                step()
                end.record()
                end.synchronize()
                times[name].append(begin.elapsed_time(end) * 1000 / calls)
                num_wrong += not check()
        medians = {name: self.slowest(median(each[WARM_UP:])) for name, each in times.items()}
        self.add_line(op, size, medians, graph, int(self.slowest(num_wrong)))

    def add_line(self, op: str, size: int, times: dict[str, float], graph: bool = False, wrong: int = 0) -> None:
        sides = tuple(Side(name, p50_us=round(us, 3), calls=ROUNDS, wrong=wrong) for name, us in times.items())
        self.lines.append(
            Line(op, size, size, "uint8", "", 0, 2, 1, sides, self._machine, "cuda", graph, host=op.startswith("host"))
        )
        if self.is_first():
            print(f"{op:>12} {size:>10}  " + "  ".join(f"{name} {us:.2f}" for name, us in times.items()), wrong or "")


def messages(bench: Bench, size: int) -> None:
    """Whole tensors: prepared, and by send and recv."""
    out = (torch.arange(size) % 251).to(torch.uint8)
    into = torch.zeros_like(out)
    sending, receiving = bench.prepare(out, True), bench.prepare(into, False)
    count = 50 if size < 16 << 20 else 4

    def arrived() -> bool:
        is_right = bool((into == out).all())
        into.zero_()
        return is_right

    def ping() -> None:
        for _ in range(count):
            receiving.start()
            for request in (sending, receiving) if bench.is_first() else (receiving, sending):
                if request is sending:
                    sending.start()
                request.wait()

    def one_way() -> None:
        request = sending if bench.is_first() else receiving
        for _ in range(count):
            request.start()
            request.wait()

    def send(group: dist.ProcessGroup) -> None:
        dist.send(out, bench.peer, group=group)

    def recv(group: dist.ProcessGroup) -> None:
        dist.recv(into, bench.peer, group=group)

    def ping_by(group: dist.ProcessGroup) -> None:
        for call in [send, recv] * count if bench.is_first() else [recv, send] * count:
            call(group)

    def one_way_by(group: dist.ProcessGroup) -> None:
        for _ in range(count):
            (send if bench.is_first() else recv)(group)

    def sides(prepared: Step, by: Callable[[dist.ProcessGroup], None]) -> dict[str, Step]:
        return {"prepared": prepared, "axon": lambda: by(bench.axon), "nccl": lambda: by(bench.nccl)}

    def at_receiver() -> bool:
        return bench.is_first() or arrived()

    both, one = sides(ping, ping_by), sides(one_way, one_way_by)
    bench.add("ping", size, {name: bench.in_graph(step) for name, step in both.items()}, 2 * count, arrived, True)
    bench.add("one way", size, {name: bench.in_graph(step) for name, step in one.items()}, count, at_receiver, True)
    bench.add("eager", size, one, count, at_receiver, False)
    sending.close()
    receiving.close()


def pings_of_kernels(bench: Bench) -> None:
    out, into = torch.arange(NUM_PINGS), torch.zeros(NUM_PINGS, dtype=torch.int64)
    sending, receiving = bench.prepare(out, True, NUM_PINGS), bench.prepare(into, False, NUM_PINGS)
    handles = torch.tensor([sending.device_handle, receiving.device_handle])
    run = kernel("ping")

    def step() -> None:
        receiving.start()
        sending.start()
        run((1, 1, 1), (32, 1, 1), [handles, NUM_PINGS, int(bench.is_first())])
        receiving.wait()
        sending.wait()

    def check() -> bool:
        is_right = torch.equal(out, into)
        into.zero_()
        return is_right

    bench.add("pready", 8, {"prepared": step}, 2 * NUM_PINGS, check, False)


def partitions(bench: Bench) -> None:
    size = PARTITION_BYTES // 4
    tensor, answer = torch.zeros(PARTITIONS * size), torch.zeros(1)
    request = bench.prepare(tensor, bench.is_first(), PARTITIONS)
    answering = bench.prepare(answer, not bench.is_first(), tag=1)
    handles = torch.tensor([request.device_handle])
    make = kernel("make")

    def launch(sends: bool) -> None:
        make((PARTITIONS, 1, 1), (512, 1, 1), [handles, tensor, size, STEP_NS, int(sends)])

    def end() -> None:
        answering.start()
        answering.wait()

    def one_by_one() -> None:
        request.start()
        if bench.is_first():
            launch(True)
        request.wait()
        end()

    def together() -> None:
        if bench.is_first():
            launch(False)
            dist.send(tensor, bench.peer, group=bench.axon)
        else:
            dist.recv(tensor, bench.peer, group=bench.axon)
        end()

    def alone() -> None:
        if bench.is_first():
            launch(False)
        else:
            tensor.zero_()

    def check() -> bool:
        is_right = bench.is_first() or bool((tensor == torch.arange(tensor.numel())).all())
        tensor.zero_()
        return is_right

    steps = {"one by one": one_by_one, "together": together}
    bench.add("partitions", tensor.nbytes, {name: bench.in_graph(step) for name, step in steps.items()}, 1, check, True)
    bench.add("kernel", tensor.nbytes, {"kernel": bench.in_graph(alone)}, 1, lambda: True, True)


def host_times(bench: Bench) -> None:
    request = bench.prepare(torch.zeros(2), bench.is_first(), 1, tag=2)
    times: list[list[float]] = []
    for number in range(300):
        marks = [time.perf_counter()]
        for step in (request.start, request.ready if bench.is_first() else lambda: None, request.wait):
            step()
            marks.append(time.perf_counter())
        times.append([(later - earlier) * 1e6 for earlier, later in itertools.pairwise(marks)])
        if number % 30 == 0:
            torch.cuda.synchronize()
    bench.meet()
    for name, values in zip(("start", "ready", "wait"), zip(*times, strict=True), strict=True):
        bench.add_line(f"host: {name}", 8, {"prepared": bench.slowest(median(values))})


def main() -> None:
    parser = argparse.ArgumentParser(description="Times prepared transfers between two GPUs.")
    parser.add_argument("--json", type=Path, help="a file to which the first rank appends records")
    parser.add_argument("--commit", help="what the records name as commit")
    arguments = parser.parse_args()
    bench = Bench(arguments.commit)
    for size in SIZES:
        messages(bench, size)
    pings_of_kernels(bench)
    partitions(bench)
    host_times(bench)
    bench.meet()
    if arguments.json and bench.is_first():
        append_lines(arguments.json, bench.lines)
    bench.meet()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
