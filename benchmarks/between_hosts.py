"""Runs the backend's benchmark between network namespaces of this host, over links of any speed.

    python benchmarks/between_hosts.py [--hosts 2] [--ranks-per-host 2] [--rate 1gbit] [--delay 10ms] \
        [--congestion-control reno] all_reduce --sizes 64M --json FILE

All other arguments are those of torch_axon.bench, which runs one or more ranks in each namespace. Needs root, and
removes the namespaces at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from two_hosts import Hosts, address_of, clean_up_when_told_to_end, several_hosts

_PORT = "29517"


def _start_rank(rank: int, num_local: int, hosts: Hosts, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    host = rank // num_local
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_local * len(hosts.names)),
        "LOCAL_RANK": str(rank),  # the GPU of a rank: hosts are made on one machine
        "LOCAL_WORLD_SIZE": str(num_local),
        "MASTER_ADDR": address_of(0),
        "MASTER_PORT": _PORT,
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_NET": "Socket",  # namespaces do not hide InfiniBand
        "NCCL_HOSTID": f"host{host}",  # it would take all namespaces for one host
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch_axon.bench", *arguments]
    return subprocess.Popen([*hosts.prefix(host), *command], env=os.environ | variables)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], add_help=False, allow_abbrev=False)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rate")
    parser.add_argument("--delay")
    parser.add_argument("--congestion-control")
    own, arguments = parser.parse_known_args(arguments)
    clean_up_when_told_to_end()
    with several_hosts(own.hosts) as hosts:
        if own.rate:
            hosts.limit(own.rate)
        if own.delay:
            hosts.delay(own.delay)
        if own.congestion_control:
            hosts.control_congestion(own.congestion_control)
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            num_ranks = own.hosts * own.ranks_per_host
            ranks += (_start_rank(rank, own.ranks_per_host, hosts, arguments) for rank in range(num_ranks))
            return max([rank.wait() for rank in ranks], key=abs)
        finally:
            for rank in ranks:
                rank.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
