"""Tables of records: nccl-tests' columns on the terminal, and a short form in Markdown for the README.

``python -m torch_axon.bench.report FILE…`` prints the Markdown table of result files.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_axon.bench.beside_record import BesideLine
from torch_axon.bench.contenders import FLOOR, FLOORS, LAUNCH
from torch_axon.bench.floor import floor_us
from torch_axon.bench.record import Line, Side, read_lines
from torch_axon.bench.sizes import format_size

_ABSENT = "–"


@dataclass(frozen=True)
class Column:
    """A heading and the function that gives its cell for a line."""

    title: str
    cell: Callable[[Line], str]
    in_short: bool = True


def columns(lines: Sequence[Line]) -> list[Column]:
    """Returns the columns for `lines`, which all have the same sides."""
    found = [
        Column("op", lambda line: line.op),
        Column("size", lambda line: format_size(line.size)),
        Column("count", lambda line: str(line.count), in_short=False),
        Column("type", lambda line: line.dtype, in_short=False),
        Column("redop", lambda line: line.redop, in_short=False),
        Column("root", lambda line: str(line.root), in_short=False),
    ]
    if floor_us(lines[0]) is not None:
        found.append(Column("floor µs", lambda line: _time(floor_us(line) or 0.0)))
    for index, side in enumerate(lines[0].sides):
        found += _side_columns(index, side.backend, lines[0])
    if {side.backend for side in lines[0].sides[1:]}.issuperset(FLOORS):
        found.append(Column(f"over {FLOOR} + {LAUNCH} µs", _over_floors))
    return found


def ahead_failures(lines: Sequence[Line], factor: float) -> list[str]:
    """Yields the lines where another backend takes less than `factor` times the time of the one under test."""
    failures = []
    for line in lines:
        for side in line.sides[1:]:
            ratio = line.ratio(side)
            if side.backend not in FLOORS and ratio is not None and ratio < factor:
                in_flight = f", {line.window} in flight" if line.window > 1 else ""
                failures.append(
                    f"{line.op} {format_size(line.size)}, {line.ranks} ranks{in_flight}: "
                    f"{line.judged.backend} {_time(line.judged.p50_us)} µs, "
                    f"{side.backend} {_time(side.p50_us)} µs, {ratio:.2f} of the {factor:g} wanted"
                )
    return failures


def wrong_results(lines: Sequence[Line] | Sequence[BesideLine]) -> list[str]:
    """Yields the lines where the backend under test failed or any backend gave wrong elements."""
    problems = []
    for line in lines:
        for side in line.sides:
            where = f"{line.op} {format_size(line.size)}: {side.backend}"
            if side.wrong:
                problems.append(f"{where} has {side.wrong} wrong elements")
            if side.failure is not None and side is line.judged:
                problems.append(f"{where} failed: {side.failure}")
    return problems


def markdown(lines: Sequence[Line]) -> str:
    """Returns the short table after a sentence about machine and date."""
    machine = lines[0].machine
    shown = [column for column in columns(lines) if column.in_short]
    rows = [[column.title for column in shown], [":--", *["--:"] * (len(shown) - 1)]]
    rows += [[column.cell(line) for column in shown] for line in lines]
    kind = ", graphs" if lines[0].graph else ", host time" if lines[0].host else ""
    gpus = f"GPUs {machine.gpu}{kind}, " if machine.gpu else ""
    head = (
        f"{lines[0].ranks} ranks on {gpus}{machine.cpu} ({machine.cores} cores), torch {machine.torch}, "
        f"{machine.commit or 'unversioned'}, {machine.date[:10]}: `{machine.command}`"
    )
    return "\n".join([head, "", *("| " + " | ".join(row) + " |" for row in rows)])


def main(command_line: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_axon.bench.report", description=main.__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="as --json of torch_axon.bench writes them")
    for path in parser.parse_args(command_line).files:
        try:
            lines = read_lines(path)
        except (OSError, ValueError) as error:
            parser.error(f"argument FILE: {error}")
        for group in _with_same_sides(lines):
            print(markdown(group), end="\n\n")
    return 0


def _over_floors(line: Line) -> str:
    """Returns the time of a call beyond the Python call and one launch."""
    floors = [side for side in line.sides if side.backend in FLOORS]
    if not all(side.measured for side in (line.judged, *floors)):
        return _ABSENT
    return _time(line.judged.p50_us - sum(side.p50_us for side in floors))


def _side_columns(index: int, backend: str, example: Line) -> list[Column]:
    def figure(show: Callable[[Line, Side], str]) -> Callable[[Line], str]:
        return lambda line: show(line, line.sides[index]) if line.sides[index].measured else _ABSENT

    found = [Column(f"{backend} µs", figure(lambda _, side: _time(side.p50_us)))]
    if backend == LAUNCH:
        return found
    if backend == FLOOR:
        over = figure(lambda line, side: _time(line.judged.p50_us - side.p50_us) if line.judged.measured else _ABSENT)
        return [*found, Column(f"over {backend} µs", over)]
    found.append(Column("p99", figure(lambda _, side: _time(side.p99_us))))
    if not example.host:
        found += [
            Column("algbw", figure(lambda _, side: _bandwidth(side.algbw_gbs)), in_short=False),
            Column("busbw GB/s", figure(lambda _, side: _bandwidth(side.busbw_gbs))),
        ]
    found.append(Column("#wrong", figure(lambda _, side: str(side.wrong)), in_short=False))
    if index > 0:
        found.append(Column(f"× {backend}", figure(lambda line, side: _ratio(line.ratio(side)))))
    return found


def _with_same_sides(lines: Sequence[Line]) -> list[list[Line]]:
    """Groups `lines` by run, so that every table has one set of columns and one heading."""
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        key = (line.machine.date, line.machine.command, *(side.backend for side in line.sides))
        groups.setdefault(key, []).append(line)
    return list(groups.values())


def _time(microseconds: float) -> str:
    return f"{microseconds:.2f}" if abs(microseconds) < 100 else f"{microseconds:.0f}"


def _bandwidth(gigabytes_per_second: float) -> str:
    return f"{gigabytes_per_second:.2f}"


def _ratio(ratio: float | None) -> str:
    return _ABSENT if ratio is None else f"{ratio:.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
