"""Records what fault tests observe on a device, as a record of a result file; and measures what a process holds."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from fault_case import NUM_RANKS

from support import holdings
from support.gpu_memory import held_kib
from support.holdings import memory_kib
from support.processes import leftovers
from torch_axon.bench.record import describe_machine

Resources = dict[str, int]
# How rounds are summarised, by default by the maximum. Memory: by its typical value. GPU memory: by its minimum, since
# some stays mapped until a peer, too, has closed its handle (docs/cuda.md).
_SUMMED_UP = {"KiB of memory": median, "KiB of GPU memory": min}


@dataclass
class Journal:
    device: str
    matrix_size: int
    num_run: int = 0
    num_passed: int = 0
    notices_s: dict[str, list[float]] = field(default_factory=dict)  # by fault; since the strike or the call
    leaves_s: list[float] = field(default_factory=list)
    num_rounds: int = 0
    round_faults: list[str] = field(default_factory=list)
    growth: Resources = field(default_factory=dict)

    def note(self, fault: str, seconds: float) -> None:
        self.notices_s.setdefault(fault, []).append(seconds)

    def append_to(self, path: Path, commit: str | None = None) -> None:
        machine = describe_machine("cpu" if self.device == "cpu" else "cuda", commit)
        report = {
            "what": "faults",
            "device": self.device,
            "ranks": NUM_RANKS,
            "matrix": {"cases": self.matrix_size, "run": self.num_run, "passed": self.num_passed},
            "rounds": self.num_rounds,
            "round_faults": self.round_faults,
            "growth": self.growth,
            "notice_s": {fault: _summary(all_s) for fault, all_s in self.notices_s.items()},
            "leave_s": _summary(self.leaves_s) if self.leaves_s else None,
            "machine": asdict(replace(machine, command=f"pytest {shlex.join(sys.argv[1:])}")),
        }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")


def _summary(all_s: list[float]) -> dict[str, Any]:
    return {"median": round(median(all_s), 4), "most": round(max(all_s), 4), "of": len(all_s)}


def resources() -> Resources:
    [memory] = memory_kib("VmRSS")
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "abandoned files": len(leftovers()),
        "pieces of shared memory": sum("ucx_shm" in line or "/memfd:axon" in line for line in maps),
        "KiB of memory": memory,
        "KiB of GPU memory": held_kib(),
    }


def growth(history: Sequence[Resources]) -> Resources:
    return holdings.growth(history, _SUMMED_UP, otherwise=max)
