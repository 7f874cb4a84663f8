"""Plots the bandwidth of one block over its size: a panel per place and operation, and a curve per side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_axon.bench.plot import size_ticks
from torch_axon.bench.sizes import format_size

Record = dict[str, Any]
_COLUMNS = ("write", "read")
_PANEL = (6.0, 3.8)  # inches


def save_plot(lines: Sequence[Record], path: Path, description: str = "") -> None:
    """Writes a PNG that carries `description`. Only reused buffers are plotted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    plotted = [line for line in lines if line["op"] in _COLUMNS and line["buffers"] == "reused"]
    rows = list(dict.fromkeys((line["place"], line["memory"], line["in_flight"]) for line in plotted)) or [("", "", 0)]
    colors = {name: f"C{index}" for index, name in enumerate(_names_of(plotted))}
    size = (_PANEL[0] * len(_COLUMNS), _PANEL[1] * len(rows))
    figure, axes = pyplot.subplots(len(rows), len(_COLUMNS), figsize=size, squeeze=False, layout="constrained")
    for row, panels in zip(rows, axes, strict=True):
        some = [line for line in plotted if (line["place"], line["memory"], line["in_flight"]) == row]
        for op, panel in zip(_COLUMNS, panels, strict=True):
            _draw(panel, [line for line in some if line["op"] == op], colors)
            panel.set_title(f"{op}, {row[2]} in flight, {row[0]}, {row[1]} memory", fontsize="small")
    axes[0][0].legend(fontsize="small")
    machine = lines[0]["machine"]
    figure.suptitle(machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Description": description} if description else None)
    pyplot.close(figure)


def _names_of(lines: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(side["name"] for line in lines for side in line["sides"]))


def _draw(panel: Any, lines: Sequence[Record], colors: dict[str, str]) -> None:
    for name in _names_of(lines):
        points = [
            (line["num_bytes"], line["num_bytes"] / side["value"] / 1e3)
            for line in lines
            for side in line["sides"]
            if side["name"] == name and side["value"]
        ]
        if points:
            panel.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, color=colors[name], label=name)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    if lines:
        ticks = size_ticks([line["num_bytes"] for line in lines])
        panel.set_xticks(ticks, labels=[format_size(size) for size in ticks])
    panel.set_xlabel("size (bytes)")
    panel.set_ylabel("GB/s")
    panel.grid(visible=True, alpha=0.3)
