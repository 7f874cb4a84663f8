"""Times windows beside send and recv: data that one rank puts into the other one's tensor, and a signal after them.

    torchrun --nproc-per-node=2 benchmarks/windows.py --json windows.jsonl

A sample is half of a round trip. By a window, a rank puts and signals, and the other one waits for the signal, puts
back and signals. In the other sides, both ranks call dist.send and dist.recv, over axon or over Gloo. The sides take
turns, and received data are compared in each round. `signal` is a signal without data, beside messages of 8 bytes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import torch_axon
from torch_axon.bench.record import Line, Side, append_lines, describe_machine
from torch_axon.bench.sizes import parse_sizes

SIGNAL_BYTES = 8
_BYTES_PER_ROUND = 64 << 20
_FEWEST, _MOST = 3, 300

Step = Callable[[], None]


class Bench:
    """The two ranks, the groups of the sides, and the buffers: what a rank sends, and where it receives."""

    def __init__(self, num_bytes: int) -> None:
        self.rank = dist.get_rank()
        self.peer = 1 - self.rank
        self.gloo = dist.new_group(backend="gloo")
        self.sent = torch.empty(num_bytes, dtype=torch.uint8)
        self.received = torch.empty(num_bytes, dtype=torch.uint8)
        self.window = torch_axon.new_window(self.received)

    def steps_of(self, op: str, num_bytes: int) -> dict[str, Step]:
        """Returns a round trip of each side. Rank 0 begins."""
        out, into = self.sent[:num_bytes], self.received[:num_bytes]
        groups = {"dist.send": dist.group.WORLD, "gloo": self.gloo}
        steps = {name: self._in_turn(*_messages(out, into, self.peer, group)) for name, group in groups.items()}

        def put() -> None:
            if op == "put":
                self.window.put(out, self.peer, async_op=True)
            self.window.signal(self.peer)

        return {"window": self._in_turn(put, lambda: _ignore(self.window.wait_signal(self.peer))), **steps}

    def _in_turn(self, send: Step, receive: Step) -> Step:
        first, second = (send, receive) if self.rank == 0 else (receive, send)

        def step() -> None:
            first()
            second()

        return step

    def round(self, step: Step, num_bytes: int, checks: bool) -> float:
        """Returns the median seconds of half a round trip, after one that is not timed, whose data may be compared."""
        self.sent[:num_bytes].random_(0, 256)
        self.received[:num_bytes].zero_()
        dist.barrier()
        step()
        if checks:
            self._compare(num_bytes)
        dist.barrier()
        times = []
        for _ in range(max(_FEWEST, min(_MOST, _BYTES_PER_ROUND // num_bytes))):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        return median(times) / 2

    def _compare(self, num_bytes: int) -> None:
        """Compares what has arrived with what the other rank has sent, by another way."""
        both = [torch.empty(num_bytes, dtype=torch.uint8) for _ in range(2)]
        dist.all_gather(both, self.sent[:num_bytes], group=self.gloo)
        if not torch.equal(both[self.peer], self.received[:num_bytes]):
            raise ValueError(f"rank {self.rank}: {num_bytes} bytes differ from those that rank {self.peer} has sent")

    def measure(self, op: str, num_bytes: int, rounds: int) -> dict[str, float]:
        """Returns the microseconds of each side, of the slower rank: medians over the rounds."""
        steps = self.steps_of(op, num_bytes)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(rounds):
            for name in steps if number % 2 == 0 else reversed(steps):
                checks = op == "put" or name != "window"
                times[name].append(self.round(steps[name], num_bytes, checks))
        return {name: self._slower(median(each) * 1e6) for name, each in times.items()}

    def _slower(self, value: float) -> float:
        both = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        return round(float(both), 3)


def _messages(out: torch.Tensor, into: torch.Tensor, peer: int, group: dist.ProcessGroup | None) -> tuple[Step, Step]:
    return lambda: dist.send(out, peer, group=group), lambda: _ignore(dist.recv(into, peer, group=group))


def _ignore(_result: object) -> None:
    """Makes a step of a call that returns something."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes("8,1M,16M"), help="of a put")
    parser.add_argument("--rounds", type=int, default=9, help="sample rounds of each side, for each size")
    parser.add_argument("--commit", help="the measured commit, if there is no repository")
    parser.add_argument("--json", type=Path, help="lines are appended")
    arguments = parser.parse_args()
    dist.init_process_group("axon")
    bench = Bench(max(SIGNAL_BYTES, *arguments.sizes))
    command = f"torchrun --nproc-per-node=2 {shlex.join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])}"
    machine = replace(describe_machine("cpu", arguments.commit), command=command)
    for op, num_bytes in (("signal", SIGNAL_BYTES), *(("put", size) for size in arguments.sizes)):
        times = bench.measure(op, num_bytes, arguments.rounds)
        if bench.rank > 0:
            continue
        print(f"{op:>8} {num_bytes:>10}  " + "  ".join(f"{name} {us:.2f} µs" for name, us in times.items()), flush=True)
        sides = tuple(Side(name, p50_us=us, calls=arguments.rounds, wrong=0) for name, us in times.items())
        line = Line(op, num_bytes, num_bytes, "uint8", "", -1, 2, 1, sides, machine)
        if arguments.json:
            append_lines(arguments.json, [line])
    bench.window.tensor_deregister()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
