"""Training steps of a Llama's blocks under FSDP2, whose collectives run beside the products, on streams of FSDP2's own.

    torchrun --nproc-per-node=2 benchmarks/cuda/fsdp_step.py --json fsdp.jsonl
    torchrun --nproc-per-node=2 benchmarks/cuda/fsdp_step.py --tokens 2048

A step is the forward and backward pass of `--layers` blocks of `examples/llama_block.py`. Each block is sharded by
`fully_shard`: parameters are gathered in bfloat16, and gradients reduced in float32. The step is not captured, as in
most programs. Sides:

    axon, nccl   the model over that backend
    none         the same blocks, whole on each rank and in bfloat16: neither collectives nor copies around them

hot.py describes the timing. Distances are relative, between a side's gradients of this rank and NCCL's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from hot import add_schedule, interleave, schedule
from llama_blocks import HEAT, Sizes, add_sizes, make_blocks, sizes_of
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from torch_axon.bench.contenders import Control, choose_gpu, open_contenders
from torch_axon.bench.record import Machine, append_lines, describe_machine_of_script


@dataclass(frozen=True)
class StepSide:
    name: str
    step_us: float
    distance: float | None  # none for the side without communication


@dataclass(frozen=True)
class StepLine(Sizes):
    tokens: int
    parameters: int
    ranks: int
    sides: tuple[StepSide, ...]
    machine: Machine = field(repr=False)


class Trainer:
    """The blocks of one side; without a group they are whole."""

    def __init__(self, group: dist.ProcessGroup | None, arguments: argparse.Namespace) -> None:
        self.model: nn.Module = nn.Sequential(*make_blocks(arguments))
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        if group is None:
            self.model.to(torch.bfloat16)
        else:
            self._shard(group)
        torch.manual_seed(1 + dist.get_rank())
        tokens = (1, arguments.tokens, arguments.features)
        self._x = torch.randn(tokens, dtype=torch.bfloat16)
        self._gradient = torch.randn(tokens, dtype=torch.bfloat16)

    def _shard(self, group: dist.ProcessGroup) -> None:
        # DTensor distinguishes it from the other meshes of these ranks by its name only.
        mesh = DeviceMesh.from_group(group, "cuda", mesh_dim_names=(f"of {group.group_name}",))
        precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in self.model.children():
            fully_shard(block, mesh=mesh, mp_policy=precision)
        fully_shard(self.model, mesh=mesh, mp_policy=precision)

    def step(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.model(self._x).backward(self._gradient)

    def gradients(self) -> Tensor:
        """Returns those that this rank holds."""
        parts = []
        for parameter in self.model.parameters():
            gradient = parameter.grad
            assert gradient is not None
            parts.append((gradient.to_local() if isinstance(gradient, DTensor) else gradient).flatten())
        return torch.cat(parts)


def train(
    gpu: torch.device, groups: dict[str, dist.ProcessGroup], control: Control, arguments: argparse.Namespace
) -> tuple[int, tuple[StepSide, ...]]:
    with gpu:
        trainers = {name: Trainer(group, arguments) for name, group in groups.items()}
        trainers["none"] = Trainer(None, arguments)
        factor = torch.randn(HEAT, HEAT, dtype=torch.bfloat16)
    product = torch.empty_like(factor)
    for trainer in trainers.values():
        trainer.step()
    distances = {name: _distance(trainers[name], trainers["nccl"], control) for name in groups}
    calls = {name: trainer.step for name, trainer in trainers.items()}
    times = interleave(calls, lambda: torch.mm(factor, factor, out=product), schedule(arguments), control)
    sides = tuple(StepSide(name, time, distances.get(name)) for name, time in times.items())
    return trainers["none"].num_parameters, sides


def _distance(trainer: Trainer, reference: Trainer, control: Control) -> float:
    own, expected = trainer.gradients(), reference.gradients()
    return control.maximum([float((own - expected).norm() / expected.norm())])[0]


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sizes(parser, layers=6)
    parser.add_argument("--tokens", type=int, default=8192, help="of each rank")
    add_schedule(parser)
    parser.add_argument("--json", type=Path, help="the line is appended")
    parser.add_argument("--commit", help="the measured commit, if this is not a git checkout")
    return parser.parse_args(words)


def report(line: StepLine) -> str:
    rows = [f"{line.parameters / 1e9:.2f} B parameters, {line.tokens} tokens per rank", ""]
    rows += ["| side | step µs | distance |", "|-|-|-|"]
    for side in line.sides:
        distance = "–" if side.distance is None else f"{side.distance:.1e}"
        rows.append(f"| {side.name} | {side.step_us:.0f} | {distance} |")
    return "\n".join(rows)


def main() -> None:
    arguments = parse(sys.argv[1:])
    gpu = choose_gpu()
    contenders, control = open_contenders("axon", ["nccl"], timedelta(minutes=5))
    groups = {each.backend: each.group for each in contenders}
    num_parameters, sides = train(gpu, groups, control, arguments)
    if dist.get_rank() == 0:
        line = StepLine(
            **sizes_of(arguments),
            tokens=arguments.tokens,
            parameters=num_parameters,
            ranks=dist.get_world_size(),
            sides=sides,
            machine=describe_machine_of_script(arguments.commit),
        )
        print(report(line))
        if arguments.json:
            append_lines(arguments.json, [line])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
