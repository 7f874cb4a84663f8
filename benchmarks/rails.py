"""Compares numbers of rails, ways to compress, or networks, and Gloo between two network namespaces of this host.

    python benchmarks/rails.py [--rails 0,1,2,4] [--sizes 1M,16M,128M] [--rounds 5] [--rate 10gbit]
        [--congestion-control reno] [--json FILE]
    python benchmarks/rails.py --rails auto --compress never,auto,always --data weights --rate 1gbit
    python benchmarks/rails.py --transports ucx,rails [--sizes 8,1K,8K,64K,256K] …

A rail is a TCP connection with a thread at either end (AXON_RAILS); 0 means one connection that the waiting thread
serves. --compress gives values of AXON_COMPRESS to compare, --transports what carries short messages (AXON_TRANSPORTS).
Each round starts two ranks per side, in an order that rotates. Every result is checked. A figure is the median over the
rounds of each round's median, in ms: of an all_reduce, and of half a round trip of send and recv. The data are ones in
float32, weights in bfloat16 (normal numbers), or random bits as bfloat16, of which there is no all_reduce.

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
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

if TYPE_CHECKING:
    import torch

from two_hosts import ADDRESSES, Hosts, clean_up_when_told_to_end, two_hosts

_PORT = 29519
_OPERATIONS = {"ones": ("all_reduce", "sendrecv"), "weights": ("all_reduce", "sendrecv"), "random": ("sendrecv",)}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_WARM_UP_S = 0.2  # rails are opened meanwhile
_BYTES_PER_ROUND = 512 << 20
_MOST_TIMES, _MOST_TIMES_IF_SHORT = 100, 1000
_SHORT = 256 << 10

Figures = dict[str, float]  # by "operation size", in ms


def _num_bytes(size: str) -> int:
    return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)


def _values(kind: str, num_bytes: int) -> torch.Tensor:
    """Returns the same values on both ranks."""
    import torch

    generator = torch.Generator().manual_seed(1)
    if kind == "ones":
        return torch.ones(num_bytes // 4)
    if kind == "weights":
        return torch.randn(num_bytes // 2, generator=generator).mul_(0.02).to(torch.bfloat16)
    return torch.randint(-(2**15), 2**15, (num_bytes // 2,), dtype=torch.int16, generator=generator).view(
        torch.bfloat16
    )


def _run_rank(rank: int, side: str, port: int, sizes: list[str], kind: str) -> Figures:
    import torch
    import torch.distributed as dist

    import torch_axon  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo" if side == "gloo" else "axon", init_method=f"tcp://{ADDRESSES[0]}:{port}", rank=rank, world_size=2
    )

    def all_reduce(data: torch.Tensor, values: torch.Tensor) -> None:
        data.copy_(values)
        dist.all_reduce(data)
        assert torch.equal(data, values + values)

    def sendrecv(data: torch.Tensor, values: torch.Tensor) -> None:
        if rank == 0:
            dist.send(values, 1)
            data.zero_()
            dist.recv(data, 1)
        else:
            data.zero_()
            dist.recv(data, 0)
            dist.send(data, 0)
        assert torch.equal(data.view(torch.uint8), values.view(torch.uint8))

    def time_once(operation: str, data: torch.Tensor, values: torch.Tensor) -> float:
        data.copy_(values)
        dist.barrier()
        begun = time.perf_counter()
        if operation == "all_reduce":
            dist.all_reduce(data)
            return time.perf_counter() - begun
        for source in (0, 1):
            dist.send(data, 1 - rank) if rank == source else dist.recv(data, 1 - rank)
        return (time.perf_counter() - begun) / 2

    figures: Figures = {}
    for operation in _OPERATIONS[kind]:
        for size in sizes:
            values = _values(kind, _num_bytes(size))
            data = torch.zeros_like(values)
            agreed = torch.zeros(1)
            begun = time.perf_counter()
            while agreed.item() == 0:  # ranks leave the loop together
                {"all_reduce": all_reduce, "sendrecv": sendrecv}[operation](data, values)
                agreed.fill_(float(time.perf_counter() - begun > _WARM_UP_S))
                dist.broadcast(agreed, src=0)
            most = _MOST_TIMES_IF_SHORT if _num_bytes(size) <= _SHORT else _MOST_TIMES
            num_times = max(3, min(most, _BYTES_PER_ROUND // _num_bytes(size)))
            times = [time_once(operation, data, values) for _ in range(num_times)]
            figures[f"{operation} {size}"] = statistics.median(times) * 1e3
    dist.destroy_process_group()
    return figures


def _sides_of_axon(own: argparse.Namespace) -> list[str]:
    if own.transports:
        return own.transports.split(",")
    numbers = own.rails.split(",")
    return (
        [f"{number},{compress}" for number in numbers for compress in own.compress.split(",")]
        if own.compress
        else numbers
    )


def _settings_of(side: str, own: argparse.Namespace) -> dict[str, str]:
    if own.transports:
        return {"AXON_TRANSPORTS": f"{side},rings,cma,cuda"}
    number, _, compress = side.partition(",")
    return {"AXON_RAILS": number, "AXON_COMPRESS": compress or "auto"}


def _run_side(hosts: Hosts, side: str, port: int, own: argparse.Namespace) -> Figures:
    variables = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    if side != "gloo":
        variables |= _settings_of(side, own)
    command = [sys.executable, __file__, "--side", side, "--port", str(port), "--sizes", own.sizes, "--data", own.data]
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


def _compare(own: argparse.Namespace, sides: list[str]) -> None:
    measured: dict[str, list[Figures]] = {side: [] for side in sides}
    with two_hosts() as hosts:
        if own.rate:
            hosts.limit(own.rate)
        if own.congestion_control:
            hosts.control_congestion(own.congestion_control)
        for round_ in range(own.rounds):
            for turn in range(len(sides)):
                side = sides[(round_ + turn) % len(sides)]
                measured[side].append(_run_side(hosts, side, _PORT + turn, own))
    print("".join([f"{'ms':20}", *(f"{side:>14}" for side in sides)]))
    for name in measured[sides[0]][0]:
        medians = {side: statistics.median(each[name] for each in measured[side]) for side in sides}
        print("".join([f"{name:20}", *(f"{medians[side]:14.4f}" for side in sides)]))
        if own.json:
            record = {
                "case": name,
                "median_ms": medians,
                "num_cores": os.cpu_count(),
                "rounds": own.rounds,
                "data": own.data,
            }
            with open(own.json, "a") as file:
                file.write(json.dumps(record | {"rate": own.rate, "control": own.congestion_control}) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rails", default="0,1,2,4", help="numbers to compare, separated by commas")
    parser.add_argument("--compress", default="", help="values of AXON_COMPRESS to compare, separated by commas")
    parser.add_argument("--data", default="ones", choices=list(_OPERATIONS))
    parser.add_argument("--transports", help="networks to compare instead, of ucx and rails, separated by commas")
    parser.add_argument("--sizes", help="default: 1M,16M,128M, or 8,1K,8K,64K,256K with --transports")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", help="of the link, in tc's notation")
    parser.add_argument("--congestion-control")
    parser.add_argument("--json", help="file to which one line per case is appended")
    for hidden in ("--rank", "--port"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    own = parser.parse_args()
    own.sizes = own.sizes or ("8,1K,8K,64K,256K" if own.transports else "1M,16M,128M")
    if own.rank is not None:
        print(json.dumps(_run_rank(own.rank, own.side, own.port, own.sizes.split(","), own.data)), flush=True)
        return 0
    clean_up_when_told_to_end()
    _compare(own, [*_sides_of_axon(own), "gloo"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
