"""Compares numbers of rails between two network namespaces of this host, and Gloo, alternating in one run.

    python benchmarks/rails.py [--rails 0,1,2,4] [--sizes 1M,16M,128M] [--rounds 5] [--rate 10gbit]
        [--congestion-control reno] [--json FILE]

A rail is a TCP connection with a thread at either end (AXON_RAILS); 0 means one connection that the waiting thread
serves. Each round starts two ranks per side, in an order that rotates. Every result is checked. A figure is the median
over the rounds of each round's median, in ms: of an all_reduce of float32, and of half a round trip of send and recv.
Needs root, and removes the namespaces at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from two_hosts import ADDRESSES, Hosts, clean_up_when_told_to_end, two_hosts

_PORT = 29519
_OPERATIONS = ("all_reduce", "sendrecv")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_WARM_UP_S = 0.2  # rails are opened meanwhile
_BYTES_PER_ROUND = 512 << 20

Figures = dict[str, float]  # by "operation size", in ms


def _num_bytes(size: str) -> int:
    return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)


def _run_rank(rank: int, side: str, port: int, sizes: list[str]) -> Figures:
    import torch
    import torch.distributed as dist

    import torch_axon  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo" if side == "gloo" else "axon", init_method=f"tcp://{ADDRESSES[0]}:{port}", rank=rank, world_size=2
    )

    def all_reduce(data: torch.Tensor) -> None:
        data.fill_(rank + 1)
        dist.all_reduce(data)
        assert data[0] == data[-1] == data.sum(dtype=torch.float64) / data.numel() == 3

    def sendrecv(data: torch.Tensor) -> None:
        if rank == 0:
            data.fill_(5)
            dist.send(data, 1)
            data.zero_()
            dist.recv(data, 1)
        else:
            data.zero_()
            dist.recv(data, 0)
            dist.send(data, 0)
        assert data[0] == data[-1] == data.sum(dtype=torch.float64) / data.numel() == 5

    def time_once(operation: str, data: torch.Tensor) -> float:
        dist.barrier()
        begun = time.perf_counter()
        if operation == "all_reduce":
            dist.all_reduce(data)
            return time.perf_counter() - begun
        for source in (0, 1):
            dist.send(data, 1 - rank) if rank == source else dist.recv(data, 1 - rank)
        return (time.perf_counter() - begun) / 2

    figures: Figures = {}
    for operation in _OPERATIONS:
        for size in sizes:
            data = torch.zeros(_num_bytes(size) // 4)
            agreed = torch.zeros(1)
            begun = time.perf_counter()
            while agreed.item() == 0:  # ranks leave the loop together
                {"all_reduce": all_reduce, "sendrecv": sendrecv}[operation](data)
                agreed.fill_(float(time.perf_counter() - begun > _WARM_UP_S))
                dist.broadcast(agreed, src=0)
            data.zero_()
            num_times = max(3, min(100, _BYTES_PER_ROUND // _num_bytes(size)))
            times = [time_once(operation, data) for _ in range(num_times)]
            figures[f"{operation} {size}"] = statistics.median(times) * 1e3
    dist.destroy_process_group()
    return figures


def _run_side(hosts: Hosts, side: str, port: int, sizes: list[str]) -> Figures:
    variables = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    if side != "gloo":
        variables["AXON_RAILS"] = side
    command = [sys.executable, __file__, "--side", side, "--port", str(port), "--sizes", ",".join(sizes)]
    ranks = [
        subprocess.Popen(
            [*hosts.prefix(rank), *command, "--rank", str(rank)], env=os.environ | variables, stdout=subprocess.PIPE
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
        if any(rank.returncode != 0 for rank in ranks):
            raise RuntimeError(f"a rank of side '{side}' failed")
        figures: Figures = json.loads(outputs[0].splitlines()[-1])
        return figures
    finally:
        for rank in ranks:
            rank.kill()


def _compare(own: argparse.Namespace, sides: list[str], sizes: list[str]) -> None:
    measured: dict[str, list[Figures]] = {side: [] for side in sides}
    with two_hosts() as hosts:
        if own.rate:
            hosts.limit(own.rate)
        if own.congestion_control:
            hosts.control_congestion(own.congestion_control)
        for round_ in range(own.rounds):
            for turn in range(len(sides)):
                side = sides[(round_ + turn) % len(sides)]
                measured[side].append(_run_side(hosts, side, _PORT + turn, sizes))
    print("".join([f"{'ms':20}", *(f"{side:>12}" for side in sides)]))
    for name in measured[sides[0]][0]:
        medians = {side: statistics.median(each[name] for each in measured[side]) for side in sides}
        print("".join([f"{name:20}", *(f"{medians[side]:12.3f}" for side in sides)]))
        if own.json:
            record = {"case": name, "median_ms": medians, "num_cores": os.cpu_count(), "rounds": own.rounds}
            with open(own.json, "a") as file:
                file.write(json.dumps(record | {"rate": own.rate, "control": own.congestion_control}) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rails", default="0,1,2,4", help="numbers to compare, separated by commas")
    parser.add_argument("--sizes", default="1M,16M,128M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", help="of the link, in tc's notation")
    parser.add_argument("--congestion-control")
    parser.add_argument("--json", help="file to which one line per case is appended")
    for hidden in ("--rank", "--port"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    own = parser.parse_args()
    sizes = own.sizes.split(",")
    if own.rank is not None:
        print(json.dumps(_run_rank(own.rank, own.side, own.port, sizes)), flush=True)
        return 0
    clean_up_when_told_to_end()
    _compare(own, [*own.rails.split(","), "gloo"], sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
