"""A small transformer learns to write English by Hugging Face's accelerate, from the help texts that come with Python.

    torchrun --nproc-per-node=2 examples/accelerate_text.py

accelerate knows backends by name and asks for one of its own; a group that is there already it takes as it is.
"""

from __future__ import annotations

from pydoc_data.topics import topics  # type: ignore[import-untyped]

import torch
import torch.distributed as dist
from accelerate import Accelerator
from shared import join
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CONTEXT, FEATURES, NUM_STEPS, BATCH_A_RANK = 48, 64, 100, 16
BEST_GUESS_WITHOUT_LEARNING = 3.0  # nats a byte, where all that is known is how often each comes


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, FEATURES), nn.Embedding(CONTEXT, FEATURES)
        layer = nn.TransformerEncoderLayer(FEATURES, 4, 4 * FEATURES, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(FEATURES, 128)

    def forward(self, text: Tensor) -> Tensor:
        """[batch, length] of ASCII to the next character's logits."""
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        hidden = self.embed(text) + self.place.weight[:length]
        logits: Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return logits


def passages() -> TensorDataset:
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode("ascii", "ignore")), dtype=torch.uint8)
    return TensorDataset(text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].long().view(-1, CONTEXT + 1))


@torch.no_grad()
def write(model: nn.Module, beginning: str, device: torch.device) -> str:
    text = torch.tensor([list(beginning.encode())], device=device)
    while text.shape[1] < CONTEXT:
        text = torch.cat([text, model(text)[:, -1:].argmax(-1)], dim=1)
    return bytes(text[0].tolist()).decode()


def main() -> None:
    device = join()
    accelerator = Accelerator(cpu=device.type == "cpu")
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(passages(), BATCH_A_RANK, shuffle=True, drop_last=True, generator=generator)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (text,) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step + 1 == NUM_STEPS:
            break
    mean = accelerator.gather(loss.detach().reshape(1)).mean().item()
    written = write(accelerator.unwrap_model(model), "The ", device)
    accelerator.print(f"loss {mean:.9g} after {step + 1} steps; writes {written!r}")
    dist.destroy_process_group()
    if mean > BEST_GUESS_WITHOUT_LEARNING:
        raise SystemExit(f"loss {mean} says that nothing was learned")


if __name__ == "__main__":
    main()
