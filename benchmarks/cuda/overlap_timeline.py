"""Plots a trace of overlap.py: the activity of one GPU's streams during the last call of each operation.

python benchmarks/cuda/overlap_timeline.py overlap_trace.json overlap_timeline.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt

KINDS = {"meeting": "tab:red", "product": "tab:blue", "copy": "tab:orange", "other": "tab:gray"}


@dataclass(frozen=True)
class Activity:
    """An activity of a stream; times in microseconds."""

    begin: float
    duration: float
    stream: int
    kind: str

    @property
    def end(self) -> float:
        return self.begin + self.duration


def read(path: Path) -> list[Activity]:
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    activities = [
        Activity(event["ts"], event["dur"], event["args"]["stream"], _kind_of(event))
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy")
    ]
    return sorted(activities, key=lambda activity: activity.begin)


def _kind_of(event: dict[str, str]) -> str:
    if event["cat"] == "gpu_memcpy":
        return "copy"
    if "ll128_exchange_kernel" in event["name"]:
        return "meeting"
    is_product = any(part in event["name"] for part in ("nvjet", "gemm", "cutlass"))
    return "product" if is_product else "other"


def last_calls(activities: Sequence[Activity]) -> tuple[list[Activity], list[Activity]]:
    """Finds the last call of all_gather_matmul, which begins with a barrier, and of matmul_reduce_scatter, with a
    product first.
    """
    meetings = [activity.begin for activity in activities if activity.kind == "meeting"]
    gathering, scattering = meetings[len(meetings) // 2 - 1], meetings[-1]
    first_scattering = meetings[len(meetings) // 2]
    before = [activity for activity in activities if activity.kind == "product" and activity.begin < first_scattering]
    begin = max(activity.begin for activity in activities if activity.kind == "product" and activity.begin < scattering)
    return (
        [activity for activity in activities if gathering <= activity.begin < before[-1].begin],
        [activity for activity in activities if begin <= activity.begin],
    )


def save(path: Path, chosen: Sequence[tuple[str, Sequence[Activity]]]) -> None:
    figure, axes = plt.subplots(len(chosen), figsize=(10, 1.7 * len(chosen)), layout="constrained", squeeze=False)
    for (title, activities), ax in zip(chosen, axes.flat, strict=True):
        streams = sorted({activity.stream for activity in activities})
        begin = activities[0].begin
        for activity in activities:
            bar = (activity.begin - begin, activity.duration)
            ax.broken_barh([bar], (streams.index(activity.stream), 0.8), color=KINDS[activity.kind], edgecolor="white")
        ax.set_yticks([index + 0.4 for index in range(len(streams))], [f"stream {stream}" for stream in streams])
        ax.set(title=title, xlabel="µs")
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in KINDS.values()]
    figure.legend(handles, KINDS, ncols=len(KINDS), loc="outside upper right")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    gather, scatter = last_calls(read(arguments.trace))
    save(arguments.picture, [("all_gather_matmul", gather), ("matmul_reduce_scatter", scatter)])


if __name__ == "__main__":
    main()
