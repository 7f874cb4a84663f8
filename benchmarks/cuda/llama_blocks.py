"""The blocks whose training steps llama_step.py and fsdp_step.py time, with the options for their sizes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from llama_block import Block

HEAT = 8192  # rows and columns of the products that heat the GPU


@dataclass(frozen=True)
class Sizes:
    layers: int
    features: int
    heads: int
    kv_heads: int
    hidden: int


def add_sizes(parser: argparse.ArgumentParser, layers: int) -> None:
    parser.add_argument("--layers", type=int, default=layers)
    parser.add_argument("--features", type=int, default=4096, help="defaults as in Llama 3 8B, with fewer layers")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=14336)


def sizes_of(arguments: argparse.Namespace) -> dict[str, int]:
    return {field.name: getattr(arguments, field.name) for field in fields(Sizes)}


def make_blocks(arguments: argparse.Namespace) -> list[Block]:
    """Returns blocks that have the same weights on all ranks."""
    torch.manual_seed(0)
    shape = (arguments.features, arguments.heads, arguments.kv_heads, arguments.hidden)
    return [Block(*shape) for _ in range(arguments.layers)]
