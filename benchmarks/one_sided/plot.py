"""Plots the bandwidth of one block over its size: a row per place, a panel per operation, and a curve per side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
_PLOTTED = (("write", 1), ("read", 1), ("write", 16), ("read", 16))  # operations, and how many are in flight
_PANEL = (4.6, 3.8)  # inches


def save_plot(lines: Sequence[Record], path: Path, description: str = "") -> None:
    """Writes a PNG that carries `description`. Only reused buffers are plotted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    places = list(dict.fromkeys((line["place"], line["memory"]) for line in lines))
    columns = [each for each in _PLOTTED if any(_is_of(line, *each) for line in lines)]
    size = (_PANEL[0] * max(1, len(columns)), _PANEL[1] * len(places))
    figure, axes = pyplot.subplots(len(places), max(1, len(columns)), figsize=size, squeeze=False, layout="constrained")
    for place, row in zip(places, axes, strict=True):
        for (op, in_flight), panel in zip(columns, row, strict=True):
            some = [line for line in lines if _is_of(line, op, in_flight)]
            _draw(panel, [line for line in some if (line["place"], line["memory"]) == place])
            panel.set_title(f"{op}, {in_flight} in flight, {place[0]}, {place[1]} memory", fontsize="small")
    axes[0][0].legend(fontsize="small")
    machine = lines[0]["machine"]
    figure.suptitle(machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Description": description} if description else None)
    pyplot.close(figure)


def _is_of(line: Record, op: str, in_flight: int) -> bool:
    return bool(line["op"] == op and line["in_flight"] == in_flight and line["buffers"] == "reused")


def _draw(panel: Any, lines: Sequence[Record]) -> None:
    names = list(dict.fromkeys(side["name"] for line in lines for side in line["sides"]))
    for name in names:
        points = [
            (line["num_bytes"], line["num_bytes"] / side["value"] / 1e3)
            for line in lines
            for side in line["sides"]
            if side["name"] == name and side["value"]
        ]
        if points:
            panel.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xlabel("size (bytes)")
    panel.set_ylabel("GB/s")
    panel.grid(visible=True, alpha=0.3)
