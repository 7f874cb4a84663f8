"""A training that goes on while its workers are killed and replaced: no checkpoint, and no restart of the others.

    python examples/elastic_training.py
    python examples/elastic_training.py --plot loss.png     # its losses beside those of an undisturbed training

The coordinator watches the workers, kills the oldest again and again, and lists the members of each generation of the
group in a TCPStore. The workers' groups get these members in place, and rank 0 sends them its state.
The members share each batch, so two learn what three would. At the end no process is left that began the training, and
the coordinator compares the losses with those of a training by one process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from shared import conclude, digits
from torch import Tensor, nn

import torch_axon

NUM_WORKERS, NUM_KILLS, STEPS_BETWEEN_KILLS = 3, 3, 200
TIMEOUT, LONGEST_RUN_S, MOST_WORKERS = timedelta(seconds=20), 150, 12
LARGEST_DIFFERENCE = 1e-3  # of losses: means over three shares and over two are rounded differently


class Training:
    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = digits(torch.device("cpu"))
        self.losses: list[float] = []  # of all steps
        self.begins: list[int] = []  # the step with which each generation began
        self.ended = time.monotonic()

    def take_over(self) -> None:
        """Takes rank 0's state. Members that a death has interrupted may have differed by one step."""
        state = [self.losses, self.begins, self.model.state_dict(), self.optimizer.state_dict()]
        dist.broadcast_object_list(state, src=0)
        self.losses, self.begins = state[:2]
        self.model.load_state_dict(state[2])
        self.optimizer.load_state_dict(state[3])

    def run(self, store: dist.Store, generation: int) -> None:
        """Trains until all members know that there is a next generation. If it raises, the last step has not begun."""
        self.begins.append(len(self.losses))
        for count in itertools.count():
            ends = torch.tensor(int(store.check([f"members/{generation + 1}"])))
            dist.all_reduce(ends, dist.ReduceOp.MAX)
            if ends:
                return
            self.step(*self.data.share(len(self.losses)), lambda part: dist.all_reduce(part, dist.ReduceOp.AVG))
            before, self.ended = self.ended, time.monotonic()
            if dist.get_rank() == 0:
                store.set(f"steps/{generation}", str(count))
                if count == 0:
                    what = f"step {len(self.losses)}: {dist.get_world_size()} members, loss {self.losses[-1]:.3f}"
                    print(f"{what}, {(self.ended - before) * 1e3:.0f} ms after the step before", flush=True)

    def step(self, images: Tensor, labels: Tensor, average: Callable[[Tensor], object]) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        for each in (loss.detach(), *gradients):
            average(each)
        self.optimizer.step()
        self.losses.append(loss.item())


def work(number: int, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT)
    training, own = Training(), torch_axon.reconfigure_handle()
    store.set(f"handle/{number}", own)
    for generation in itertools.count(1):
        handles = json.loads(store.get(f"members/{generation}"))  # waits for it
        if not handles:
            break
        if own in handles:
            try:
                torch_axon.reconfigure(generation, handles)
                training.take_over()
                store.set(f"answer/{generation}/{number}", "joined")
                training.run(store, generation)
            except dist.DistBackendError:  # a member has died
                store.set(f"answer/{generation}/{number}", "failed")
    if dist.get_rank() == 0:
        store.set("losses", json.dumps([training.losses, training.begins]))
    predicted = training.model(training.data.held_out_images).argmax(1)
    conclude(predicted, training.data.held_out_labels, training.losses[-1])


def train_undisturbed(num_steps: int) -> list[float]:
    training = Training()
    for step in range(num_steps):
        training.step(*training.data.batch(step), lambda whole: None)
    return training.losses


def plot(losses: Sequence[float], undisturbed: Sequence[float], begins: Sequence[int], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    axes.plot(undisturbed, linewidth=3, alpha=0.4, label="one process, undisturbed")
    axes.plot(losses, linewidth=0.8, label="workers that are killed and replaced")
    for begin in begins:
        axes.axvline(begin, color="grey", linewidth=0.5, label="new members" if begin == begins[0] else None)
    axes.set(xlabel="step", ylabel="loss", yscale="log", title="Elastic training on handwritten digits")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def compare(store: dist.Store, path: Path | None) -> None:
    """Compares the losses with those of an undisturbed training."""
    losses, begins = json.loads(store.get("losses"))
    undisturbed = train_undisturbed(len(losses))
    difference = max(abs(own - other) for own, other in zip(losses, undisturbed, strict=True))
    print(
        f"losses differ from an undisturbed training's by at most {difference:.2g} in {len(losses)} steps", flush=True
    )
    if path is not None:
        plot(losses, undisturbed, begins, path)
    if difference > LARGEST_DIFFERENCE:
        raise SystemExit(f"losses differ by {difference:.2g}; allowed: {LARGEST_DIFFERENCE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to write a plot of the losses")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    living: dict[int, multiprocessing.Process] = {}
    members: list[int] = []  # from the one that joined first
    generation, kills, numbers, deadline = 0, 0, iter(range(MOST_WORKERS)), time.monotonic() + LONGEST_RUN_S
    multiprocessing.set_start_method("spawn")

    def value(key: str) -> str:
        return store.get(key).decode() if store.check([key]) else ""

    while members or generation == 0:
        time.sleep(0.01)
        living = {number: process for number, process in living.items() if process.is_alive()}
        for number in itertools.islice(numbers, NUM_WORKERS - len(living)):
            living[number] = multiprocessing.Process(target=work, args=(number, store.port), daemon=True)
            living[number].start()
        if not living or time.monotonic() > deadline:
            raise SystemExit(f"{MOST_WORKERS} workers have not ended the training in {LONGEST_RUN_S} s")
        answers = [value(f"answer/{generation}/{member}") for member in members if member in living]
        if not all(answers):
            continue  # or a member would miss this generation, and the others wait for it
        ready = [member for member in members if member in living]
        ready += [number for number in living if number not in members and value(f"handle/{number}")]
        num_steps = int(value(f"steps/{generation}") or 0)
        done = ready == members and len(members) == NUM_WORKERS and num_steps >= STEPS_BETWEEN_KILLS
        if done and kills < NUM_KILLS:
            kills += 1
            living[members[0]].kill()
            living[members[0]].join()
        elif done or (ready and (ready != members or "failed" in answers)):
            members, generation = [] if done else ready, generation + 1
            store.set(f"members/{generation}", json.dumps([value(f"handle/{member}") for member in members]))
    for process in living.values():
        process.join()
    compare(store, arguments.plot)


if __name__ == "__main__":
    main()
