"""Trains one model with DistributedDataParallel on real data, over two backends side by side.

    torchrun --nproc-per-node=2 examples/digits_ddp.py

Each process holds a group on each backend and a replica of the model for it, from the same seed and on the same
batches. The backends alternate by epoch, so that other load on the machine affects both alike. With two processes a sum
of two gradients does not depend on its order, so both trainings must give the same losses to the last digit. With more
processes the order may differ, and a bound applies instead.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm  # type: ignore[import-untyped]

SEED = 7
BATCH_SIZE = 32
LEARNING_RATE = 0.05
LEAST_ACCURACY = 0.95
# Many ranks sum in another order: over a few hundred steps, float32's rounding grows to this bound at most.
LARGEST_RELATIVE_DIFFERENCE = 1e-3


@dataclass(frozen=True)
class Data:
    """A data set, the same on every rank; `batches` cuts an epoch into this rank's batches."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.train_labels), generator=torch.Generator().manual_seed(SEED + epoch))
        for chosen in torch.split(order[dist.get_rank() :: dist.get_world_size()], BATCH_SIZE):
            if len(chosen) == BATCH_SIZE:
                yield self.train_images[chosen], self.train_labels[chosen]


@dataclass(frozen=True)
class Outcome:
    """The results of a training: losses are means over the ranks, and the step time is that of the slowest rank."""

    backend: str
    accuracy: float
    step_ms: float
    losses: list[float]


class Training:
    """A replica of the model on one backend, with its losses and step times so far."""

    def __init__(self, backend: str, group: dist.ProcessGroup, data: Data):
        torch.manual_seed(SEED)
        self._backend = backend
        self._group = group
        self._data = data
        self._model = DistributedDataParallel(build_model(), process_group=group)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        self._losses: list[Tensor] = []
        self._seconds: list[float] = []

    def epoch(self, number: int, progress: tqdm) -> None:
        for images, labels in self._data.batches(number):
            start = perf_counter()
            loss = nn.functional.cross_entropy(self._model(images), labels)
            self._optimizer.zero_grad()
            torch.autograd.backward(loss)
            self._optimizer.step()
            self._seconds.append(perf_counter() - start)
            self._losses.append(loss.detach())
            progress.update()
        progress.set_postfix_str(f"{self._backend}: epoch {number + 1}, loss {self._losses[-1]:.4f}")

    def outcome(self) -> Outcome:
        losses = torch.stack(self._losses).double()
        dist.all_reduce(losses, group=self._group)
        slowest = torch.tensor(statistics.median(self._seconds), dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=self._group)
        with torch.no_grad():
            hits = self._model.module(self._data.test_images).argmax(dim=1) == self._data.test_labels
        return Outcome(
            backend=self._backend,
            accuracy=hits.double().mean().item(),
            step_ms=slowest.item() * 1e3,
            losses=(losses / dist.get_world_size()).tolist(),
        )


def main(command_line: Sequence[str]) -> int:
    arguments = _parse(command_line)
    groups = _open_groups(arguments.backends)
    outcomes = _train(groups, arguments.epochs)
    is_first = dist.get_rank() == 0
    num_ranks = dist.get_world_size()
    dist.destroy_process_group()
    return conclude(outcomes, num_ranks, arguments) if is_first else 0


def _parse(command_line: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small convolutional network on digits over two backends.")
    parser.add_argument(
        "--backends", nargs="+", default=["axon", "gloo"], help="the first is the one shown beside others"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--accuracy", type=float, default=LEAST_ACCURACY, help="least accuracy on held-out digits")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder of loss.png and demo.json")
    return parser.parse_args(command_line)


def _open_groups(backends: Sequence[str]) -> list[tuple[str, dist.ProcessGroup]]:
    if "axon" in backends:
        import torch_axon  # noqa: F401 registers the backend

    dist.init_process_group(backends[0])
    return [(name, dist.new_group(backend=name)) for name in backends]


def load_data() -> Data:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=SEED, stratify=digits.target)
    return Data(images[train], labels[train], images[test], labels[test])


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def _train(groups: Sequence[tuple[str, dist.ProcessGroup]], epochs: int) -> list[Outcome]:
    data = load_data()
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} processes train on {len(data.train_labels)} digits for {epochs} epochs "
            f"over {' and '.join(name for name, _ in groups)} in turn; {len(data.test_labels)} are held out",
            flush=True,
        )
    trainings = [Training(name, group, data) for name, group in groups]
    steps = sum(1 for _ in data.batches(0)) * epochs * len(trainings)
    with tqdm(total=steps, unit="step", disable=None if dist.get_rank() == 0 else True) as progress:
        for number in range(epochs):
            for training in trainings if number % 2 == 0 else reversed(trainings):
                training.epoch(number, progress)
    return [training.outcome() for training in trainings]


def conclude(outcomes: Sequence[Outcome], num_ranks: int, arguments: argparse.Namespace) -> int:
    """Prints, saves and checks the results; returns 1 if accuracy or losses are out of bounds."""
    for outcome in outcomes:
        print(
            f"{outcome.backend:>6}: accuracy on held-out digits {outcome.accuracy:.2%}, "
            f"last loss {outcome.losses[-1]:.6f}, {outcome.step_ms:.3f} ms a step (median, slowest rank)"
        )
    problems = [
        f"{outcome.backend}: accuracy {outcome.accuracy:.2%} is below {arguments.accuracy:.2%}"
        for outcome in outcomes
        if outcome.accuracy < arguments.accuracy
    ]
    first = outcomes[0]
    bound = 0.0 if num_ranks == 2 else LARGEST_RELATIVE_DIFFERENCE
    for other in outcomes[1:]:
        difference = largest_relative_difference(first.losses, other.losses)
        verdict = "identical to the last digit" if difference == 0 else f"within {difference:.2g} of each other"
        print(
            f"losses of {first.backend} and {other.backend}: {verdict} over {len(first.losses)} steps (bound {bound:g})"
        )
        if not difference <= bound:
            problems.append(
                f"losses of {first.backend} and {other.backend} differ by {difference:.2g}, more than {bound:g}"
            )
    _save(outcomes, arguments.output)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def largest_relative_difference(left: Sequence[float], right: Sequence[float]) -> float:
    """Returns the largest difference, or infinity where a loss is not a number."""
    differences = (abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(left, right, strict=True))
    return max(each if math.isfinite(each) else math.inf for each in differences)


def _save(outcomes: Sequence[Outcome], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes]), encoding="utf-8")
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for number, outcome in enumerate(outcomes):
        # The curves lie on each other: the later ones are thinner and dashed so that all can be seen.
        label = f"{outcome.backend}: {outcome.accuracy:.2%}, {outcome.step_ms:.2f} ms a step"
        axes.plot(
            outcome.losses, label=label, linewidth=3 if number == 0 else 1, linestyle="-" if number == 0 else "--"
        )
    axes.set(
        xlabel="step", ylabel="cross entropy, mean over the ranks", yscale="log", title="Training on digits with DDP"
    )
    axes.grid(visible=True, alpha=0.3)
    axes.legend(title="held-out accuracy, time")
    figure.savefig(folder / "loss.png", dpi=120)
    pyplot.close(figure)
    print(f"loss curves: {folder / 'loss.png'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
