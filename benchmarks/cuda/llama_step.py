"""Training steps of a Llama's blocks with tensor and sequence parallelism, which overlap communication in several ways.

    torchrun --nproc-per-node=2 benchmarks/cuda/llama_step.py --json llama.jsonl
    torchrun --nproc-per-node=2 benchmarks/cuda/llama_step.py --compile --sequence 16384

A step is the forward and backward pass of `--layers` blocks of `examples/llama_block.py`, in bfloat16. It is replayed
from a CUDA graph, so that the host's time does not count. Sides:

    axon       its fused plan, over axon
    unfused    torch's plan over axon: collectives, then products
    nccl       torch's plan over NCCL
    symm_mem   torch's plan, whose collectives Inductor's async tensor parallelism hides; with --compile only
    none       the fused plan without its communication: the limit of perfect overlap

hot.py describes the timing. `--compile` compiles all sides with Inductor. Distances are relative, between a side's
outputs and NCCL's.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import unconnected
from hot import NUM_WARM_CALLS, add_schedule, interleave, schedule
from llama_blocks import HEAT, Sizes, add_sizes, make_blocks, sizes_of
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from torch_axon import tensor_parallel
from torch_axon.bench.clock import capture
from torch_axon.bench.contenders import Control, choose_gpu, open_contenders
from torch_axon.bench.record import Machine, append_lines, describe_machine_of_script

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from llama_block import fused_plan, torch_plan


@dataclass(frozen=True)
class Way:
    """A plan for the blocks over a backend, and the Inductor settings that it needs."""

    plan: Callable[[], dict[str, ParallelStyle]]
    backend: str
    options: dict[str, bool] = field(default_factory=dict)
    connected: bool = True


WAYS = {
    "axon": Way(fused_plan, "axon"),
    "unfused": Way(torch_plan, "axon"),
    "nccl": Way(torch_plan, "nccl"),
    "symm_mem": Way(torch_plan, "nccl", {"_micro_pipeline_tp": True}),
    "none": Way(fused_plan, "axon", connected=False),
}


@dataclass(frozen=True)
class StepSide:
    name: str
    step_us: float = 0.0
    share: float | None = None  # relative to the speed without communication
    distance: float = 0.0
    failure: str | None = None


@dataclass(frozen=True)
class StepLine(Sizes):
    batch: int
    sequence: int
    ranks: int
    compiled: bool
    sides: tuple[StepSide, ...]
    machine: Machine = field(repr=False)


class Trainer:
    """The blocks of one side, with a captured step."""

    def __init__(self, way: Way, group: dist.ProcessGroup, arguments: argparse.Namespace) -> None:
        # DTensor distinguishes it from the other meshes of these ranks by its name only.
        mesh = DeviceMesh.from_group(group, "cuda", mesh_dim_names=(way.backend,))
        blocks = [block.to(torch.bfloat16) for block in make_blocks(arguments)]
        for block in blocks:
            parallelize_module(block, mesh, way.plan(), src_data_rank=None)  # all ranks hold the same weights
        self._model: nn.Module = nn.Sequential(*blocks)
        self._run: Callable[[Tensor], Tensor] = self._model
        if arguments.compile:
            self._run = torch.compile(self._model, fullgraph=True, options={**way.options})
        torch.manual_seed(1 + dist.get_rank())
        part = (arguments.batch, arguments.sequence // dist.get_world_size(), arguments.features)
        self._x = torch.randn(part, dtype=torch.bfloat16).requires_grad_()
        self._gradient = torch.randn(part, dtype=torch.bfloat16)
        self.output = self._x

    def capture(self) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(NUM_WARM_CALLS):
                self._step()
            torch.cuda.synchronize()
        self._graph = capture(self._step)

    def replay(self) -> None:
        self._graph.replay()

    def _step(self) -> None:
        self._model.zero_grad(set_to_none=True)
        output = self._run(self._x)
        output.backward(self._gradient)
        self.output = output.detach()


@contextlib.contextmanager
def disconnected() -> Iterator[None]:
    """Makes layers multiply without communication."""
    with (
        mock.patch.object(tensor_parallel, "all_gather_matmul", unconnected.all_gather_matmul),
        mock.patch.object(tensor_parallel, "matmul_reduce_scatter", unconnected.matmul_reduce_scatter),
    ):
        yield


def train(
    gpu: torch.device, groups: dict[str, dist.ProcessGroup], control: Control, arguments: argparse.Namespace
) -> tuple[StepSide, ...]:
    names = [name for name, way in WAYS.items() if name in arguments.sides and (arguments.compile or not way.options)]
    trainers: dict[str, Trainer] = {}
    failures: dict[str, str] = {}
    for name in names:
        reason = None
        try:
            with gpu:  # for their tensors only: a default device would disturb torch.compile
                trainers[name] = Trainer(WAYS[name], groups[WAYS[name].backend], arguments)
            with contextlib.nullcontext() if WAYS[name].connected else disconnected():
                trainers[name].capture()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if reason := control.first_reason(reason):
            failures[name] = reason
            trainers.pop(name, None)
    factor = torch.randn(HEAT, HEAT, dtype=torch.bfloat16, device=gpu)
    product = torch.empty_like(factor)
    calls = {name: trainer.replay for name, trainer in trainers.items()}
    times = interleave(calls, lambda: torch.mm(factor, factor, out=product), schedule(arguments), control)
    distances = {name: _distance(trainer, trainers.get("nccl"), control) for name, trainer in trainers.items()}
    measured = {
        name: StepSide(name, time, times["none"] / time if "none" in times else None, distances[name])
        for name, time in times.items()
    }
    return tuple(measured.get(name) or StepSide(name, failure=failures[name]) for name in names)


def _distance(trainer: Trainer, reference: Trainer | None, control: Control) -> float:
    if reference is None:
        return float("nan")
    difference = (trainer.output.float() - reference.output.float()).norm() / reference.output.float().norm()
    return control.maximum([float(difference)])[0]


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sizes(parser, layers=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=8192, help="tokens of all ranks together")
    parser.add_argument("--sides", type=lambda text: text.split(","), default=list(WAYS), help=",".join(WAYS))
    parser.add_argument("--compile", action="store_true")
    add_schedule(parser)
    parser.add_argument("--json", type=Path, help="the line is appended")
    parser.add_argument("--commit", help="the measured commit, if this is not a git checkout")
    return parser.parse_args(words)


def report(line: StepLine) -> str:
    rows = ["| side | step µs | share of none | distance |", "|-|-|-|-|"]
    for side in line.sides:
        share = "–" if side.share is None else f"{side.share:.3f}"
        figures = side.failure or f"{side.step_us:.0f} | {share} | {side.distance:.1e}"
        rows.append(f"| {side.name} | {figures} |")
    return "\n".join(rows)


def main() -> None:
    arguments = parse(sys.argv[1:])
    gpu = choose_gpu()
    contenders, control = open_contenders("axon", ["nccl"], timedelta(minutes=5))
    sides = train(gpu, {each.backend: each.group for each in contenders}, control, arguments)
    if dist.get_rank() == 0:
        line = StepLine(
            **sizes_of(arguments),
            batch=arguments.batch,
            sequence=arguments.sequence,
            ranks=dist.get_world_size(),
            compiled=arguments.compile,
            sides=sides,
            machine=describe_machine_of_script(arguments.commit),
        )
        print(report(line))
        if arguments.json:
            append_lines(arguments.json, [line])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
