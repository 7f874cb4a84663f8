"""What AXON_CHECK_RESULTS=1 costs: the same all_reduce in a group that checks results and in one that does not.

    torchrun --nproc-per-node=2 benchmarks/result_check.py --json results.jsonl
    torchrun --nproc-per-node=2 benchmarks/result_check.py --device cuda

The groups take turns. Times are those of the slowest rank, medians over the rounds, of synchronous calls one after the
other; on GPUs, of the stream. Results are compared after every round.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import torch_axon  # noqa: F401  registers the backend
from torch_axon.bench.record import Line, Side, append_lines, describe_machine

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
ROUNDS = 15


def group_that(checks: bool) -> dist.ProcessGroup:
    os.environ["AXON_CHECK_RESULTS"] = "1" if checks else "0"
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    return group


class Bench:
    def __init__(self, device: str, commit: str | None) -> None:
        self.groups = {"checked": group_that(True), "axon": group_that(False)}
        self.is_cuda = device == "cuda"
        self.machine = describe_machine(device, commit)
        self.lines: list[Line] = []

    def measure(self, num_bytes: int) -> None:
        data = torch.ones(num_bytes // 4, device="cuda" if self.is_cuda else "cpu")
        calls = max(5, min(500, (32 << 20) // num_bytes))
        times: dict[str, list[float]] = {name: [] for name in self.groups}
        for number in range(ROUNDS + 1):
            for name, group in self.groups.items():
                seconds = self.run(data, group, calls)
                assert bool((data == 1).all())
                if number > 0:  # the first round warms up
                    times[name].append(1e6 * seconds / calls)
        sides = tuple(Side(name, p50_us=round(self.slowest(median(us)), 3), calls=calls) for name, us in times.items())
        device = "cuda" if self.is_cuda else "cpu"
        ranks = dist.get_world_size()
        line = Line(
            "all_reduce", num_bytes, data.numel(), "float32", "max", 0, ranks, 1, sides, self.machine, device=device
        )
        self.lines.append(line)
        if dist.get_rank() == 0:
            checked, plain = (side.p50_us for side in sides)
            print(f"{num_bytes:>10} B: {checked:10.2f} µs checked, {plain:10.2f} µs not, {checked / plain:.2f} ×")

    def run(self, data: torch.Tensor, group: dist.ProcessGroup, calls: int) -> float:
        dist.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(data, op=dist.ReduceOp.MAX, group=group)
        if self.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def slowest(self, value: float) -> float:
        values: list[float | None] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return max(each for each in values if each is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times all_reduce with and without AXON_CHECK_RESULTS=1.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the tensors are")
    parser.add_argument("--json", type=Path, help="a file to which the first rank appends records")
    parser.add_argument("--commit", help="what the records name as commit")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("axon")
    bench = Bench(arguments.device, arguments.commit)
    for num_bytes in SIZES:
        bench.measure(num_bytes)
    if arguments.json and dist.get_rank() == 0:
        append_lines(arguments.json, bench.lines)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
