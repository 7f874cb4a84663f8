"""Time per training step of DistributedDataParallel over several backends and without communication, in turn.

    torchrun --nproc-per-node=2 benchmarks/ddp_step.py [--models digits,text] [--vs gloo] --json FILE

`digits` is the demo's convolutional network on scikit-learn's digits, `text` a transformer of 3.2 million parameters on
the help texts that come with Python. Sides:

    axon, gloo   DDP over that backend; from the same seed on the same batches, losses compared
    none         the same model without DDP: no gradient leaves its rank

Each side has a block of steps, of which the first is not timed; the order alternates. A step's time is the median over
all blocks, of the slowest rank. Beside it stands what the backend takes for the same buckets of gradients while nothing
is computed: what of that does not show in the step, over `none`, is hidden.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import torch_axon  # noqa: F401
from torch_axon.bench.contenders import Control
from torch_axon.bench.record import Machine, append_lines, describe_machine

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from digits_ddp import build_model, largest_relative_difference, load_data

NONE = "none"
SEED = 7
CONTEXT, FEATURES, NUM_LAYERS = 64, 256, 4


class Writer(nn.Module):
    """Tells each next character of a text, [batch, length] of ASCII, as [batch, 128, length]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, FEATURES), nn.Embedding(CONTEXT, FEATURES)
        layer = nn.TransformerEncoderLayer(FEATURES, 4, 4 * FEATURES, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, NUM_LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(FEATURES, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.embed(text) + self.place.weight
        logits: Tensor = self.head(self.layers(hidden, mask=self.mask, is_causal=True))
        return logits.transpose(1, 2)


Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A model, and without end the batches of this rank, the same each time that they are asked for."""

    make_model: Callable[[], nn.Module]
    batches: Callable[[], Iterator[Batch]]


def _digits_batches() -> Iterator[Batch]:
    data, epoch = load_data(), 0
    while True:
        yield from data.batches(epoch)
        epoch += 1


def _text_batches() -> Iterator[Batch]:
    letters = "\n".join(topics.values()).encode("ascii", "ignore")
    text = torch.frombuffer(bytearray(letters), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(SEED + dist.get_rank())
    while True:
        starts = torch.randint(len(text) - CONTEXT - 1, (4,), generator=generator)
        rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
        yield rows[:, :-1], rows[:, 1:]


TASKS = {"digits": Task(build_model, _digits_batches), "text": Task(Writer, _text_batches)}


@dataclass(frozen=True)
class Side:
    name: str
    step_ms: float  # median, of the slowest rank
    communication_ms: float | None  # of the same buckets, alone
    last_loss: float  # mean over the ranks


@dataclass(frozen=True)
class Line:
    model: str
    num_parameters: int
    bucket_num_bytes: tuple[int, ...]
    ranks: int
    steps: int
    largest_loss_difference: float  # relative, between backends
    sides: tuple[Side, ...]
    machine: Machine


class Training:
    """A replica of the model, over a backend's group or none."""

    def __init__(self, name: str, task: Task, group: dist.ProcessGroup | None) -> None:
        torch.manual_seed(SEED)
        model = task.make_model()
        self.name = name
        self.group = group
        self.losses: list[Tensor] = []
        self.seconds: list[float] = []
        self.model = DistributedDataParallel(model, process_group=group) if group else model
        self._batches = task.batches()
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def run(self, num_steps: int) -> None:
        """One more, which is not timed: the ranks meet in it."""
        for number in range(num_steps + 1):
            inputs, targets = next(self._batches)
            start = perf_counter()
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
            self._optimizer.zero_grad()
            torch.autograd.backward(loss)
            self._optimizer.step()
            if number > 0:
                self.seconds.append(perf_counter() - start)
            self.losses.append(loss.detach())

    def buckets(self) -> list[int]:
        """Bytes of each, as DDP cuts them once it has seen a backward pass."""
        assert isinstance(self.model, DistributedDataParallel)
        data = self.model._get_ddp_logging_data()
        sizes = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
        return [int(size) for size in str(sizes).split(",")]


def _communicate(training: Training, num_rounds: int) -> list[float]:
    """Seconds that each round of all buckets takes, started as DDP does, after one that is not timed."""
    gradients = [torch.zeros(size // 4) for size in training.buckets()]
    seconds = []
    for _ in range(num_rounds + 1):
        start = perf_counter()
        for work in [dist.all_reduce(each, group=training.group, async_op=True) for each in gradients]:
            work.wait()
        seconds.append(perf_counter() - start)
    return seconds[1:]


def _take_turns(trainings: Sequence[Training], control: Control, arguments: argparse.Namespace) -> dict[str, float]:
    """Trains; returns the median seconds of communication alone by side."""
    alone: dict[str, list[float]] = {each.name: [] for each in trainings if each.group}
    for block in range(arguments.blocks):
        for training in trainings if block % 2 == 0 else reversed(trainings):
            control.barrier()
            training.run(arguments.steps)
            if training.group:
                control.barrier()
                alone[training.name] += _communicate(training, arguments.steps)
    return {name: statistics.median(seconds) for name, seconds in alone.items()}


def measure(name: str, groups: dict[str, dist.ProcessGroup], control: Control, arguments: argparse.Namespace) -> Line:
    trainings = [Training(side, TASKS[name], groups.get(side)) for side in (*groups, NONE)]
    alone = _take_turns(trainings, control, arguments)
    steps = control.maximum([statistics.median(training.seconds) for training in trainings])
    alone = dict(zip(alone, control.maximum(list(alone.values())), strict=True))
    losses = {training.name: torch.stack(training.losses).double() for training in trainings}
    for each in losses.values():
        dist.all_reduce(each, group=groups["axon"])
        each /= dist.get_world_size()
    sides = [
        Side(side, seconds * 1e3, alone[side] * 1e3 if side in alone else None, losses[side][-1].item())
        for side, seconds in zip(losses, steps, strict=True)
    ]
    reference = losses["axon"].tolist()
    return Line(
        model=name,
        num_parameters=sum(each.numel() for each in trainings[0].model.parameters()),
        bucket_num_bytes=tuple(trainings[0].buckets()),
        ranks=dist.get_world_size(),
        steps=len(trainings[0].seconds),
        largest_loss_difference=max(largest_relative_difference(reference, losses[side].tolist()) for side in groups),
        sides=tuple(sides),
        machine=replace(
            describe_machine(),
            command=f"torchrun --nproc-per-node={dist.get_world_size()} benchmarks/ddp_step.py "
            + shlex.join(sys.argv[1:]),
        ),
    )


def show(line: Line) -> None:
    buckets = " + ".join(f"{size / 1e6:.2f}" for size in line.bucket_num_bytes)
    print(f"{line.model}: {line.num_parameters} parameters, {buckets} MB of gradients, {line.ranks} ranks")
    floor = line.sides[-1].step_ms
    for side in line.sides:
        shown = ""
        if side.communication_ms is not None:
            shown = f", {side.step_ms - floor:.2f} over none; communication alone {side.communication_ms:.2f}"
        print(f"  {side.name:>6}: {side.step_ms:.2f} ms a step{shown}; last loss {side.last_loss:.6f}")
    print(f"  losses of the backends differ by {line.largest_loss_difference:g} at most")


def main() -> int:
    parser = argparse.ArgumentParser(description="Times training steps of DDP over several backends.")
    parser.add_argument("--models", default="digits,text", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--vs", default="gloo", help="backends beside axon")
    parser.add_argument("--blocks", type=int, default=10, help="turns of each side")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a turn")
    parser.add_argument("--json", type=Path, help="file to append a line a model to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    control = Control(dist.new_group(backend="gloo"))
    groups = {name: dist.new_group(backend=name) for name in ("axon", *filter(None, arguments.vs.split(",")))}
    for name in arguments.models.split(","):
        line = measure(name, groups, control, arguments)
        if dist.get_rank() == 0:
            show(line)
            if arguments.json:
                append_lines(arguments.json, [line])
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
