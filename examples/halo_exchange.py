"""Heat in a plate that is cut into slabs: every step exchanges the slabs' border rows by prepared requests.

    torchrun --nproc-per-node 4 examples/halo_exchange.py                 # CPU tensors
    torchrun --nproc-per-node 4 examples/halo_exchange.py --device cuda   # the step is a CUDA graph; any hosts

The exchange is the same in every step, so it is prepared once: two sends and two receives of one row for each rank.
With CUDA tensors the whole step is captured, and each replay exchanges the rows of its time.

Rank 0 prints the time of a step, and compares the plate with one that it has computed alone.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

import torch_axon
from torch_axon.prepared import PartitionedRequest


def start_plate(num_rows: int, num_columns: int) -> Tensor:
    """Returns a plate [rows + 2, columns] with a cold edge of one row above and below, and a warm spot."""
    plate = torch.zeros(num_rows + 2, num_columns)
    plate[num_rows // 3 : num_rows // 2, num_columns // 4 : num_columns // 2] = 100
    return plate


def spread(plate: Tensor) -> Tensor:
    """Returns the inner rows one step later: each element moves towards the mean of its four neighbours."""
    inner = plate[1:-1]
    sides = torch.nn.functional.pad(inner, (1, 1))
    return inner + 0.2 * (plate[:-2] + plate[2:] + sides[:, :-2] + sides[:, 2:] - 4 * inner)


def prepare_borders(slab: Tensor) -> list[PartitionedRequest]:
    """Prepares the exchange with the slabs above and below."""
    rank, size = dist.get_rank(), dist.get_world_size()
    requests = []
    for neighbour, own, halo in ((rank - 1, slab[1], slab[0]), (rank + 1, slab[-2], slab[-1])):
        if 0 <= neighbour < size:
            requests.append(torch_axon.prepare(own, "send", peer=neighbour))
            requests.append(torch_axon.prepare(halo, "recv", peer=neighbour))
    return requests


def make_step(slab: Tensor, requests: list[PartitionedRequest]) -> Callable[[], None]:
    """Returns a function that makes one step of this rank's slab: with CUDA tensors, the replay of a graph."""

    def step() -> None:
        for request in requests:
            request.start()
        for request in requests:
            request.wait()
        slab[1:-1] = spread(slab)

    if not slab.is_cuda:
        return step
    begin = slab.clone()
    step()  # connects the ranks
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    slab.copy_(begin)
    return graph.replay


def main() -> None:
    """Runs the simulation."""
    parser = argparse.ArgumentParser(description="Simulates heat in a plate that is cut into slabs.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the slabs are (default: cpu)")
    parser.add_argument(
        "--rows", type=int, default=240, help="rows of the plate; a multiple of the ranks (default: 240)"
    )
    parser.add_argument("--steps", type=int, default=500, help="(default: 500)")
    arguments = parser.parse_args()
    dist.init_process_group("axon")
    rank, size = dist.get_rank(), dist.get_world_size()
    if arguments.rows % size:
        raise SystemExit(f"argument --rows: {arguments.rows} is no multiple of the {size} ranks")
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    plate = start_plate(arguments.rows, 256).to(arguments.device)
    share = arguments.rows // size
    slab = plate[rank * share : (rank + 1) * share + 2].clone()
    requests = prepare_borders(slab)
    step = make_step(slab, requests)
    began = time.perf_counter()
    for _ in range(arguments.steps):
        step()
    whole = torch.empty(arguments.rows, 256, device=arguments.device)
    dist.all_gather_into_tensor(whole, slab[1:-1].contiguous())
    seconds = time.perf_counter() - began
    for request in requests:
        request.close()
    if rank == 0:
        for _ in range(arguments.steps):
            plate[1:-1] = spread(plate)
        difference = float((whole - plate[1:-1]).abs().max())
        print(
            f"{size} ranks, {arguments.steps} steps: {seconds / arguments.steps * 1e6:.0f} µs each, {difference = :.1e}"
        )
        assert difference < 1e-3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
