"""The Triton kernel of pipeline_sent_by_kernels.py: a layer's gradient, which passes between stages by rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_axon import triton as axon

COLUMNS = 128  # of a tile; divides the width of a layer


@triton.jit
def multiply(
    gradient, output, weight, product, arriving, leaving,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes one tile of (gradient · (1 - output²)) @ weight. A partition is ROWS rows of `gradient` or `product`.

    The tile waits until the rows of `gradient` that it reads have arrived. The tiles of a partition of `product` write
    to the receiver's tensor, and the last one says so. Rows arrive in the order in which programs begin.
    """
    tiles_per_partition: tl.constexpr = WIDTH // COLUMNS
    partition = tl.program_id(0) // tiles_per_partition
    if arriving is not None and axon.wait(arriving, partition) == 0:
        return  # the group has failed; its next call says why
    row = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) % tiles_per_partition * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    first = partition.to(tl.int64) * ROWS * WIDTH
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, WIDTH, DEPTH):
        depth = begin + tl.arange(0, DEPTH)
        place = first + row * WIDTH + depth[None, :]
        value = tl.load(output + place)
        factor = tl.load(gradient + place) * (1 - value * value)
        total = tl.dot(factor, tl.load(weight + depth[:, None] * WIDTH + column), total, input_precision=PRECISION)
    if leaving is None:
        tl.store(product + first + row * WIDTH + column, total)
    else:
        address = axon.begin(leaving, partition)
        if address != 0:
            target = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)
            tl.store(target + row * WIDTH + column, total)
            axon.publish(leaving, partition, tiles_per_partition)


def launch(
    gradient: Tensor, output: Tensor, weight: Tensor, product: Tensor,
    num_rows: int, arriving: int | None, leaving: int | None,
) -> None:  # fmt: skip
    """Launches one program per tile. All tensors are float32, and `num_rows` is a partition's."""
    rows, width = output.shape
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    grid = (rows // num_rows * (width // COLUMNS),)
    multiply[grid](
        gradient, output, weight, product, arriving, leaving, width, num_rows, COLUMNS, 32, precision,
        num_warps=8, num_stages=3,
    )  # fmt: skip
