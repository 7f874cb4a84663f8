"""Runs the benchmark on this rank. Rank 0 prints, writes and checks the results."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

from torch_axon.bench.arguments import Arguments, parse_arguments
from torch_axon.bench.beside import BesideMeter
from torch_axon.bench.beside_record import BesideLine
from torch_axon.bench.contenders import choose_gpu, is_backend, open_contenders
from torch_axon.bench.cost import GroupCost, measure_costs
from torch_axon.bench.cost_line import CostLine
from torch_axon.bench.exercise import Setting
from torch_axon.bench.idle import IdleCost, Quiet, measure_idle
from torch_axon.bench.launch import ranks_wanted, run_each
from torch_axon.bench.measure import Meter
from torch_axon.bench.operations import OPERATIONS, Operation
from torch_axon.bench.plot import save_plot
from torch_axon.bench.record import Line, append_lines, describe_machine
from torch_axon.bench.report import ahead_failures, wrong_results
from torch_axon.bench.terminal import Terminal

AnyLine = TypeVar("AnyLine", Line, BesideLine)
_WAKES = 20
MeasuredLine = TypeVar("MeasuredLine", Line, BesideLine, covariant=True)


class Measure(Protocol[MeasuredLine]):
    def line(self, operation: Operation, setting: Setting) -> MeasuredLine: ...


def main(command_line: Sequence[str]) -> int:
    ranks, others = ranks_wanted(command_line)
    if ranks and "RANK" not in os.environ:
        return run_each(ranks, others)
    if "RANK" not in os.environ:
        print("no RANK in the environment: give --ranks 2, or start with torchrun", file=sys.stderr)
        return 2
    rank = int(os.environ["RANK"])
    # Only one rank prints the usage, since torchrun would print it once per rank.
    with contextlib.nullcontext() if rank == 0 else contextlib.redirect_stderr(io.StringIO()):
        arguments = parse_arguments(command_line, int(os.environ["WORLD_SIZE"]))
    terminal = Terminal(rank)
    timeout = timedelta(seconds=arguments.timeout)
    device = choose_gpu() if arguments.device == "cuda" else torch.device("cpu")
    if arguments.groups or arguments.idle:
        with device:
            _measure_costs(arguments, terminal, timeout)
        return 0
    contenders, control = open_contenders(arguments.backend, arguments.rivals, timeout)
    machine = describe_machine(arguments.device, arguments.commit)
    terminal.machine(machine, _legend(arguments))
    if arguments.beside:
        beside = BesideMeter(contenders, control, arguments, machine)
        problems = wrong_results(_measure_all(beside, arguments, terminal, terminal.beside))
    else:
        lines = _measure_all(Meter(contenders, control, arguments, machine), arguments, terminal, terminal.lines)
        problems = _conclude(lines, arguments) if rank == 0 else []
    for problem in problems:
        terminal.say(problem)
    return 1 if problems and rank == 0 else 0


def _measure_costs(arguments: Arguments, terminal: Terminal, timeout: timedelta) -> None:
    backends = [name for name in (arguments.backend, *arguments.rivals) if is_backend(name)]
    machine = describe_machine(arguments.device, arguments.commit)
    costs: Sequence[GroupCost | IdleCost]
    if arguments.idle:
        quiet = Quiet(arguments.idle, arguments.nap, arguments.iters or _WAKES)
        costs = measure_idle(backends, quiet, timeout)
        terminal.idle_costs(costs)
    else:
        costs = measure_costs(backends, arguments.groups, timeout)
        terminal.costs(costs)
    if arguments.json is not None and int(os.environ["RANK"]) == 0:
        ranks = int(os.environ["WORLD_SIZE"])
        append_lines(arguments.json, [CostLine(ranks, cost, machine, arguments.device) for cost in costs])


def _legend(arguments: Arguments) -> str:
    ratio = "× how many times as long the other takes"
    if arguments.beside:
        return (
            f"bfloat16 products of {arguments.beside} × {arguments.beside} matrices and calls, alone and beside each "
            "other: medians of the slowest rank; lost: how much longer the product takes for a call"
        )
    if arguments.host:
        return f"time: what enqueuing a call takes the host, p50 and p99 of the slowest rank; {ratio}"
    return f"time: p50 and p99 of the slowest rank, one way for sendrecv; {ratio}"


def _measure_all(
    meter: Measure[AnyLine],
    arguments: Arguments,
    terminal: Terminal,
    show: Callable[[Sequence[AnyLine]], None],
) -> list[AnyLine]:
    plan = {name: list(_settings(OPERATIONS[name], arguments)) for name in arguments.operations}
    lines: list[AnyLine] = []
    with terminal.progress(sum(len(settings) for settings in plan.values())) as progress:
        for name, settings in plan.items():
            for setting in settings:
                lines.append(meter.line(OPERATIONS[name], setting))
                progress.update()
            progress.clear()
            show(lines[-len(settings) :])
            if arguments.json is not None and dist.get_rank() == 0:  # at once: a long run may be interrupted
                append_lines(arguments.json, lines[-len(settings) :])
    dist.destroy_process_group()
    return lines


def _settings(operation: Operation, arguments: Arguments) -> Iterator[Setting]:
    """Returns one setting per distinct element count of the sizes."""
    num_ranks = dist.get_world_size()
    counts = dict.fromkeys(operation.count(size, arguments.dtype, num_ranks) for size in arguments.sizes)
    for count in counts:
        yield Setting(count, arguments.dtype, arguments.redop, arguments.root, dist.get_rank(), num_ranks)


def _conclude(lines: Sequence[Line], arguments: Arguments) -> list[str]:
    """Draws the plots and returns the lines that are wrong or slower than required."""
    if arguments.plot is not None:
        save_plot(lines, arguments.plot)
    problems = wrong_results(lines)
    if arguments.ahead is not None:
        problems += ahead_failures(lines, arguments.ahead)
    return problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
