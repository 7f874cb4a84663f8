"""Compares the echo of bytes by active messages: the time of one call, and calls per second with many in flight.

    python -m venv build/others && build/others/bin/pip install --require-hashes -r requirements/active_message.txt
    python benchmarks/active_message/run.py --others build/others/bin/python --json am.jsonl --plot am.png
    python benchmarks/active_message/run.py --others build/others/bin/python --two-hosts --sizes 8,64K,4M   # as root

Each side has a process that serves and one that calls, which sends a tensor or array and receives its bytes. It
compares all bytes before the first sample round. The sides take turns in alternating order, while all other processes
are stopped.

    axon        torch_axon.Runtime, awaited in asyncio
    axon_waits  the same from a plain thread
    axon_cpp    the same without Python; --echo is benchmarks/active_message_echo in the build's folder
    ucxx        UCXX's active messages, in its default mode; ucxx_polling: driven by the event loop without pause
    grpc        gRPC's asyncio API with bytes
    socket      an asyncio stream over TCP
    torch_rpc   torch.distributed.rpc over TensorPipe
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from report import Line, Side, failures, save_plot, table
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

from pairs import Contest, Place, between_hosts, machine_of_run, version_of

from torch_axon.bench.record import append_lines
from torch_axon.bench.sizes import parse_size

OTHERS = ("ucxx", "ucxx_polling", "grpc", "socket")  # in a separate environment
PACKAGES = {"ucxx": "ucxx-cu13", "ucxx_polling": "ucxx-cu13", "grpc": "grpcio"}
MOST_BYTES_IN_FLIGHT = 256 << 20
_ONE_HOST, _GPU_EACH, _TWO_HOSTS = "one host", "one host, a GPU each", "two hosts"
_PLACES = {_ONE_HOST: Place(), _GPU_EACH: Place(prefixes=(("env", "CUDA_VISIBLE_DEVICES=1,0"), ()))}


def _side(name: str, arguments: argparse.Namespace, contest: Contest, taken: list[dict[str, Any]]) -> Side:
    python = str(arguments.others if name in OTHERS else sys.executable)
    version = version_of(PACKAGES[name], python) if name in PACKAGES else ""
    if name in contest.failures:
        return Side(name, version, failure=contest.failures[name])
    middle = {
        figure: median(turn[figure] for turn in taken) if taken[0][figure] is not None else None
        for figure in ("calls_per_s", "p50_us", "p99_us")
    }
    return Side(name, version, **middle, calls=sum(turn["calls"] for turn in taken), turns=len(taken))


def _command(name: str, arguments: argparse.Namespace) -> list[str]:
    if name == "axon_cpp":
        return [str(arguments.echo)]
    python = arguments.others if name in OTHERS else sys.executable
    return [str(python), str(Path(__file__).with_name("worker.py")), name, arguments.memory]


def _words(text: str) -> list[str]:
    return text.split(",")


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", type=_words, default=["axon", "axon_waits", "axon_cpp", *OTHERS, "torch_rpc"])
    parser.add_argument("--sizes", type=_words, default=_words("8,64,512,4K,32K,256K,2M,16M,64M"))
    parser.add_argument("--in-flight", type=_words, default=_words("1,16,128,1024"))
    parser.add_argument("--turns", type=int, default=5, help="sample rounds of each side, at each size")
    parser.add_argument("--seconds", type=float, default=0.2, help="approximate length of a sample round")
    parser.add_argument("--others", type=Path, default=Path(sys.executable), help="python with active_message.txt")
    parser.add_argument("--echo", type=Path, default=Path("active_message_echo"), help="binary of the side axon_cpp")
    parser.add_argument("--memory", choices=["host", "cuda"], default="host", help="memory of the sent data")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--two-hosts",
        dest="where",
        action="store_const",
        const=_TWO_HOSTS,
        default=_ONE_HOST,
        help="two network namespaces instead of one host",
    )
    where.add_argument(
        "--gpu-each",
        dest="where",
        action="store_const",
        const=_GPU_EACH,
        help="with --memory cuda: use different GPUs for the caller and the callee",
    )
    parser.add_argument("--commit", help="the measured commit, if there is no repository")
    parser.add_argument("--json", type=Path, help="lines are appended")
    parser.add_argument("--plot", type=Path, help="PNG")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse(sys.argv[1:])
    cases = [
        (num_bytes, in_flight)
        for num_bytes, in_flight in product(map(parse_size, arguments.sizes), map(int, arguments.in_flight))
        if in_flight == 1 or num_bytes * in_flight <= MOST_BYTES_IN_FLIGHT
    ]
    machine = machine_of_run("cuda" if arguments.memory == "cuda" else "cpu", arguments.commit)
    lines = []
    console = Console(width=200)
    hosts = between_hosts() if arguments.where == _TWO_HOSTS else nullcontext(_PLACES.get(arguments.where))
    with hosts as place, Progress(console=console, transient=True) as progress:
        contest = Contest(arguments.sides, lambda name: _command(name, arguments), place)
        try:
            for num_bytes, in_flight in progress.track(cases, description="echoes"):
                case = {"num_bytes": num_bytes, "in_flight": in_flight, "seconds": arguments.seconds}
                taken = contest.measure(arguments.turns, **case)
                sides = tuple(_side(name, arguments, contest, taken[name]) for name in arguments.sides)
                lines.append(Line(num_bytes, in_flight, arguments.where, arguments.memory, sides, machine))
                if arguments.json:  # at once, because a long run may be interrupted
                    append_lines(arguments.json, lines[-1:])
        finally:
            contest.close()
    console.print(table(lines))
    for name, why in failures(lines).items():
        console.print(f"– {name}: {why}", highlight=False)
    if arguments.plot:
        save_plot(lines, arguments.plot)


if __name__ == "__main__":
    main()
