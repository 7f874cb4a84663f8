"""Compares matrix products that overlap their communication with the same product without communication.

    torchrun --nproc-per-node=2 benchmarks/cuda/overlap.py --json overlap.jsonl --plot overlap.png
    torchrun --nproc-per-node=2 benchmarks/cuda/overlap.py --shapes all --dtype float16 --json overlap.jsonl
    torchrun --nproc-per-node=2 benchmarks/cuda/overlap.py --shapes 8192,16384,8192 --trace overlap_trace.json

m, k, n of a shape are those of each rank's product: [m, k] @ [k, n]. all_gather_matmul gathers the rows of the first
factor, m / ranks from each rank; matmul_reduce_scatter scatters the rows of the result. Sides:

    nccl      NCCL's collective and torch.mm, one after the other
    symm_mem  torch.ops.symm_mem.fused_all_gather_matmul, fused_matmul_reduce_scatter
    axon      torch_axon.all_gather_matmul (without returning the gathered rows), matmul_reduce_scatter
    cut       all_gather_matmul's rows as separate products, this rank's and the others', without a gather: the limit

hot.py describes the timing. Factors are random. Every element is compared before and after, with integers that are
exact in any order of summation.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from hot import NUM_WARM_CALLS, add_schedule, interleave, schedule
from overlap_report import Line, Side, save_plot, table
from overlap_sides import SIDES, Call, Factors, Groups, draw_integers, draw_normal
from torch import Tensor

from torch_axon.bench.clock import EnqueueClock
from torch_axon.bench.contenders import choose_gpu, open_contenders
from torch_axon.bench.record import append_lines, describe_machine_of_script

QUICK = ((32768, 16384, 8192), (8192, 16384, 8192), (16384, 8192, 8192))
ALL = tuple((m, k, n) for m in (4096, 8192, 16384, 32768) for k in (4096, 8192, 16384) for n in (4096, 8192, 16384))

Times = dict[tuple[str, str], float]  # by operation and side
PLAIN = ("matmul", "alone")
CALLS_A_HOST_SAMPLE, HOST_SAMPLES = 8, 3


class Contest:
    """All sides of the chosen operations at one shape."""

    def __init__(self, factors: Factors, groups: Groups, arguments: argparse.Namespace) -> None:
        self._factors, self._control, self._arguments = factors, groups.control, arguments
        self._sides = {
            (op, name): call
            for op in arguments.operations
            for name, call in SIDES[op](factors, groups).items()
            if name in arguments.sides
        }
        self._references = {op: SIDES[op](factors, groups)["nccl"] for op in arguments.operations}
        self._failures: dict[tuple[str, str], str] = {}
        self._wrong = dict.fromkeys(self._sides, 0)

    def compare(self) -> None:
        """Counts differences from NCCL's results. A side that fails on any rank is left out."""
        self._factors.fill(draw_integers)
        for op, reference in self._references.items():
            expected = reference().clone()
            for side in [side for side in self._sides if side[0] == op]:
                wrong, reason = _differences(self._sides[side], expected)
                if reason := self._control.first_reason(reason):
                    self._failures[side] = reason
                    del self._sides[side]
                else:
                    self._wrong[side] += self._control.total(wrong)
        self._factors.fill(draw_normal)

    def time(self) -> Times:
        """Returns the microseconds per call of every side and of the plain product."""
        multiply = self._factors.multiply
        return interleave({PLAIN: multiply, **self._sides}, multiply, schedule(self._arguments), self._control)

    def time_host(self) -> Times:
        """Returns the microseconds that the host takes to enqueue a call."""
        return {side: self._enqueued(call) for side, call in self._sides.items()}

    def sides(self, op: str, times: Times, host_times: Times) -> tuple[Side, ...]:
        measured = {
            name: Side(
                name, times[op, name], times[PLAIN] / times[op, name], host_times[op, name], self._wrong[op, name]
            )
            for each, name in self._sides
            if each == op
        }
        failed = {name: Side(name, failure=reason) for (each, name), reason in self._failures.items() if each == op}
        return tuple(({**measured, **failed}).values())

    def _enqueued(self, call: Call) -> float:
        def batch() -> None:
            for _ in range(CALLS_A_HOST_SAMPLE):
                call()

        samples = EnqueueClock().time(batch, HOST_SAMPLES)
        return self._control.maximum([median(samples) / CALLS_A_HOST_SAMPLE / 1e3])[0]


def _differences(call: Call, expected: Tensor) -> tuple[int, str | None]:
    """Returns how many elements differ, or 0 and the reason if the call fails."""
    try:
        return int((call() != expected).sum()), None
    except Exception as error:
        return 0, f"{type(error).__name__}: {error}".splitlines()[0]


def trace(factors: Factors, groups: Groups, arguments: argparse.Namespace) -> None:
    """Writes a Chrome trace of axon's calls on rank 0: products on one stream, copies on another."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for op in arguments.operations:
            for _ in range(NUM_WARM_CALLS):
                SIDES[op](factors, groups)["axon"]()
        torch.cuda.synchronize()
    if dist.get_rank() == 0:
        profile.export_chrome_trace(str(arguments.trace))


def measure(shape: tuple[int, int, int], like: Tensor, groups: Groups, arguments: argparse.Namespace) -> list[Line]:
    m, k, n = shape
    factors = Factors(m, k, n, like)
    contest = Contest(factors, groups, arguments)
    contest.compare()
    times, host_times = contest.time(), contest.time_host()
    contest.compare()
    if arguments.trace:
        trace(factors, groups, arguments)
    machine = describe_machine_of_script(arguments.commit)
    num_ranks = dist.get_world_size()
    return [
        Line(op, m, k, n, arguments.dtype, num_ranks, times[PLAIN], contest.sides(op, times, host_times), machine)
        for op in arguments.operations
    ]


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=_shapes, default=QUICK, help="quick (three), all, or 'm,k,n m,k,n …'")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--operations", type=_words, default=list(SIDES), help=",".join(SIDES))
    parser.add_argument("--sides", type=_words, default=["nccl", "symm_mem", "axon", "cut"])
    add_schedule(parser)
    parser.add_argument("--json", type=Path, help="lines are appended")
    parser.add_argument("--plot", type=Path, help="PNG")
    parser.add_argument("--trace", type=Path, help="Chrome trace of axon's calls at the last shape, JSON")
    parser.add_argument("--commit", help="the measured commit, if this is not a git checkout")
    return parser.parse_args(words)


def _words(text: str) -> list[str]:
    return text.split(",")


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    named = {"quick": QUICK, "all": ALL}
    return named[text] if text in named else tuple(tuple(map(int, shape.split(","))) for shape in text.split())


def main() -> None:
    arguments = parse(sys.argv[1:])
    like = torch.empty(0, dtype=getattr(torch, arguments.dtype), device=choose_gpu())
    (axon, nccl), control = open_contenders("axon", ["nccl"], timedelta(minutes=2))
    groups = Groups(axon.group, nccl.group, control)
    lines: list[Line] = []
    for shape in arguments.shapes:
        lines += (new := measure(shape, like, groups, arguments))
        if dist.get_rank() == 0:
            print(table(new), flush=True)
            if arguments.json:  # at once, because a long run may be interrupted
                append_lines(arguments.json, new)
    if dist.get_rank() == 0 and arguments.plot:
        save_plot(lines, arguments.plot)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
