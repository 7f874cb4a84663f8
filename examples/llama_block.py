"""A block of a Llama in tensor and sequence parallel, over axon with its communication hidden and as torch does it.

    torchrun --nproc-per-node=2 examples/llama_block.py

The residual stream is split over the ranks along the sequence. Attention and feed-forward each gather it before their
first products and scatter it after their last. The example runs on GPUs if there are any, else on CPUs. It prints how
far the block's output and gradients are from those of the same block in one process.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from torch_axon.tensor_parallel import FusedColwiseParallel, FusedRowwiseParallel


class Attention(nn.Module):
    """Attention with grouped queries; it has no rotary embedding, which needs no communication."""

    def __init__(self, features: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_features = features // heads
        self.wq = nn.Linear(features, features, bias=False)
        self.wk = nn.Linear(features, kv_heads * self.head_features, bias=False)
        self.wv = nn.Linear(features, kv_heads * self.head_features, bias=False)
        self.wo = nn.Linear(features, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Takes [batch, sequence, features]; the width of a rank's products determines its number of heads."""
        queries, keys, values = (self._heads(projection(x)) for projection in (self.wq, self.wk, self.wv))
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        output: Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return output

    def _heads(self, product: Tensor) -> Tensor:
        return product.view(*product.shape[:-1], -1, self.head_features).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(features, hidden, bias=False)
        self.w2 = nn.Linear(hidden, features, bias=False)
        self.w3 = nn.Linear(features, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
        return output


class Block(nn.Module):
    def __init__(self, features: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(features), nn.RMSNorm(features)
        self.attention = Attention(features, heads, kv_heads)
        self.feed_forward = FeedForward(features, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        output: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return output


def fused_plan() -> dict[str, ParallelStyle]:
    """Uses one gather for queries, keys and values, and one for both products of the feed-forward; all are hidden."""
    return {
        "attention_norm": SequenceParallel(use_local_output=True),
        "attention": FusedColwiseParallel("wq", "wk", "wv"),
        "attention.wo": FusedRowwiseParallel(),
        "feed_forward_norm": SequenceParallel(use_local_output=True),
        "feed_forward": FusedColwiseParallel("w1", "w3"),
        "feed_forward.w2": FusedRowwiseParallel(),
    }


def torch_plan() -> dict[str, ParallelStyle]:
    """Builds the same block with torch's own styles, which communicate, then multiply."""
    gather = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(**gather),
        "attention.w[qkv]": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(**gather),
        "feed_forward.w[13]": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
    }


def shard(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Returns this rank's part of the sequence."""
    return x.chunk(mesh.size(), dim=1)[mesh.get_local_rank()].contiguous()


def whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("axon")
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    alone = Block(features=256, heads=16, kv_heads=8, hidden=512).to(device)
    x = torch.randn(2, 128, 256).to(device)
    expected = alone(x)
    expected.square().sum().backward()

    for name, plan in (("fused", fused_plan()), ("torch", torch_plan())):
        block = Block(features=256, heads=16, kv_heads=8, hidden=512).to(device)
        block.load_state_dict(alone.state_dict())
        parallelize_module(block, mesh, plan)
        output = block(shard(x, mesh))
        output.square().sum().backward()
        gradients = zip(block.parameters(), alone.parameters(), strict=True)
        distances = [float((whole(mine.grad) - whole(other.grad)).abs().max()) for mine, other in gradients]
        if dist.get_rank() == 0:
            distance = float((output - shard(expected, mesh)).detach().abs().max())
            print(f"{name}: output within {distance:.1e}, gradients within {max(distances):.1e} of one process's")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
