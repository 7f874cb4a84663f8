"""A training in pipeline stages, whose gradients are sent by the kernels that compute them.

    torchrun --nproc-per-node 2 examples/pipeline_sent_by_kernels.py [--compare]      # or more stages

Each rank trains two layers of a network that reads digits. Between two stages, a micro-batch's activations go forward,
and their gradients come back. All of these transfers are prepared once, before the first step.

A partition of the gradients is a block of rows. On GPUs, a Triton kernel (triton_rows.py) sends each partition as soon
as it has computed it. The first kernel of the previous stage's backward pass may run already: each of its programs
waits for just the rows that it reads. On CPUs a loop over the blocks does the same. On GPUs the step is a CUDA graph.

Rank 0 compares the losses with those of one process. `--compare` also measures the same training with `dist.recv`
before these kernels and `dist.send` after them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from shared import Digits, conclude, digits, join
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

import torch_axon
from torch_axon.prepared import PartitionedRequest

# The largest relative difference between a loss and that of one process, which adds in another order. float32 rounds by
# 6e-8, and 100 steps made 2e-6 of it; TF32 rounds by 5e-4, and made 5e-4. A partition that is left out makes 2e-1.
LARGEST_DIFFERENCE = {"highest": 1e-4, "high": 5e-3}


class Link:
    """Passes a micro-batch's activations [rows, width] to the next stage and their gradients back: by send and recv."""

    def __init__(self, peer: int, shape: tuple[int, int], partitions: int, device: torch.device) -> None:
        self.peer = peer
        self.is_to_next = peer > dist.get_rank()
        self.num_rows = shape[0] // partitions  # of a partition
        self.activations, self.gradients = (torch.zeros(shape, device=device) for _ in range(2))

    def begin_step(self) -> None:
        """Lets the peer send already."""

    def send(self, activations: Tensor) -> None:
        self.activations.copy_(activations)
        dist.send(self.activations, self.peer)

    def end_send(self) -> None:
        """Waits until the activations have been sent."""

    def receive(self) -> Tensor:
        dist.recv(self.activations, self.peer)
        return self.activations

    def before_kernel(self) -> PartitionedRequest | None:
        """Returns the request whose partitions the kernel sends or awaits, if any."""
        if self.is_to_next:
            dist.recv(self.gradients, self.peer)
        return None

    def after_kernel(self) -> None:
        if not self.is_to_next:
            dist.send(self.gradients, self.peer)

    def close(self) -> None:
        """Ends the link."""


class PreparedLink(Link):
    """The same by two prepared requests. The one for the gradients has partitions."""

    def __init__(self, peer: int, shape: tuple[int, int], partitions: int, device: torch.device) -> None:
        super().__init__(peer, shape, partitions, device)
        forward, backward = ("send", "recv") if self.is_to_next else ("recv", "send")
        self.forward = torch_axon.prepare(self.activations, forward, peer=peer)
        self.backward = torch_axon.prepare(self.gradients, backward, peer=peer, partitions=partitions)

    def begin_step(self) -> None:
        received = self.backward if self.is_to_next else self.forward
        received.start()

    def send(self, activations: Tensor) -> None:
        self.activations.copy_(activations)
        self.forward.start()

    def end_send(self) -> None:
        self.forward.wait()

    def receive(self) -> Tensor:
        self.forward.wait()
        return self.activations

    def before_kernel(self) -> PartitionedRequest | None:
        if not self.is_to_next:
            self.backward.start()
        return self.backward

    def after_kernel(self) -> None:
        self.backward.wait()

    def close(self) -> None:
        self.forward.close()
        self.backward.close()


class BoundaryLayer(torch.autograd.Function):
    """tanh(inputs @ weight.T + bias), a stage's first or last layer: its gradients leave or arrive by partitions."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, link: Link) -> Tensor:
        output = torch.tanh(linear(inputs, weight, bias))
        ctx.save_for_backward(inputs, weight, output)
        ctx.link = link
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, output = ctx.saved_tensors
        link, product = ctx.link, None
        request = link.before_kernel()
        if link.is_to_next:
            gradient = link.gradients  # as backward() was called with it; its rows are still arriving
            product = torch.empty_like(inputs)
            multiply_rows(gradient, output, weight, product, link.num_rows, arriving=request)
        else:
            gradient = gradient.contiguous()
            multiply_rows(gradient, output, weight, link.gradients, link.num_rows, leaving=request)
        link.after_kernel()
        factor = gradient * (1 - output * output)
        return product, factor.T @ inputs, factor.sum(0), None


def multiply_rows(
    gradient: Tensor,
    output: Tensor,
    weight: Tensor,
    product: Tensor,
    num_rows: int,
    arriving: PartitionedRequest | None = None,
    leaving: PartitionedRequest | None = None,
) -> None:
    """Computes (gradient · (1 - output²)) @ weight, by partitions that `gradient` awaits or `product` sends."""
    if gradient.is_cuda:
        import triton_rows

        handles = [None if request is None else request.device_handle for request in (arriving, leaving)]
        triton_rows.launch(gradient, output, weight, product, num_rows, *handles)
        return
    for partition in range(len(output) // num_rows):
        rows = slice(partition * num_rows, (partition + 1) * num_rows)
        if arriving is not None:
            arriving.arrived(partition)
        product[rows] = (gradient[rows] * (1 - output[rows] * output[rows])) @ weight
        if leaving is not None:
            leaving.ready(partition)


class Stage(nn.Module):
    """Two layers of the network, with the same weights in every process that makes this stage."""

    def __init__(self, number: int, num_stages: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.is_last = number == num_stages - 1
        self.first = nn.Linear(64 if number == 0 else width, width)
        self.second = nn.Linear(width, 10 if self.is_last else width)
        for layer in (self.first, self.second):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, inputs: Tensor, previous: Link | None = None, following: Link | None = None) -> Tensor:
        hidden = run_layer(self.first, inputs, previous)
        return self.second(hidden) if self.is_last else run_layer(self.second, hidden, following)


def run_layer(layer: nn.Linear, inputs: Tensor, link: Link | None) -> Tensor:
    """Returns tanh of the layer. Its gradients arrive or leave by the link, if there is one."""
    if link is None:
        return torch.tanh(layer(inputs))
    return BoundaryLayer.apply(inputs, layer.weight, layer.bias, link)


class Pipeline:
    """This rank's stage, and its links to both neighbours for each micro-batch."""

    def __init__(self, arguments: argparse.Namespace, link_type: type[Link], device: torch.device) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        shape = (arguments.batch // arguments.microbatches, arguments.width)

        def make_link(peer: int) -> Link | None:
            return link_type(peer, shape, arguments.partitions, device) if 0 <= peer < size else None

        self.links = [(make_link(rank - 1), make_link(rank + 1)) for _ in range(arguments.microbatches)]
        self.stage = Stage(rank, size, arguments.width).to(device)
        self.optimizer = make_optimizer(self.stage)
        self.loss = torch.zeros((), device=device)  # of the last step, in the last stage

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Trains on a batch by GPipe's schedule: all forward passes, and then all backward passes."""
        self.optimizer.zero_grad()
        count = len(self.links)
        for link in self.all_links():
            link.begin_step()
        outputs = []
        for (previous, following), inputs, wanted in zip(
            self.links, images.chunk(count), labels.chunk(count), strict=True
        ):
            output = self.stage(previous.receive() if previous else inputs, previous, following)
            if following:
                following.send(output.detach())
            outputs.append(output if following else cross_entropy(output, wanted) / count)
        # Kernels that wait take room on the GPU. What they wait for depends on these sends, so these end first.
        for _, following in self.links:
            if following:
                following.end_send()
        for (_, following), output in zip(self.links, outputs, strict=True):
            output.backward(following.gradients if following else None)
        if self.stage.is_last:
            self.loss.copy_(torch.stack(outputs).detach().sum())
        self.optimizer.step()

    def predict(self, images: Tensor) -> Tensor:
        """Returns the digits that the whole pipeline reads in these images, on every rank."""
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        inputs = images.new_empty(len(images), self.stage.first.in_features) if rank > 0 else images
        if rank > 0:
            dist.recv(inputs, rank - 1)
        with torch.no_grad():
            output = self.stage(inputs)
        if rank < last:
            dist.send(output, rank + 1)
        predicted = output.argmax(1)  # other stages have no digits to choose from; the last one's replace theirs
        dist.broadcast(predicted, last)
        return predicted

    def all_links(self) -> list[Link]:
        """Returns the links in the order in which they were made, which both ends share."""
        return [link for pair in self.links for link in pair if link]


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batch(step: int, size: int, data: Digits) -> tuple[Tensor, Tensor]:
    """Returns a batch, the same in every process. Each epoch has another order, and leaves a remainder out."""
    epoch, number = divmod(step, len(data.labels) // size)
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(epoch))
    chosen = order[number * size : (number + 1) * size].to(data.labels.device)
    return data.images[chosen], data.labels[chosen]


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Returns the replay of a CUDA graph of the step, which must have run once."""
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def train(arguments: argparse.Namespace, data: Digits, link_type: type[Link]) -> tuple[Tensor, float, Tensor]:
    """Returns each step's loss, the median time of a step in ms, and what is read in the held-out images."""
    pipeline = Pipeline(arguments, link_type, data.images.device)
    images, labels = batch(0, arguments.batch, data)
    step: Callable[[], None] = partial(pipeline.step, images, labels)
    losses, times = [], []
    for number in range(arguments.steps):
        for tensor, values in zip((images, labels), batch(number, arguments.batch, data), strict=True):
            tensor.copy_(values)
        if images.is_cuda and number == 1:
            step = captured(step)
        began = time.perf_counter()
        step()
        if images.is_cuda:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
        losses.append(pipeline.loss.clone())
    for link in pipeline.all_links():
        link.close()
    curve = torch.stack(losses)
    dist.broadcast(curve, dist.get_world_size() - 1)
    return curve, statistics.median(times), pipeline.predict(data.held_out_images)


def train_alone(arguments: argparse.Namespace, data: Digits, num_stages: int) -> Tensor:
    """Returns each step's loss if one process has all stages, and no micro-batches."""
    stages = (Stage(number, num_stages, arguments.width) for number in range(num_stages))
    model = nn.Sequential(*stages).to(data.images.device)
    optimizer = make_optimizer(model)
    losses = []
    for number in range(arguments.steps):
        images, labels = batch(number, arguments.batch, data)
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a network in stages, with gradients sent by kernels.")
    parser.add_argument("--steps", type=int, default=100, help="(default: 100)")
    parser.add_argument("--batch", type=int, default=256, help="images of a step (default: 256)")
    parser.add_argument("--microbatches", type=int, default=4, help="per step (default: 4)")
    parser.add_argument("--partitions", type=int, default=4, help="per micro-batch (default: 4)")
    parser.add_argument("--width", type=int, default=256, help="values of a layer; a multiple of 128 (default: 256)")
    parser.add_argument("--tf32", action="store_true", help="GPUs multiply in TF32")
    parser.add_argument(
        "--compare", action="store_true", help="also measure dist.recv and dist.send around the kernels"
    )
    arguments = parser.parse_args()
    for name in ("steps", "microbatches", "partitions"):
        if getattr(arguments, name) < 1:
            parser.error(f"argument --{name}: {getattr(arguments, name)}; allowed: 1 or more")
    num_rows, rest = divmod(arguments.batch, arguments.microbatches * arguments.partitions)
    if rest or num_rows not in (16, 32, 64):
        parser.error(
            f"argument --batch: {arguments.batch} images in {arguments.microbatches} micro-batches of "
            f"{arguments.partitions} partitions; allowed: partitions of 16, 32 or 64 images"
        )
    if arguments.width < 128 or arguments.width % 128:
        parser.error(f"argument --width: {arguments.width}; allowed: a multiple of 128")
    return arguments


def report(arguments: argparse.Namespace, losses: Tensor, alone: Tensor, steps_per_epoch: int) -> None:
    """Prints the losses, and fails if they are not those of one process."""
    for epoch, part in enumerate(losses.split(steps_per_epoch), 1):
        print(f"epoch {epoch}: loss {part.mean():.4f}")
    difference = float(((losses - alone).abs() / alone).max())
    print(f"{dist.get_world_size()} stages: losses of {len(losses)} steps are within {difference:.1e} of one process's")
    assert difference < LARGEST_DIFFERENCE["high" if arguments.tf32 else "highest"]


def main() -> None:
    """Trains the pipeline, and compares it with one process."""
    arguments = parse()
    torch.set_float32_matmul_precision("high" if arguments.tf32 else "highest")
    data = digits(join())
    if arguments.batch > len(data.labels):
        raise SystemExit(f"argument --batch: {arguments.batch}; allowed: up to {len(data.labels)} images")
    losses, step_ms, predicted = train(arguments, data, PreparedLink)
    compared_ms = train(arguments, data, Link)[1] if arguments.compare else None
    if dist.get_rank() == 0:
        alone = train_alone(arguments, data, dist.get_world_size())
        report(arguments, losses, alone, len(data.labels) // arguments.batch)
        print(f"a step takes {step_ms:.2f} ms (median)")
        if compared_ms is not None:
            print(f"with send and recv {compared_ms:.2f} ms ({compared_ms / step_ms:.2f} ×)")
    conclude(predicted, data.held_out_labels, losses[-1])


if __name__ == "__main__":
    main()
