"""Compares the transport with UCX's own benchmark of Active Messages, alternating in one run.

Runs over shared memory, or over TCP between two network namespaces, which need root.

    python benchmarks/beside_ucx_perftest.py BUILD [--path shm|tcp] [--sizes 8,16777216] [--json FILE]

BUILD contains benchmarks/transport_speed. The order alternates from round to round. A figure is the median over the
rounds of each round's best batch: with more work than cores, other statistics would measure the other work.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import ucx_perftest
from two_hosts import ADDRESSES, Hosts, clean_up_when_told_to_end, two_hosts

from torch_axon.bench.record import append_lines, describe_machine

# Runs of ucx_perftest are short, so that other work on the machine leaves some of them undisturbed.
_NUM_RUNS = 8

Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Figures:
    """The figures of one message size: the best of many short batches."""

    latency_us: float
    messages_per_s: float


@dataclass(frozen=True)
class Result:
    path: str
    num_bytes: int
    latency_us: float
    ucx_latency_us: float
    messages_per_s: float
    ucx_messages_per_s: float
    machine: dict[str, object]

    def __str__(self) -> str:
        gigabytes = self.num_bytes * 1e-9
        return (
            f"{self.path:4} {self.num_bytes:9} B  latency {self.latency_us:10.3f} µs = "
            f"{self.latency_us / self.ucx_latency_us:5.2f} × ucx_perftest's;  one way "
            f"{self.messages_per_s * 1e-6:8.3f} M/s, {self.messages_per_s * gigabytes:7.3f} GB/s = "
            f"{self.messages_per_s / self.ucx_messages_per_s:5.2f} × its"
        )


@contextmanager
def _hosts(path: str, congestion_control: str | None) -> Iterator[Hosts | None]:
    if path == "shm":
        yield None
        return
    with two_hosts() as hosts:
        if congestion_control:
            hosts.control_congestion(congestion_control)
        yield hosts


def _variables(hosts: Hosts | None) -> dict[str, str]:
    # No SysV segments, which the engine does not use either.
    return {"UCX_TLS": "tcp" if hosts else "posix,cma,self", "UCX_WARN_UNUSED_ENV_VARS": "n"}


def _start(command: Sequence[str], host: int, hosts: Hosts | None, pass_fds: Sequence[int] = ()) -> Process:
    prefix = hosts.prefix(host) if hosts else []
    return subprocess.Popen(
        [*prefix, *command], env=os.environ | _variables(hosts), stdout=subprocess.PIPE, text=True, pass_fds=pass_fds
    )


def _output(process: Process) -> str:
    text, _ = process.communicate(timeout=300)
    if process.returncode != 0:
        raise RuntimeError(f"{process.args} ended with {process.returncode}:\n{text}")
    return text


def _measure_ours(binary: Path, num_bytes: int, hosts: Hosts | None) -> Figures:
    if hosts is None:
        text = _output(_start([str(binary), str(num_bytes)], 0, None))
    else:
        ends = socket.socketpair()
        both = []
        for rank, end in enumerate(ends):
            command = [str(binary), "--between-hosts", str(rank), str(end.fileno()), str(num_bytes)]
            both.append(_start(command, rank, hosts, pass_fds=[end.fileno()]))
            end.close()
        text, _ = [_output(process) for process in both]
    line = json.loads(text)
    return Figures(line["half_round_trip_us"]["best"], line["messages_per_s"]["best"])


def _measure_ucx(num_bytes: int, hosts: Hosts | None) -> Figures:
    latency = min(_perftest("ucp_am_lat", num_bytes, hosts).overall_latency for _ in range(_NUM_RUNS))
    return Figures(latency, max(_perftest("ucp_am_bw", num_bytes, hosts).overall_rate for _ in range(_NUM_RUNS)))


def _perftest(test: str, num_bytes: int, hosts: Hosts | None) -> ucx_perftest.Columns:
    """The figures of one short run."""
    iterations = str(min(500, max(8, (1 << 24) // (num_bytes + 4096))))
    return ucx_perftest.run(
        ["-t", test, "-s", str(num_bytes), "-n", iterations, "-w", "50"],
        timeout_s=120,
        variables=_variables(hosts),
        **({"address": ADDRESSES[0], "prefixes": (hosts.prefix(0), hosts.prefix(1))} if hosts else {}),
    )


def _compare(binary: Path, path: str, congestion_control: str | None, num_bytes: int, rounds: int) -> Result:
    ours: list[Figures] = []
    theirs: list[Figures] = []
    with _hosts(path, congestion_control) as hosts:
        sides = [
            lambda: ours.append(_measure_ours(binary, num_bytes, hosts)),
            lambda: theirs.append(_measure_ucx(num_bytes, hosts)),
        ]
        for number in range(rounds):
            for measure in sides if number % 2 == 0 else reversed(sides):
                measure()
    return Result(
        path=path,
        num_bytes=num_bytes,
        latency_us=statistics.median(one.latency_us for one in ours),
        ucx_latency_us=statistics.median(one.latency_us for one in theirs),
        messages_per_s=statistics.median(one.messages_per_s for one in ours),
        ucx_messages_per_s=statistics.median(one.messages_per_s for one in theirs),
        machine=asdict(describe_machine()) | {"command": " ".join(["beside_ucx_perftest.py", "BUILD", *sys.argv[2:]])},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the transport beside ucx_perftest.")
    parser.add_argument("build", type=Path, help="the folder of a release build")
    parser.add_argument("--path", choices=("shm", "tcp"), default="shm", help="between the two processes")
    parser.add_argument("--congestion-control", help="of TCP, by its name in Linux (default: the kernel's)")
    parser.add_argument("--sizes", default="8,65536,1048576,16777216", help="of messages, in bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file to append one line per size to")
    arguments = parser.parse_args()
    binary = arguments.build / "benchmarks" / "transport_speed"
    if not binary.exists():
        parser.error(f"argument build: there is no {binary}")
    clean_up_when_told_to_end()
    os.environ["LD_LIBRARY_PATH"] = str(ucx_perftest.ucx_folder() / "lib")
    for size in arguments.sizes.split(","):
        result = _compare(binary, arguments.path, arguments.congestion_control, int(size), arguments.rounds)
        print(result, flush=True)
        if arguments.json:
            append_lines(arguments.json, [result])


if __name__ == "__main__":
    main()
