"""The command line. Every error names the argument, the value and what is allowed."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from torch_axon.bench import symmetric
from torch_axon.bench.contenders import FLOOR, LAUNCH, register
from torch_axon.bench.operations import OPERATIONS
from torch_axon.bench.patterns import DTYPES, REDUCTIONS
from torch_axon.bench.sizes import parse_size, parse_sizes, size_range

_DEFAULT_SIZES = "8:128M:x4"
_DEFAULT_SIZES_BESIDE = "1M:256M:x16"
_PRODUCT = 8192
_IDLE_S = 5.0
_NAP_S = 1.0
# Options, by the options that exclude them.
_NOT_TOGETHER = {
    "--graph": ("--async",),
    "--host": ("--graph", "--async", "--plot"),
    "--beside": ("--host", "--graph", "--async", "--iters", "--plot", "--assert-ahead"),
    "--groups": ("--host", "--beside", "--graph", "--idle", "--assert-ahead", "--plot"),
    "--idle": ("--host", "--beside", "--graph", "--assert-ahead", "--plot"),
}
T = TypeVar("T")


@dataclass(frozen=True)
class Arguments:
    """A checked command line."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    redop: str
    root: int
    backend: str
    rivals: tuple[str, ...]
    iters: int | None
    warmup: int
    blocks: int
    seconds: float
    window: int | None
    groups: int
    idle: float  # seconds; 0: do not measure
    nap: float  # seconds
    timeout: float
    device: str
    graph: bool
    host: bool
    beside: int  # rows and columns of the matrices; 0: no product
    commit: str | None
    json: Path | None
    plot: Path | None
    ahead: float | None


def parse_arguments(command_line: Sequence[str], num_ranks: int) -> Arguments:
    """Parses arguments for a run over `num_ranks`. An error ends the process with status 2, as argparse does."""
    parser = _build_parser()
    given = parser.parse_args(command_line)
    if given.sizes and (given.begin or given.end or given.factor):
        parser.error("argument --sizes: not together with -b, -e or -f")
    try:
        sizes = given.sizes or _nccl_tests_sizes(given)
    except ValueError as error:
        parser.error(f"arguments -b, -e, -f: {error}")
    if given.root >= num_ranks:
        parser.error(f"argument -r/--root: {given.root} is not a rank from 0 to {num_ranks - 1}")
    if given.ranks is not None:
        parser.error("argument --ranks: not with torchrun, which starts the ranks itself")
    _check_combinations(given, parser)
    _check_device(given, parser)
    _check_idle(given, num_ranks, parser)
    dtype = DTYPES[given.dtype]
    if REDUCTIONS[given.redop].integers_only and dtype.is_floating_point:
        integers = ", ".join(name for name, each in DTYPES.items() if not each.is_floating_point)
        parser.error(f"argument -o/--redop: {given.redop!r} needs an integer --dtype ({integers}), not {given.dtype!r}")
    return Arguments(
        operations=given.operations,
        sizes=sizes,
        dtype=dtype,
        redop=given.redop,
        root=given.root,
        backend=given.backend,
        rivals=given.vs or _default_rivals(given),
        iters=given.iters,
        warmup=given.warmup,
        blocks=given.blocks,
        seconds=given.seconds,
        window=given.window if given.is_async else None,
        groups=given.groups,
        idle=given.idle,
        nap=given.nap,
        timeout=given.timeout,
        device=given.device,
        graph=given.graph,
        host=given.host,
        beside=given.beside,
        commit=given.commit,
        json=given.json,
        plot=given.plot,
        ahead=given.assert_ahead,
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node=2 -m torch_axon.bench",
        description="Times c10d operations of one backend and of others, taking turns in one run, and checks results.",
    )
    _add_work(parser.add_argument_group("what is measured"))
    _add_ways(parser.add_argument_group("in which way"))
    _add_timing(parser.add_argument_group("beside what, and for how long"))
    _add_results(parser.add_argument_group("results"))
    return parser


def _add_work(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "operations",
        nargs="?",
        type=_operations,
        default=("all_reduce",),
        metavar="OPERATIONS",
        help=f"comma-separated from {', '.join(OPERATIONS)}, or all (default: all_reduce)",
    )
    add(
        "--sizes",
        type=_checked(parse_sizes),
        metavar="SIZES",
        help=f"BEGIN:END:xFACTOR, BEGIN:END:+STEP or SIZE, comma-separated (default: {_DEFAULT_SIZES}, with --beside "
        f"{_DEFAULT_SIZES_BESIDE})",
    )
    add("-b", "--begin", type=_checked(parse_size), metavar="SIZE", help="smallest size, as in nccl-tests")
    add("-e", "--end", type=_checked(parse_size), metavar="SIZE", help="largest size, as in nccl-tests")
    add("-f", "--factor", type=_number(1.01, 1024), metavar="FACTOR", help="ratio of consecutive sizes (default: 2)")
    add("-d", "--dtype", choices=DTYPES, default="float32")
    add("-o", "--redop", choices=REDUCTIONS, default="sum")
    add(
        "-r",
        "--root",
        type=_integer(0, 1 << 20),
        default=0,
        metavar="RANK",
        help="of rooted operations (default: 0); on GPUs, timed calls of broadcast and reduce take each rank in turn, "
        "those of broadcast_fixed_root and reduce_fixed_root do not",
    )


def _add_ways(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--ranks",
        metavar="NUMBERS",
        help="without torchrun: one run per number of ranks on this host, comma-separated",
    )
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="of the tensors; one GPU per rank (default: cpu)",
    )
    add("--async", dest="is_async", action="store_true", help="keep --window calls in flight instead of one")
    add("--window", type=_integer(1, 1024), default=16, metavar="N", help="calls in flight with --async (default: 16)")
    add(
        "--groups",
        type=_integer(0, 10000),
        default=0,
        metavar="N",
        help="instead: cost of a first and N more groups",
    )
    add(
        "--idle",
        nargs="?",
        type=_number(0.1, 3600),
        const=_IDLE_S,
        default=0.0,
        metavar="SECONDS",
        help="instead: the share of a core that a process uses while its group is idle for this time, and how fast it "
        f"wakes up (SECONDS: {_IDLE_S:g})",
    )
    add(
        "--nap",
        type=_number(0.01, 30),
        default=_NAP_S,
        metavar="SECONDS",
        help=f"with --idle: how long a receiver has slept when each of 20 (-n) messages arrives (default: {_NAP_S:g})",
    )
    add("--graph", action="store_true", help="with --device cuda: replay CUDA graphs of 20 or more calls")
    add("--host", action="store_true", help="with --device cuda: time only the host while it enqueues calls")
    add(
        "--beside",
        nargs="?",
        type=_integer(4096, 65536),
        const=_PRODUCT,
        default=0,
        metavar="N",
        help="with --device cuda: how calls and a concurrent bfloat16 product of N × N matrices slow each other down, "
        f"and how many multiprocessors the calls' kernels use (N: {_PRODUCT})",
    )


def _add_timing(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--backend", type=_backend, default="axon", metavar="NAME", help="the backend under test (default: axon)")
    add(
        "--vs",
        type=_backends,
        metavar="NAMES",
        help="comma-separated backends to compare with; fake is torch's own floor, symm_mem the all_reduce kernels of "
        "its symmetric memory, launch one launch of an empty kernel (default: gloo; on GPUs nccl, with --host "
        "also fake and launch)",
    )
    add("-n", "--iters", type=_integer(1, 10**7), metavar="N", help="calls per side and line (default: as --seconds)")
    add(
        "--seconds",
        type=_number(0.001, 3600),
        default=0.3,
        help="per side and line, without --iters (default: 0.3)",
    )
    add("-w", "--warmup", type=_integer(1, 10**5), default=5, metavar="N", help="untimed calls before (default: 5)")
    add("--blocks", type=_integer(1, 1000), default=8, metavar="N", help="number of sample rounds (default: 8)")
    add("--timeout", type=_number(1, 3600), default=120, metavar="SECONDS", help="timeout of the groups (default: 120)")


def _add_results(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--commit", metavar="TEXT", help="the commit that was built, for the results (default: that of this folder)")
    add("--json", type=Path, metavar="FILE", help="append one JSON line per line of the table")
    add("--plot", type=_checked(_png), metavar="FILE.png", help="draw time and bus bandwidth over size")
    add(
        "--assert-ahead",
        nargs="?",
        type=_number(0.01, 1e6),
        const=1.0,
        metavar="FACTOR",
        help="fail, and name the lines, unless every other side takes at least FACTOR (1) times as long",
    )


def _check_device(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    rivals = given.vs or ()
    if given.device == "cuda" and not torch.cuda.device_count():
        parser.error("argument --device: no GPU here for 'cuda'")
    if given.device == "cuda":
        return
    for option in ("--graph", "--host", "--beside"):
        if _value(given, option):
            parser.error(f"argument {option}: needs --device cuda")
    if not set(rivals).isdisjoint(symmetric.KERNELS):
        parser.error(f"argument --vs: {symmetric.NAME} needs --device cuda")
    if LAUNCH in rivals:
        parser.error(f"argument --vs: {LAUNCH} needs --device cuda")


def _check_combinations(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    for option, others in _NOT_TOGETHER.items():
        for other in others if _value(given, option) else ():
            if _value(given, other):
                parser.error(f"argument {option}: not together with {other}")


def _check_idle(given: argparse.Namespace, num_ranks: int, parser: argparse.ArgumentParser) -> None:
    if not given.idle:
        return
    if num_ranks < 2:
        parser.error("argument --idle: needs 2 ranks, one to wake the other")
    if FLOOR in (given.backend, *(given.vs or ())):
        parser.error(f"argument --vs: not {FLOOR} with --idle, since it sends no messages that could wake a rank")


def _value(given: argparse.Namespace, option: str) -> object:
    name = "is_async" if option == "--async" else option.removeprefix("--").replace("-", "_")
    return getattr(given, name)


def _nccl_tests_sizes(given: argparse.Namespace) -> tuple[int, ...]:
    if not (given.begin or given.end or given.factor):
        return parse_sizes(_DEFAULT_SIZES_BESIDE if given.beside else _DEFAULT_SIZES)
    begin = given.begin or 8
    return size_range(begin, given.end or max(begin, parse_size("128M")), f"x{given.factor or 2}")


def _operations(text: str) -> tuple[str, ...]:
    names = tuple(OPERATIONS) if text == "all" else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in OPERATIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(OPERATIONS)}, all")
    return names


def _backends(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for name in text.split(","):
        names += symmetric.KERNELS if name == symmetric.NAME else [name if name == LAUNCH else _backend(name)]
    return tuple(names)


def _default_rivals(given: argparse.Namespace) -> tuple[str, ...]:
    if given.device == "cpu":
        return ("gloo",)
    return _backends(f"nccl,{FLOOR},{LAUNCH}") if given.host else ("nccl",)


def _backend(name: str) -> str:
    try:
        register(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def _png(text: str) -> Path:
    if not text.endswith(".png"):
        raise ValueError(f"{text!r} does not end in .png")
    return Path(text)


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.lstrip("-").isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {low} to {high}")
        return int(text)

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return value

    return parse


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wraps `parse` so that the user sees the text of a ValueError; argparse shows only texts of its own class."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked
