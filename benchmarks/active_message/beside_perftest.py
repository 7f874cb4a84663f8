"""Compares a call without Python with ucx_perftest's active messages, which use UCX alone: half a round trip each.

    python benchmarks/active_message/beside_perftest.py --echo BUILD/benchmarks/active_message_echo --json am_lat.jsonl

One-way: a message without an answer, and another one in return, instead of a call and its answer.

The two alternate. ucx_perftest spins and never sleeps, so both need one core per process. On a machine with fewer free
cores, its times are those of its scheduler.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import ucx_perftest
from pairs import Pair, Place

from torch_axon.bench.record import describe_machine
from torch_axon.bench.sizes import format_size, parse_size

MOST_S = 20


def perftest_us(num_bytes: int, num_calls: int) -> float | None:
    """Returns the median of one way, or None if the program does not finish in time."""
    options = ["-t", "ucp_am_lat", "-s", str(num_bytes), "-n", str(num_calls)]
    try:
        return ucx_perftest.run(options, timeout_s=MOST_S).median_latency
    except (RuntimeError, subprocess.TimeoutExpired):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--echo", type=Path, required=True, help="the build's benchmarks/active_message_echo")
    parser.add_argument("--sizes", default="8,64,512,4K,32K,256K")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3000, help="of ucx_perftest, per sample round")
    parser.add_argument("--json", type=Path, help="lines are appended")
    arguments = parser.parse_args()
    words = [Path(word).name if "/" in word else word for word in sys.argv]
    machine = asdict(replace(describe_machine(), command=f"python {shlex.join(words)}"))
    pair = Pair([str(arguments.echo)], Place())
    try:
        for num_bytes in map(parse_size, arguments.sizes.split(",")):
            ours, told, ucx = [], [], []
            for _ in range(arguments.turns):
                for in_flight, taken in ((1, ours), (0, told)):
                    measured = pair.measure(num_bytes=num_bytes, in_flight=in_flight, seconds=0.1)
                    taken.append(measured["p50_us"] / 2)
                if (alone := perftest_us(num_bytes, arguments.calls)) is not None:
                    ucx.append(alone)
            line = {
                "num_bytes": num_bytes,
                "axon_cpp_us": median(ours),
                "axon_cpp_told_us": median(told),
                "ucx_us": median(ucx) if ucx else None,
            }
            ratio = f"{line['axon_cpp_us'] / line['ucx_us']:.2f}" if ucx else "–"
            print(
                f"{format_size(num_bytes):>5}  axon {median(ours):8.2f} µs, told {median(told):.2f} µs  "
                f"ucx {line['ucx_us']} µs  {ratio}×",
                flush=True,
            )
            if arguments.json:
                with arguments.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**line, "turns": arguments.turns, "machine": machine}) + "\n")
    finally:
        pair.close()


if __name__ == "__main__":
    main()
