"""A matrix product whose tiles are written into another GPU's memory as they are finished.

    torchrun --nproc-per-node 2 examples/product_sent_by_tiles.py

A pipeline stage computes a product and sends it to the next stage. The usual way is to multiply, and then to send the
result. Here the Triton kernel writes each tile directly into the receiver's tensor. A band of tiles is a partition: its
last tile says that the band has arrived, and the receiver can work on it while the rest is computed.

Rank 0 prints both times, and checks the result. Needs two GPUs that can access each other.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor

import torch_axon
from torch_axon import triton as axon

BAND = 128  # rows of a tile


@triton.jit
def multiply(a, b, c, request, SIZE: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    """Computes one tile of a @ b for square matrices, and writes it to `c` or to the request's receiver."""
    tiles_per_band: tl.constexpr = SIZE // TILE_N
    # Programs that run at the same time share the rows of eight bands and the columns of b, which stay in the cache.
    group, within = tl.program_id(0) // (8 * tiles_per_band), tl.program_id(0) % (8 * tiles_per_band)
    band, column = group * 8 + within % 8, within // 8
    rows = band * TILE_M + tl.arange(0, TILE_M)
    columns = column * TILE_N + tl.arange(0, TILE_N)
    depth = tl.arange(0, TILE_K)
    a_tile = a + rows[:, None] * SIZE + depth[None, :]
    b_tile = b + depth[:, None] * SIZE + columns[None, :]
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for _ in range(0, SIZE, TILE_K):
        total = tl.dot(tl.load(a_tile), tl.load(b_tile), total)
        a_tile += TILE_K
        b_tile += TILE_K * SIZE
    result = total.to(tl.bfloat16)
    if request is None:
        tl.store(c + rows[:, None] * SIZE + columns[None, :], result)
    else:
        address = axon.begin(request, band)
        if address != 0:
            # Without tl.multiple_of: stores of 16 bytes need another layout of the tile, and took 2 % longer.
            there = address.to(tl.pointer_type(tl.bfloat16))
            tl.store(there + tl.arange(0, TILE_M)[:, None] * SIZE + columns[None, :], result)
            axon.publish(request, band, tiles_per_band)


def launch(a: Tensor, b: Tensor, c: Tensor, request: int | None) -> None:
    """Launches one program per tile."""
    size = a.shape[0]
    grid = ((size // BAND) * (size // 256),)
    multiply[grid](a, b, c, request, size, BAND, 256, 64, num_warps=8, num_stages=3)


def median_us(step: Callable[[], None], rounds: int = 15) -> float:
    """Returns the median time of a step on this rank's stream, in a CUDA graph, in µs."""
    step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    dist.barrier()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        dist.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times[3:])


def main() -> None:
    """Compares the two ways for one size."""
    parser = argparse.ArgumentParser(
        description="Compares a product that is sent by tiles with one that is sent whole."
    )
    parser.add_argument("--size", type=int, default=4096, help="rows and columns; a multiple of 1024 (default: 4096)")
    size = parser.parse_args().size
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("axon")
    torch.manual_seed(0)
    a, b, c = (torch.randn(size, size, device="cuda").to(torch.bfloat16) for _ in range(3))
    request = torch_axon.prepare(c, ("send", "recv")[rank], peer=1 - rank, partitions=size // BAND)

    def by_tiles() -> None:
        request.start()
        if rank == 0:
            launch(a, b, c, request.device_handle)
        request.wait()

    def in_turn() -> None:
        if rank == 0:
            launch(a, b, c, None)
            dist.send(c, 1)
        else:
            dist.recv(c, 0)

    by_tiles()
    if rank == 1:  # both ranks have the same a and b
        torch.testing.assert_close(c, a @ b, rtol=2e-2, atol=1)
    alone = median_us(lambda: launch(a, b, c, None) if rank == 0 else None)
    # The receiver's times include the whole way.
    times = torch.tensor([median_us(by_tiles), median_us(in_turn), alone])
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank == 0:
        tiles, turn, product = times.tolist()
        print(
            f"{size}³: by tiles {tiles:.0f} µs, in turn {turn:.0f} µs ({turn / tiles:.2f} ×), product {product:.0f} µs"
        )
    request.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
