"""Code that the examples share: joining a group, and handwritten digits, which ship with scikit-learn."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor

import torch_axon  # noqa: F401 registers the backend; not needed where torch's autoload is on

BATCH_SIZE = 96  # of all ranks together


def join() -> torch.device:
    """Joins the group of torchrun's processes, and returns this one's device. BACKEND=gloo or nccl selects another
    backend.

    Processes share GPUs where there are fewer. The group is bound to this process's GPU, so that a DeviceMesh splits
    its groups off it instead of forming them anew.
    """
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    bound = device if device.type == "cuda" else None  # torch binds no group to a CPU
    dist.init_process_group(os.environ.get("BACKEND", "axon"), device_id=bound)
    torch.manual_seed(7)
    return device


@dataclass(frozen=True)
class Digits:
    """Images [n, 64] with values from 0 to 1, and their labels; every sixth image is held out."""

    images: Tensor
    labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Returns the batch of this step, the same on every rank."""
        chosen = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(step))[:BATCH_SIZE]
        return self.images[chosen], self.labels[chosen]

    def share(self, step: int) -> tuple[Tensor, Tensor]:
        """Returns this rank's part of the batch."""
        rank, size = dist.get_rank(), dist.get_world_size()
        images, labels = self.batch(step)
        return images[rank::size], labels[rank::size]


def digits(device: torch.device) -> Digits:
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(data.target, device=device)
    held_out = torch.arange(len(labels), device=device) % 6 == 0
    return Digits(images[~held_out], labels[~held_out], images[held_out], labels[held_out])


def conclude(predicted: Tensor, labels: Tensor, loss: Tensor | float, least_accuracy: float = 0.9) -> None:
    """Prints the accuracy on the held-out digits, leaves the group, and fails if the accuracy is too low."""
    accuracy = (predicted == labels).double().mean().item()
    if dist.get_rank() == 0:
        print(f"read {accuracy:.2%} of {len(labels)} held-out digits; last loss {float(loss):.9g}", flush=True)
    dist.destroy_process_group()
    if accuracy < least_accuracy:
        raise SystemExit(f"accuracy {accuracy:.2%} is below {least_accuracy:.0%}")
