"""Plots time and bus bandwidth over size: one row of panels per operation, one curve per backend."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch_axon.bench.floor import floor_us
from torch_axon.bench.operations import OPERATIONS
from torch_axon.bench.record import Line, Side
from torch_axon.bench.sizes import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT_A_ROW = 11.0, 3.6
_MAX_TICKS = 12  # that fit below a panel of half the width


def save_plot(lines: Sequence[Line], path: Path, description: str = "") -> None:
    """Writes a PNG that carries `description`; operations without sizes (barrier) or without figures are left out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_operation: dict[str, list[Line]] = {}
    for line in lines:
        if line.size > 0 and line.judged.measured:
            by_operation.setdefault(line.op, []).append(line)
    rows = max(1, len(by_operation))
    figure, axes = pyplot.subplots(rows, 2, figsize=(_WIDTH, _HEIGHT_A_ROW * rows), squeeze=False, layout="constrained")
    for (name, sized), (left, right) in zip(by_operation.items(), axes, strict=False):
        floors = [floor for line in sized if (floor := floor_us(line)) is not None]
        rates = [_bus_bandwidth(line, floor) for line, floor in zip(sized, floors, strict=False)]
        draw_over_size(left, sized, lambda side: side.p50_us, floors)
        draw_over_size(right, sized, lambda side: side.busbw_gbs, rates)
        left.set(title=_title(sized[0]), ylabel="time, p50 of the slowest rank (µs)")
        right.set(title=name, ylabel="bus bandwidth (GB/s)")
    machine = lines[0].machine
    figure.suptitle(f"{machine.gpu or machine.cpu}, torch {machine.torch}", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Description": description} if description else None)
    pyplot.close(figure)


def size_ticks(sizes: Sequence[int]) -> list[int]:
    """The sizes to label on a logarithmic axis: the last one, and those far enough below the tick to their right."""
    descending = sorted(set(sizes), reverse=True)
    distance = math.log2(descending[0] / descending[-1]) / (_MAX_TICKS - 1)
    ticks = descending[:1]
    for size in descending[1:]:
        if math.log2(ticks[-1] / size) >= distance * 0.99:
            ticks.append(size)
    return ticks[::-1]


def _title(line: Line) -> str:
    return f"{line.op}, {line.dtype}, {line.ranks} ranks{', graph' if line.graph else ''}"


def _bus_bandwidth(line: Line, microseconds: float) -> float:
    return line.size * OPERATIONS[line.op].bus_factor(line.ranks) / microseconds / 1e3


def draw_over_size(
    axes: "Axes", lines: Sequence[Line], figure_of: Callable[[Side], float], floors: Sequence[float]
) -> None:
    """Draws one curve per backend of `lines`, which have one operation, onto logarithmic axes."""
    sizes = [line.size for line in lines]
    for index, side in enumerate(lines[0].sides):
        figures = [figure_of(line.sides[index]) or float("nan") for line in lines]
        if any(figure == figure for figure in figures):
            axes.plot(sizes, figures, marker="o", markersize=3, label=side.backend)
    if floors:
        axes.plot(sizes, floors, color="black", linestyle="--", linewidth=1, label="floor of the links")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = size_ticks(sizes)
    axes.set_xticks(ticks, labels=[format_size(size) for size in ticks])
    axes.set_xlabel("size (bytes)")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
