"""Shows the result lines of run.py as a table and a plot: `report.py FILE [--plot PNG]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torch_axon.bench.record import Machine, parse_line
from torch_axon.bench.sizes import format_size


@dataclass(frozen=True)
class Side:
    """Medians over the sample rounds; times are of single calls, if one is in flight."""

    name: str
    version: str
    calls_per_s: float = 0.0
    p50_us: float | None = None
    p99_us: float | None = None
    calls: int = 0
    turns: int = 0
    failure: str | None = None  # why there are no figures


@dataclass(frozen=True)
class Line:
    """An echo with one size and number of calls in flight, on all sides; the first side is the one judged."""

    num_bytes: int
    in_flight: int
    path: str  # "one host", "one host, a GPU each", or "two hosts": network namespaces joined by a veth pair
    memory: str
    sides: tuple[Side, ...]
    machine: Machine = field(repr=False)


def read(path: Path) -> list[Line]:
    return [parse_line(text, Line, Side) for text in path.read_text(encoding="utf-8").splitlines()]


def table(lines: Sequence[Line]) -> Table:
    """Returns microseconds if one call is in flight, otherwise thousands of calls per second; in brackets the ratio."""
    names = [side.name for side in lines[0].sides]
    shown = Table("size", "in flight", "unit", *names, box=None, pad_edge=False, header_style="bold")
    for column in shown.columns[3:]:
        column.justify = "right"
    for line in lines:
        unit = "µs" if line.in_flight == 1 else "1,000/s"
        cells = [_cell(line, side) for side in line.sides]
        shown.add_row(format_size(line.num_bytes), str(line.in_flight), unit, *cells)
    return shown


def _cell(line: Line, side: Side) -> str:
    if side.failure:
        return "–"
    judged = line.sides[0]
    figure = f"{side.p50_us:.1f}" if line.in_flight == 1 else f"{side.calls_per_s / 1000:.2f}"
    if side is judged or judged.failure:
        return figure
    return f"{figure} ({slowdown_of(line, side):.1f}×)"


def slowdown_of(line: Line, side: Side) -> float:
    """Returns how many times as long as the judged side it takes."""
    judged = line.sides[0]
    if line.in_flight == 1 and side.p50_us and judged.p50_us:
        return side.p50_us / judged.p50_us
    return judged.calls_per_s / side.calls_per_s


def failures(lines: Sequence[Line]) -> dict[str, str]:
    return {side.name: side.failure for line in lines for side in line.sides if side.failure}


def save_plot(lines: Sequence[Line], path: Path) -> None:
    """Plots one panel per number of calls in flight, with one curve per side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    numbers = sorted({line.in_flight for line in lines})
    figure, axes = pyplot.subplots(
        1, len(numbers), figsize=(4.2 * len(numbers), 4), squeeze=False, layout="constrained"
    )
    for number, panel in zip(numbers, axes[0], strict=True):
        some = [line for line in lines if line.in_flight == number]
        for index, side in enumerate(some[0].sides):
            _draw(panel, [line.num_bytes for line in some], side.name, [line.sides[index] for line in some])
        panel.set(xscale="log", yscale="log", xlabel="bytes there and back", title=f"{number} in flight")
        panel.set_ylabel("time of a call (µs, median)" if number == 1 else "calls a second")
        panel.grid(visible=True, alpha=0.3)
    axes[0][0].legend()
    machine = lines[0].machine
    figure.suptitle(f"{machine.cpu}, {machine.cores} cores, {lines[0].path}", fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw(panel: Any, sizes: list[int], name: str, sides: list[Side]) -> None:
    figures = [side.p50_us or side.calls_per_s or float("nan") for side in sides]
    panel.plot(sizes, figures, marker="o", markersize=3, label=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--plot", type=Path, help="PNG")
    arguments = parser.parse_args()
    lines = read(arguments.file)
    Console(width=200).print(table(lines))
    if arguments.plot:
        save_plot(lines, arguments.plot)


if __name__ == "__main__":
    main()
