"""Asynchronous reinforcement learning: workers try a policy on real data, a learner improves it, without lockstep.

    python examples/rollout_workers.py [--workers 3] [--updates 400] [--kill-a-worker]

The policy learns to read scikit-learn's handwritten digits from rewards alone. A worker shows it images, draws its
answers, and tells the learner which were right. Workers call the learner's functions over torch_axon.Runtime when they
have a batch, with two batches in flight. The learner answers when it has room for more, so it is never flooded, and
corrects for policies that are some updates old (PPO's clipped ratio). A worker that dies is replaced, and the others do
not notice.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

import torch
from rich.live import Live
from rich.table import Table
from shared import digits
from torch import Tensor, nn
from torch.distributions import Categorical

from torch_axon.runtime import Future, Runtime

BATCH_SIZE = 256
NUM_IN_FLIGHT = 2  # of one worker
NUM_WAITING = 4  # batches at the learner; when it holds these, workers wait
LEAST_ACCURACY = 0.9
LONGEST_PAUSE_S = 20  # without a batch: then no worker lives, or none reaches the learner


def make_policy() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def work(number: int, address: bytes) -> None:
    """Runs a worker's process until the learner has closed, or has finished learning."""
    torch.set_num_threads(1)
    torch.manual_seed(number)
    data = digits(torch.device("cpu"))
    policy, version = make_policy(), -1
    with Runtime(f"worker {number}") as runtime:
        learner = runtime.connect(address)
        flying: deque[Future] = deque()
        while True:
            newest = flying.popleft().result() if len(flying) == NUM_IN_FLIGHT else 0
            if newest is None:
                return
            if newest > version:
                version, weights = learner.invoke("newest_policy").result()
                nn.utils.convert_parameters.vector_to_parameters(weights, policy.parameters())
            batch = roll_out(policy, data.images, data.labels)
            flying.append(learner.invoke("experience", number, version, *batch))


@torch.no_grad()
def roll_out(policy: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, the answers drawn for them, the probabilities of these, and whether they were right."""
    shown = torch.randint(len(labels), (BATCH_SIZE,))
    answers = Categorical(logits=policy(images[shown]))
    drawn = answers.sample()
    return images[shown], drawn, answers.log_prob(drawn), (drawn == labels[shown]).float()


@dataclass
class Tally:
    """What the learner knows of a worker."""

    batches: int = 0
    rewards: float = 0.0  # the mean of its last batch
    age: int = 0  # the updates that its policy lagged
    lives: int = 1


@dataclass
class Learner:
    policy: nn.Module = field(default_factory=make_policy)
    version: int = 0
    done: bool = False
    tallies: dict[int, Tally] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.005)
        self._waiting: asyncio.Queue[tuple[Tensor, ...]] = asyncio.Queue(NUM_WAITING)

    async def newest_policy(self) -> list[int | Tensor]:
        return [self.version, nn.utils.parameters_to_vector(self.policy.parameters()).detach()]

    async def experience(self, worker: int, version: int, *batch: Tensor) -> int | None:
        """Takes a worker's batch when there is room. Returns the newest version of the policy, or None to stop the
        worker."""
        await self._waiting.put(batch)
        tally = self.tallies[worker]
        tally.batches += 1
        tally.rewards = batch[-1].mean().item()
        tally.age = self.version - version
        return None if self.done else self.version

    async def update(self) -> None:
        """Runs one step of clipped policy gradients on the next batch of any worker."""
        images, drawn, old_log_probs, rewards = await self._waiting.get()
        answers = Categorical(logits=self.policy(images))
        ratio = (answers.log_prob(drawn) - old_log_probs).exp()
        advantage = rewards - rewards.mean()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        self._optimizer.zero_grad()
        (-gain - 0.1 * answers.entropy().mean()).backward()
        self._optimizer.step()
        self.version += 1

    async def dismiss(self) -> None:
        """Learns until it is cancelled; then stops the workers that call or wait for room."""
        self.done = True
        while True:
            await self._waiting.get()


class Crew:
    """Runs the workers' processes, and replaces those that die."""

    def __init__(self, size: int, address: bytes, learner: Learner) -> None:
        self._context, self._address, self._learner = multiprocessing.get_context("spawn"), address, learner
        self._processes: dict[int, BaseProcess] = {}
        for number in range(size):
            learner.tallies[number] = Tally()
            self._start(number)

    def look_after(self) -> None:
        for number, process in self._processes.items():
            if not process.is_alive():
                self._learner.tallies[number].lives += 1
                self._start(number)

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].join()

    def join(self) -> None:
        for process in self._processes.values():
            process.join()

    def _start(self, number: int) -> None:
        self._processes[number] = self._context.Process(target=work, args=(number, self._address), daemon=True)
        self._processes[number].start()


def show(learner: Learner, began: float) -> Table:
    rate = learner.version / (time.monotonic() - began)
    table = Table(title=f"update {learner.version}, {rate:.0f} a second", title_justify="left")
    for title in ("worker", "batches", "right", "behind by", "lives"):
        table.add_column(title, justify="right")
    for number, tally in learner.tallies.items():
        table.add_row(str(number), str(tally.batches), f"{tally.rewards:.0%}", str(tally.age), str(tally.lives))
    return table


async def learn(arguments: argparse.Namespace) -> Learner:
    learner = Learner()
    with Runtime("learner") as runtime:
        runtime.register(learner.newest_policy)
        runtime.register(learner.experience)
        crew = Crew(arguments.workers, runtime.address, learner)
        while learner.version == 0:  # until the first worker has connected
            await learner.update()
        began = time.monotonic()
        with Live(show(learner, began), auto_refresh=False) as live:
            while learner.version < arguments.updates:
                await asyncio.wait_for(learner.update(), LONGEST_PAUSE_S)
                if arguments.kill_a_worker and learner.version == arguments.updates // 2:
                    crew.kill(0)
                crew.look_after()
                live.update(show(learner, began), refresh=learner.version % 20 == 0)
        dismissing = asyncio.create_task(learner.dismiss())
        await asyncio.to_thread(crew.join)
        dismissing.cancel()
    return learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--kill-a-worker", action="store_true", help="half-way")
    arguments = parser.parse_args()
    torch.manual_seed(7)
    learner = asyncio.run(learn(arguments))
    data = digits(torch.device("cpu"))
    with torch.no_grad():
        read = learner.policy(data.held_out_images).argmax(dim=1)
    accuracy = (read == data.held_out_labels).double().mean().item()
    lives = sum(tally.lives for tally in learner.tallies.values())
    print(f"read {accuracy:.2%} of {len(read)} held-out digits after {learner.version} updates; {lives} workers lived")
    if accuracy < LEAST_ACCURACY:
        raise SystemExit(f"accuracy {accuracy:.2%} is below {LEAST_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
