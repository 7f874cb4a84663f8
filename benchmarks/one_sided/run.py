"""Compares one-sided transfers with those of other libraries: reads and writes of another process's memory.

    python benchmarks/one_sided/run.py --others build/others/bin/python --json one_sided.jsonl --plot one_sided.png
    python benchmarks/one_sided/run.py --others build/others/bin/python --two-hosts     # as root
    python benchmarks/one_sided/run.py --others build/others/bin/python --memory cuda   # two GPUs, or one
    python benchmarks/one_sided/run.py --sides axon,axon_polling --ops write,read --sizes 64:1M:x4

Each side has a process that owns memory and an initiator. Before each sample round, one window of operations is
compared byte by byte. The sides take turns in alternating order, while all other processes are stopped.

    axon          torch_axon.runtime: the initiator waits for results, and may sleep
    axon_polling  the same with an initiator that asks again and again
    axon_invoke   calls with the same bytes, in place of transfers
    axon_nixl     torch_axon.nixl, with NIXL's program
    nixl          NIXL's wheel, which polls
    ucxx          UCXX's tagged messages, in its default mode; ucxx_polling: driven by the event loop without pause
    mooncake      Mooncake's transfer engine over TCP
    nccl          NCCL's send and recv, of CUDA memory only

Operations (--ops), of which several may be in flight:

    idle                   the share of a core that an owner takes which does nothing
    notification           there and back
    write, read            one block, in a buffer that is used again, or a fresh one that no transfer has used
    write + notification   until the owner has answered by a notification
    write list, read list  blocks that each call names
    write plan, read plan  blocks that were described before
    prepare, make          describing all blocks, and naming them in one request
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from cases import OPS, Case, cases_of
from pairs import Contest, Place, between_hosts, machine_of_run, version_of
from plot import save_plot
from report import Line, Side, failures, line_of, table
from rich.console import Console
from rich.progress import Progress

from torch_axon.bench.record import append_lines
from torch_axon.bench.sizes import parse_size, parse_sizes

PACKAGES = {  # of sides that run in a separate environment
    "nixl": "nixl-cu13",
    "ucxx": "ucxx-cu13",
    "ucxx_polling": "ucxx-cu13",
    "mooncake": "mooncake-transfer-engine-non-cuda",
}
HOST_SIDES = ["axon", "axon_polling", "axon_invoke", "axon_nixl", *PACKAGES]
CUDA_SIDES = ["axon", "axon_polling", "axon_nixl", "nixl", "ucxx", "nccl"]
ONE_HOST, TWO_HOSTS = "one host", "two hosts"
PLAIN, MAPPED, CUDA = "plain", "mapped", "cuda"


def _command(name: str, arguments: argparse.Namespace, num_bytes: int) -> list[str]:
    python = str(arguments.others if name in PACKAGES else sys.executable)
    variables = ["OMP_NUM_THREADS=1"]  # torch's further threads spin after they have filled buffers
    if name in PACKAGES and arguments.two_hosts:  # namespaces do not hide shared memory and CUDA IPC from UCX
        variables.append("UCX_TLS=tcp,self,cuda_copy")
    worker = [str(Path(__file__).with_name("worker.py")), name, arguments.memory, str(num_bytes)]
    return ["env", *variables, python, *worker]


def _side(name: str, contest: Contest, taken: list[dict[str, Any]], python: str) -> Side:
    version = version_of(PACKAGES[name], python) if name in PACKAGES else ""
    failure = contest.failures.get(name) or next((each["failure"] for each in taken if "failure" in each), None)
    if failure:
        return Side(name, version, failure=failure)
    value = round(median(each["value"] for each in taken), 4)
    path = str(contest.greetings[name]["path"])
    return Side(name, version, path, value, sum(each["calls"] for each in taken), len(taken))


def _lists(text: str) -> list[tuple[int, int]]:
    """Returns the number of blocks and the bytes of each, of texts such as 32768x4K."""
    pairs = [each.split("x") for each in text.split(",") if each]
    return [(int(count), parse_size(size)) for count, size in pairs]


def _words(text: str) -> list[str]:
    return text.split(",")


def _ops(text: str) -> list[str]:
    unknown = set(_words(text)) - set(OPS)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}; allowed: {', '.join(OPS)}")
    return _words(text)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", type=_words, help="the first one is judged; default: all of the kind of memory")
    parser.add_argument("--ops", type=_ops, default=list(OPS), help="default: all")
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes("64:64M:x4"), help="of one block")
    parser.add_argument("--lists", type=_lists, default=_lists("32768x4K,8192x16K,4096x64K"), help="COUNTxBYTES")
    parser.add_argument("--in-flight", type=_words, default=["1", "16"], help="transfers under way at once")
    parser.add_argument("--rounds", type=int, default=3, help="sample rounds of each side, for each case")
    parser.add_argument("--seconds", type=float, default=0.05, help="approximate length of a sample round")
    parser.add_argument("--others", type=Path, default=Path(sys.executable), help="python with one_sided.txt")
    parser.add_argument(
        "--memory",
        choices=[PLAIN, MAPPED, CUDA],
        default=PLAIN,
        help="mapped: what Runtime.empty allocates, which peers of the host map (sides of torch_axon.runtime)",
    )
    parser.add_argument("--two-hosts", action="store_true", help="two network namespaces instead of one host")
    parser.add_argument("--commit", help="the measured commit, if there is no repository")
    parser.add_argument("--json", type=Path, help="lines are appended")
    parser.add_argument("--plot", type=Path, help="PNG")
    arguments = parser.parse_args(words)
    arguments.sides = arguments.sides or (CUDA_SIDES if arguments.memory == CUDA else HOST_SIDES)
    return arguments


def measure(arguments: argparse.Namespace, cases: Sequence[Case], console: Console) -> list[Line]:
    machine = machine_of_run("cuda" if arguments.memory == CUDA else "cpu", arguments.commit)
    place_name = TWO_HOSTS if arguments.two_hosts else ONE_HOST
    num_bytes = max([1, *(case.num_bytes * case.in_flight for case in cases)])
    lines = []
    hosts = between_hosts() if arguments.two_hosts else nullcontext(Place())
    with hosts as place, Progress(console=console, transient=True) as progress:
        contest = Contest(arguments.sides, lambda name: _command(name, arguments, num_bytes), place)
        try:
            for case in progress.track(cases, description="transfers"):
                taken = contest.measure(arguments.rounds, seconds=arguments.seconds, **asdict(case))
                sides = tuple(_side(name, contest, taken[name], str(arguments.others)) for name in arguments.sides)
                lines.append(line_of(case, place_name, arguments.memory, sides, machine))
                if arguments.json:  # at once, because a long run may be interrupted
                    append_lines(arguments.json, lines[-1:])
        finally:
            contest.close()
    return lines


def main() -> None:
    arguments = parse(sys.argv[1:])
    cases = cases_of(arguments.sizes, arguments.lists, [int(each) for each in arguments.in_flight], arguments.ops)
    console = Console(width=200)
    lines = [asdict(line) for line in measure(arguments, cases, console)]
    console.print(table(lines))
    for (name, why), cases_without in failures(lines).items():
        console.print(f"– {name}: {why} ({len(cases_without)}: {cases_without[0]}, …)", highlight=False)
    if arguments.plot:
        save_plot(lines, arguments.plot)


if __name__ == "__main__":
    main()
