"""Shows the result lines of run.py as a table and a plot: `report.py FILE [--plot PNG]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases import REUSED, Case
from plot import save_plot
from rich.console import Console
from rich.table import Table

from torch_axon.bench.record import Machine
from torch_axon.bench.sizes import format_size

Record = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """A side's median over the sample rounds, in the line's unit; less is better."""

    name: str
    version: str = ""
    path: str = ""  # how our bytes move: `Remote.path`
    value: float | None = None
    calls: int = 0
    rounds: int = 0
    failure: str | None = None  # why there is no figure


@dataclass(frozen=True)
class Line:
    """A case, on all sides; the first side is the one judged."""

    op: str
    num_bytes: int
    num_blocks: int
    in_flight: int
    buffers: str
    unit: str
    place: str  # "one host" or "two hosts": network namespaces joined by a veth pair
    memory: str  # "plain", "mapped" or "cuda"
    sides: tuple[Side, ...]
    machine: Machine = field(repr=False)


def line_of(case: Case, place: str, memory: str, sides: tuple[Side, ...], machine: Machine) -> Line:
    fields = (case.op, case.num_bytes, case.num_blocks, case.in_flight, case.buffers, case.unit)
    return Line(*fields, place, memory, sides, machine)


def read(path: Path) -> list[Record]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def describe(line: Record) -> str:
    """`write 64K`, `read list 32768x4K`, `write 64K, 16 in flight`, `read 1M, fresh buffer`."""
    size = format_size(line["num_bytes"] // line["num_blocks"]) if line["num_bytes"] else ""
    blocks = f"{line['num_blocks']}x{size}" if line["num_blocks"] > 1 else size
    parts = [f"{line['op']} {blocks}".strip()]
    parts += [f"{line['in_flight']} in flight"] if line["in_flight"] > 1 else []
    parts += [f"{line['buffers']} buffer"] if line["buffers"] != REUSED else []
    return ", ".join(parts)


def table(lines: Sequence[Record]) -> Table:
    """Returns each side's figure, and in brackets that figure divided by the first side's."""
    names = list(dict.fromkeys(side["name"] for line in lines for side in line["sides"]))
    shown = Table("operation", "unit", *names, box=None, pad_edge=False, header_style="bold")
    for column in shown.columns[2:]:
        column.justify = "right"
    for line in lines:
        sides = {side["name"]: side for side in line["sides"]}
        shown.add_row(describe(line), line["unit"], *(_cell(line, sides.get(name)) for name in names))
    return shown


def _cell(line: Record, side: Record | None) -> str:
    if side is None or side["value"] is None:
        return "–"
    figure = f"{side['value']:,.{2 if side['value'] < 100 else 0}f}"
    ratio = ratio_of(line, side)
    return figure if ratio is None else f"{figure} ({ratio:.2f}×)"


def ratio_of(line: Record, side: Record) -> float | None:
    """Returns how many times as long as the first side it takes; None for that side, and without both figures."""
    judged = line["sides"][0]
    if side is judged or not side["value"] or not judged["value"]:
        return None
    return float(side["value"] / judged["value"])


def failures(lines: Sequence[Record]) -> dict[tuple[str, str], list[str]]:
    """Returns the operations of which a side has no figure, by the side and the reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        for side in line["sides"]:
            if side["failure"]:
                found.setdefault((side["name"], side["failure"]), []).append(describe(line))
    return found


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
