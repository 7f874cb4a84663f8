"""PyTorch Lightning, whose strategies take a backend by its name.

    torchrun --nproc-per-node=2 examples/lightning_digits.py

Lightning makes the group, and gives each rank its part of the data.
"""

from __future__ import annotations

import os

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy
from shared import BATCH_SIZE, conclude, digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Reader(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.last_loss = 0.0

    def training_step(self, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.last_loss = loss.item()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    num_ranks = int(os.environ["WORLD_SIZE"])
    torch.manual_seed(7)
    data, reader = digits(torch.device("cpu")), Reader()
    batches = DataLoader(TensorDataset(data.images, data.labels), BATCH_SIZE // num_ranks, shuffle=True, drop_last=True)
    trainer = Trainer(
        strategy=DDPStrategy(process_group_backend=os.environ.get("BACKEND", "axon")),
        devices=num_ranks,
        max_steps=150,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(reader, batches)
    with torch.no_grad():
        conclude(reader.layers.cpu()(data.held_out_images).argmax(1), data.held_out_labels, reader.last_loss)


if __name__ == "__main__":
    main()
