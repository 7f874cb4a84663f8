"""A small GPT-2 of Hugging Face's transformers learns English from Python's own help texts, through accelerate.

    torchrun --nproc-per-node=2 examples/accelerate_text.py

accelerate knows backends by name and asks for one of its own; it uses an existing group as it is.
"""

from __future__ import annotations

from pydoc_data.topics import topics  # type: ignore[import-untyped]

import torch
import torch.distributed as dist
from accelerate import Accelerator
from shared import join
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

CONTEXT, NUM_STEPS, BATCH_A_RANK = 48, 100, 16
BEST_GUESS_WITHOUT_LEARNING = 3.0  # nats per byte, where only the frequency of each byte is known


def writer() -> GPT2LMHeadModel:
    """An ASCII model with one token per character; without dropout, so that it learns the same over every backend."""
    config = GPT2Config(
        vocab_size=128,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=10,
        eos_token_id=10,
        pad_token_id=0,
    )
    return GPT2LMHeadModel(config)


def passages() -> TensorDataset:
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode("ascii", "ignore")), dtype=torch.uint8)
    return TensorDataset(text[: len(text) // CONTEXT * CONTEXT].long().view(-1, CONTEXT))


def write(model: GPT2LMHeadModel, beginning: str, device: torch.device) -> str:
    text = torch.tensor([list(beginning.encode())], device=device)
    written = model.generate(text, attention_mask=torch.ones_like(text), max_length=CONTEXT, do_sample=False)
    return bytes(written[0].tolist()).decode()


def main() -> None:
    device = join()
    accelerator = Accelerator(cpu=device.type == "cpu")
    model = writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(passages(), BATCH_A_RANK, shuffle=True, drop_last=True, generator=generator)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (text,) in enumerate(loader):
        loss = model(text, labels=text).loss
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
