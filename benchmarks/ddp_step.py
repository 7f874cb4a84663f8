"""Time per training step of DistributedDataParallel over several backends and without communication, alternating.

    torchrun --nproc-per-node=2 benchmarks/ddp_step.py [--models digits,text] [--vs gloo] [--trace FILE] --json FILE

`digits` is the demo's convolutional network on scikit-learn's digits, `text` a transformer of 3.2 million parameters on
the help texts that come with Python. Sides:

    axon, gloo   DDP over that backend; from the same seed on the same batches, losses compared
    solo         DDP over groups of one rank: its reducer, copies and calls, without communication. A barrier follows
                 each backward pass, so that all steps last as long as the slowest rank's
    none         the same model without DDP

Each side has a block of steps, of which the first is not timed; the order alternates. A step's time is the median over
all blocks, of the slowest rank. Exposed communication is how much longer a step takes than one of `solo`. It is the
median over the blocks, each compared with the block of `solo` in the same sample round. The backend's time for the same
buckets of gradients, without computation, is measured too: the share of it that is not exposed is hidden.

Buckets have 1 MB instead of DDP's 25 MB: the last one leaves when the backward pass is over, so it cannot be hidden.
--trace makes axon's engine write a trace, and reports how long buckets were in flight during the backward pass.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]
from time import perf_counter, time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import torch_axon  # noqa: F401
from torch_axon.bench.contenders import Control
from torch_axon.bench.measure import percentile
from torch_axon.bench.record import Machine, append_lines, describe_machine

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from ddp_timeline import Span, Timeline, read_all_reduces, timeline_of
from digits_ddp import build_model, largest_relative_difference, load_data

SOLO, NONE = "solo", "none"
SEED = 7
CONTEXT, FEATURES, NUM_LAYERS = 64, 256, 4


class Writer(nn.Module):
    """Predicts each next character of a text, [batch, length] of ASCII, as [batch, 128, length]."""

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
    """A model, and an endless series of this rank's batches, which is the same each time."""

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
    exposed_ms: float | None = None  # exposed communication of a step
    exposed_quartiles_ms: tuple[float, float] | None = None  # of the blocks of rank 0
    hidden_share: float | None = None  # of `communication_ms`


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
    timeline: Timeline | None = None  # of axon, with --trace


class Training:
    """A replica of the model, over a backend's group or without one."""

    def __init__(
        self,
        name: str,
        task: Task,
        group: dist.ProcessGroup | None,
        bucket_mb: float,
        meeting: dist.ProcessGroup | None = None,
    ) -> None:
        """The ranks of `meeting` enter a barrier after each backward pass."""
        torch.manual_seed(SEED)
        model = task.make_model()
        self.name = name
        self.group = group
        self.meeting = meeting
        self.losses: list[Tensor] = []
        self.blocks: list[list[float]] = []  # seconds of each step
        self.backwards: list[Span] = []
        self.model = model
        if group:  # the models' buffers are constants, so only gradients are communicated
            self.model = DistributedDataParallel(
                model, process_group=group, bucket_cap_mb=bucket_mb, broadcast_buffers=False
            )
        self._batches = task.batches()
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def run(self, num_steps: int) -> None:
        """Runs one more step that is not timed, in which the ranks enter a barrier."""
        seconds: list[float] = []
        for number in range(num_steps + 1):
            inputs, targets = next(self._batches)
            start = perf_counter()
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
            self._optimizer.zero_grad()
            begin = time()
            torch.autograd.backward(loss)
            end = time()
            if self.meeting:
                dist.barrier(self.meeting)
            self._optimizer.step()
            if number > 0:
                seconds.append(perf_counter() - start)
                self.backwards.append(Span(begin * 1e6, end * 1e6))
            self.losses.append(loss.detach())
        self.blocks.append(seconds)

    @property
    def seconds(self) -> list[float]:
        return [each for block in self.blocks for each in block]

    def over(self, floor: Training) -> list[float]:
        """Returns how many seconds longer a step takes than one of `floor`, one figure per block."""
        pairs = zip(self.blocks, floor.blocks, strict=True)
        return [statistics.median(own) - statistics.median(others) for own, others in pairs]

    @property
    def communicates(self) -> bool:
        return self.name not in (SOLO, NONE)

    def buckets(self) -> list[int]:
        """Returns the bytes of each bucket, as DDP cuts them after its first backward pass."""
        assert isinstance(self.model, DistributedDataParallel)
        data = self.model._get_ddp_logging_data()
        sizes = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
        return [int(size) for size in str(sizes).split(",")]


def _communicate(training: Training, num_rounds: int) -> list[float]:
    """Returns the seconds of each round of all buckets, started as DDP does, after a round that is not timed."""
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
    alone: dict[str, list[float]] = {each.name: [] for each in trainings if each.communicates}
    for block in range(arguments.blocks):
        for training in trainings if block % 2 == 0 else reversed(trainings):
            control.barrier()
            training.run(arguments.steps)
            if training.communicates:
                control.barrier()
                alone[training.name] += _communicate(training, arguments.steps)
    return {name: statistics.median(seconds) for name, seconds in alone.items()}


def _sides(trainings: Sequence[Training], alone: dict[str, float], control: Control) -> Iterator[Side]:
    steps = control.maximum([statistics.median(training.seconds) for training in trainings])
    alone = dict(zip(alone, control.maximum(list(alone.values())), strict=True))
    (floor,) = (training for training in trainings if training.name == SOLO)
    for training, seconds in zip(trainings, steps, strict=True):
        side = Side(training.name, seconds * 1e3, None, _losses(training)[-1].item())
        if training.communicates:
            over = training.over(floor)
            (exposed,) = control.maximum([statistics.median(over)])
            side = replace(
                side,
                communication_ms=alone[side.name] * 1e3,
                exposed_ms=exposed * 1e3,
                exposed_quartiles_ms=(percentile(over, 0.25) * 1e3, percentile(over, 0.75) * 1e3),
                hidden_share=1 - exposed / alone[side.name],
            )
        yield side


def _losses(training: Training) -> Tensor:
    """Returns means over the ranks. A collective call."""
    losses = torch.stack(training.losses).double()
    dist.all_reduce(losses)
    return losses / dist.get_world_size()


def _timeline(training: Training, trace: Path) -> Timeline:
    path = Path(str(trace).replace("%r", str(dist.get_rank())))
    return timeline_of(read_all_reduces(path, training.backwards[0].begin_us), training.backwards)


def measure(name: str, groups: dict[str, dist.ProcessGroup], control: Control, arguments: argparse.Namespace) -> Line:
    trainings = [
        Training(side, TASKS[name], groups.get(side), arguments.bucket_mb, groups["axon"] if side == SOLO else None)
        for side in (*groups, NONE)
    ]
    alone = _take_turns(trainings, control, arguments)
    losses = {training.name: _losses(training).tolist() for training in trainings if training.communicates}
    return Line(
        model=name,
        num_parameters=sum(each.numel() for each in trainings[0].model.parameters()),
        bucket_num_bytes=tuple(trainings[0].buckets()),
        ranks=dist.get_world_size(),
        steps=len(trainings[0].seconds),
        largest_loss_difference=max(largest_relative_difference(losses["axon"], each) for each in losses.values()),
        sides=tuple(_sides(trainings, alone, control)),
        machine=replace(
            describe_machine(),
            command=f"torchrun --nproc-per-node={dist.get_world_size()} benchmarks/ddp_step.py "
            + shlex.join(sys.argv[1:]),
        ),
        timeline=_timeline(trainings[0], arguments.trace) if arguments.trace else None,
    )


def show(line: Line) -> None:
    buckets = " + ".join(f"{size / 1e6:.2f}" for size in line.bucket_num_bytes)
    print(f"{line.model}: {line.num_parameters} parameters, {buckets} MB of gradients, {line.ranks} ranks")
    for side in line.sides:
        shown = ""
        if side.exposed_ms is not None and side.exposed_quartiles_ms and side.hidden_share is not None:
            low, high = side.exposed_quartiles_ms
            shown = (
                f", {side.exposed_ms:.2f} over {SOLO} ({low:.2f} to {high:.2f}); communication alone "
                f"{side.communication_ms:.2f}, hidden {side.hidden_share:.0%}"
            )
        print(f"  {side.name:>6}: {side.step_ms:.2f} ms a step{shown}; last loss {side.last_loss:.6f}")
    if line.timeline:
        print(
            f"  trace: buckets under way {line.timeline.in_flight_us / 1e3:.2f} ms a step, "
            f"{line.timeline.beside_backward_us / 1e3:.2f} of it beside the backward pass, before whose end "
            f"{line.timeline.ended_beside_backward:.1f} of {line.timeline.buckets:.1f} buckets were there"
        )
    print(f"  losses of the backends differ by {line.largest_loss_difference:g} at most")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times training steps of DDP over several backends.")
    parser.add_argument("--models", default="digits,text", help=f"some of {', '.join(TASKS)}")
    parser.add_argument("--vs", default="gloo", help="other backends")
    parser.add_argument("--blocks", type=int, default=10, help="blocks of each side")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a block")
    parser.add_argument("--bucket-mb", type=float, default=1.0, help="as DDP's bucket_cap_mb (default: 1)")
    parser.add_argument("--trace", type=Path, help="file for axon's traces, with %%r in the name for the rank")
    parser.add_argument("--json", type=Path, help="file to append one line per model to")
    arguments = parser.parse_args()
    if arguments.trace and "%r" not in str(arguments.trace):
        parser.error("argument --trace: has no %r, for the rank")
    return arguments


def main() -> int:
    arguments = _arguments()
    if arguments.trace:
        os.environ["AXON_TRACE"] = str(arguments.trace)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    control = Control(dist.new_group(backend="gloo"))
    names = ("axon", *filter(None, arguments.vs.split(",")))
    groups = {name: dist.new_group(backend=name) for name in names}
    solos = [dist.new_group([rank], backend="axon") for rank in range(dist.get_world_size())]
    groups[SOLO] = solos[dist.get_rank()]
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
