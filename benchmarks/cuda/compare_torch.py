"""NCCL and symmetric memory, the sides to beat, in CUDA graphs on the same host: run by torchrun, a process a GPU.

Prints JSON lines like packet_bench's: microseconds an operation, the slowest rank's median.
"""

import json
import os
import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

KERNELS = 50
SAMPLES = 21
SIZES = (64, 1024, 8192, 32768, 65536, 131072, 262144, 524288, 1048576)


def microseconds_of(operation: Callable[[], object]) -> float:
    """Median over graph launches of one of KERNELS operations, the slowest rank's."""
    operation()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(KERNELS):
            operation()
    samples = []
    for _ in range(SAMPLES + 2):
        dist.barrier()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        shortest = torch.tensor(start.elapsed_time(end) * 1000 / KERNELS, device="cuda")
        dist.all_reduce(shortest, dist.ReduceOp.MIN)  # the rank that came last: no waiting for the launch in it
        samples.append(shortest.item())
    return statistics.median(samples[2:])


def report(work: str, num_bytes: int, operation: Callable[[], object]) -> None:
    measured = microseconds_of(operation)
    if dist.get_rank() == 0:
        record = {"work": work, "num_ranks": dist.get_world_size(), "num_bytes": num_bytes, "dtype": "bfloat16"}
        print(json.dumps(record | {"mode": "graph", "us": round(measured, 2)}), flush=True)


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    world_size = dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    for num_bytes in SIZES:
        plain = torch.zeros(num_bytes // 2, dtype=torch.bfloat16, device="cuda")
        shard = torch.zeros(num_bytes // 2 // world_size, dtype=torch.bfloat16, device="cuda")
        report("nccl all_reduce", num_bytes, lambda t=plain: dist.all_reduce(t))
        report("nccl all_gather", num_bytes, lambda t=plain, s=shard: dist.all_gather_into_tensor(t, s))
        shared = symm_mem.empty(num_bytes // 2, dtype=torch.bfloat16, device=f"cuda:{local_rank}")
        shared.zero_()
        symm_mem.rendezvous(shared, group.group_name)
        for name in ("one_shot_all_reduce", "two_shot_all_reduce_"):
            kernel = getattr(torch.ops.symm_mem, name)
            report(f"symm_mem {name}", num_bytes, lambda k=kernel, t=shared: k(t, "sum", group.group_name))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
