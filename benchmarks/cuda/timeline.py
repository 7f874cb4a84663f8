"""Records when the kernels of a program ran on each rank's GPU, and plots the last of them.

    torchrun --nproc-per-node 2 benchmarks/cuda/timeline.py record FOLDER examples/product_sent_by_tiles.py --size 4096
    python benchmarks/cuda/timeline.py plot FOLDER PICTURE --title "…" --at start_kernel --microseconds 900

`record` runs the program under torch's profiler, and writes one file for each rank. `plot` begins shortly before one
of rank 0's kernels whose name contains `--at`: the last one, or that with `--later` others after it. The ranks' times
are those of one host's clock.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

MOST_KERNELS = 20_000  # of each rank, the last ones
COLOURS = {"product": "tab:blue", "copies and sends": "tab:orange", "starts and waits": "tab:red", "other": "tab:gray"}
_KINDS = {
    "copies and sends": ("ready_kernel", "send_kernel", "send_ll", "Memcpy", "exchange_kernel", "move_slot"),
    "starts and waits": ("start_kernel", "wait_kernel", "wait_ll", "arrived_kernel"),
    "product": ("gemm", "multiply", "cutlass"),
}


@dataclass(frozen=True)
class Kernel:
    """What ran on a stream of a rank's GPU; times in microseconds."""

    rank: int
    stream: int
    begin: float
    duration: float
    name: str

    @property
    def end(self) -> float:
        return self.begin + self.duration

    @property
    def kind(self) -> str:
        return next((kind for kind, parts in _KINDS.items() if any(part in self.name for part in parts)), "other")


def record(folder: Path, program: str, arguments: list[str]) -> None:
    """Runs the program, and writes the kernels of this rank."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        runpy.run_path(program, run_name="__main__")
    events = profiler.profiler.kineto_results.events()
    on_device = [event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
    kernels = [(each.device_resource_id(), each.start_ns(), each.duration_ns(), each.name()) for each in on_device]
    kernels.sort(key=lambda kernel: kernel[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(kernels[-MOST_KERNELS:]))


def read(folder: Path) -> list[Kernel]:
    """Returns the kernels of all ranks, in the order in which they began."""
    kernels = [
        Kernel(int(path.stem.removeprefix("rank")), stream, begin / 1000, duration / 1000, name)
        for path in folder.glob("rank*.json")
        for stream, begin, duration, name in json.loads(path.read_text())
    ]
    return sorted(kernels, key=lambda kernel: kernel.begin)


def window_of(kernels: list[Kernel], at: str, later: int, microseconds: float) -> tuple[float, float]:
    """Returns the begin and the end of what is plotted."""
    begins = [kernel.begin for kernel in kernels if kernel.rank == 0 and at in kernel.name]
    begin = begins[-1 - later] - microseconds / 20
    return begin, begin + microseconds


def plot(kernels: list[Kernel], begin: float, end: float, title: str, picture: Path) -> None:
    """Draws a bar for each kernel: a row for each stream of each rank."""
    import matplotlib.pyplot as plt

    shown = [kernel for kernel in kernels if kernel.end > begin and kernel.begin < end]
    rows = sorted({(kernel.rank, kernel.stream) for kernel in shown}, reverse=True)
    figure, ax = plt.subplots(figsize=(10, 1.2 + 0.45 * len(rows)), layout="constrained")
    for kernel in shown:
        row = rows.index((kernel.rank, kernel.stream))
        ax.broken_barh([(kernel.begin - begin, kernel.duration)], (row, 0.8), color=COLOURS[kernel.kind], linewidth=0)
    ax.set_yticks([row + 0.4 for row in range(len(rows))], [f"rank {rank}, stream {stream}" for rank, stream in rows])
    ax.set(title=title, xlabel="µs", xlim=(0, end - begin))
    kinds = [kind for kind in COLOURS if any(kernel.kind == kind for kernel in shown)]
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[kind]) for kind in kinds]
    figure.legend(handles, kinds, ncols=len(kinds), loc="outside lower center")
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("program")
    recording.add_argument("arguments", nargs=argparse.REMAINDER)
    plotting = commands.add_parser("plot")
    plotting.add_argument("folder", type=Path)
    plotting.add_argument("picture", type=Path)
    plotting.add_argument("--title", default="")
    plotting.add_argument("--at", required=True, help="a part of the name of the kernel near which the picture begins")
    plotting.add_argument("--later", type=int, default=0, help="how many such kernels follow it (default: 0)")
    plotting.add_argument("--microseconds", type=float, default=1000, help="the length of the picture (default: 1000)")
    chosen = parser.parse_args()
    if chosen.command == "record":
        record(chosen.folder, chosen.program, chosen.arguments)
    else:
        kernels = read(chosen.folder)
        plot(kernels, *window_of(kernels, chosen.at, chosen.later, chosen.microseconds), chosen.title, chosen.picture)


if __name__ == "__main__":
    main()
