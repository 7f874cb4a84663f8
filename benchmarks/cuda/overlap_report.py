"""Shows the lines of overlap.py as a table and as a plot:

python benchmarks/cuda/overlap_report.py overlap.jsonl [--dtype bfloat16] [--plot overlap.png]

The plot has, for each operation and shape, the last line with the most communicating sides.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_axon.bench.record import Machine, parse_line


@dataclass(frozen=True)
class Side:
    """One side's figures: times are those of the slowest rank, `wrong` counts elements over all ranks."""

    name: str
    p50_us: float = 0.0
    share: float = 0.0  # relative to the plain product's speed
    host_us: float = 0.0  # to enqueue a call
    wrong: int | None = None
    failure: str | None = None  # why there are no figures


@dataclass(frozen=True)
class Line:
    """An operation at a shape, on all sides."""

    op: str
    m: int
    k: int
    n: int
    dtype: str
    ranks: int
    matmul_us: float  # the plain product, without communication
    sides: tuple[Side, ...]
    machine: Machine = field(repr=False)

    @property
    def shape(self) -> str:
        return f"{self.m} × {self.k} × {self.n}"


def read_lines(path: Path) -> list[Line]:
    return [parse_line(text, Line, Side) for text in path.read_text(encoding="utf-8").splitlines()]


def table(lines: Sequence[Line]) -> str:
    """Returns a Markdown table, one row per line: each side's share of the plain product's speed, and its host time per
    call.
    """
    names = list(dict.fromkeys(side.name for line in lines for side in line.sides))
    heads = ["operation", "dtype", "GPUs", "m × k × n", "matmul µs", "TFLOP/s", *names]
    heads += [*(f"{name}, host µs" for name in names), "#wrong"]
    rows = [heads, ["-"] * len(heads)]
    for line in lines:
        sides = {side.name: side for side in line.sides}
        teraflops = 2 * line.m * line.k * line.n / line.matmul_us / 1e6
        cells = [line.op, line.dtype, str(line.ranks), line.shape, f"{line.matmul_us:.0f}", f"{teraflops:.0f}"]
        cells += [_cell(sides.get(name), "share", 3) for name in names]
        cells += [_cell(sides.get(name), "host_us", 0) for name in names]
        rows.append([*cells, str(sum(side.wrong or 0 for side in line.sides))])
    failures = [f"{line.op}, {side.name}: {side.failure}" for line in lines for side in line.sides if side.failure]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), *failures])


def _cell(side: Side | None, figure: str, digits: int) -> str:
    return "–" if side is None or side.failure else f"{getattr(side, figure):.{digits}f}"


def fullest(lines: Sequence[Line]) -> list[Line]:
    """Returns, for each operation and shape, the last line with the most communicating sides, by shape."""
    chosen: dict[tuple[str, int, int, int], Line] = {}
    for line in lines:
        key = (line.op, line.m, line.k, line.n)
        if key not in chosen or _num_contenders(line) >= _num_contenders(chosen[key]):
            chosen[key] = line
    return [chosen[key] for key in sorted(chosen)]


def _num_contenders(line: Line) -> int:
    return sum(side.name != "cut" and not side.failure for side in line.sides)


def save_plot(lines: Sequence[Line], path: Path) -> None:
    """Plots one panel per operation: each side's share of the plain product's speed, one group of bars per shape."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    operations = list(dict.fromkeys(line.op for line in lines))
    most_shapes = max(sum(line.op == op for line in lines) for op in operations)
    size = (max(11, most_shapes / 2), 4 * len(operations))
    figure, axes = pyplot.subplots(len(operations), 1, figsize=size, squeeze=False)
    for (panel,), op in zip(axes, operations, strict=True):
        chosen = [line for line in lines if line.op == op]
        names = list(dict.fromkeys(side.name for line in chosen for side in line.sides if not side.failure))
        lowest = min(side.share for line in chosen for side in line.sides if not side.failure)
        for index, name in enumerate(names):
            bars = [(row, side.share) for row, line in enumerate(chosen) for side in line.sides if side.name == name]
            offset = (index + 0.5) / len(names) * 0.8 - 0.4
            panel.bar([row + offset for row, _ in bars], [share for _, share in bars], 0.8 / len(names), label=name)
        panel.axhline(1, color="black", linestyle="--", linewidth=1, label="matmul alone")
        panel.set_xticks(range(len(chosen)), [line.shape for line in chosen], **_slant(len(chosen)))
        panel.set(
            title=f"{op}, {chosen[0].dtype}, {chosen[0].ranks} GPUs",
            ylabel="share of matmul alone",
            ylim=(max(0, lowest - 0.05), 1.08),
        )
        panel.margins(x=0.01)
        panel.legend(ncols=len(names) + 1, fontsize="small")
    figure.suptitle(f"{lines[0].machine.gpu}, torch {lines[0].machine.torch}", fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _slant(num_shapes: int) -> dict[str, Any]:
    return {"rotation": 20, "ha": "right", "fontsize": "small"} if num_shapes > 4 else {}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--dtype", help="only lines of this type")
    parser.add_argument("--plot", type=Path, help="PNG")
    arguments = parser.parse_args()
    results = [line for line in read_lines(arguments.results) if arguments.dtype in (None, line.dtype)]
    print(table(results))
    if arguments.plot:
        save_plot(fullest(results), arguments.plot)
