"""Lines of a result file: one JSON object an operation and size, complete in itself (`benchmarks/README.md`)."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

L = TypeVar("L")


@dataclass(frozen=True)
class Machine:
    """Where, with what and how a line was measured."""

    cpu: str
    cores: int
    kernel: str
    python: str
    torch: str
    commit: str | None
    date: str
    command: str
    gpu: str | None = None  # of CUDA tensors


@dataclass(frozen=True)
class Side:
    """One backend's figures on a line; times are of the slowest rank, `wrong` counts elements over all ranks."""

    backend: str
    p50_us: float = 0.0
    p99_us: float = 0.0
    algbw_gbs: float = 0.0
    busbw_gbs: float = 0.0
    calls: int = 0
    batch: int = 0
    wrong: int | None = None  # None: the backend moves no data
    failure: str | None = None  # why there are no figures

    @property
    def measured(self) -> bool:
        return self.failure is None


@dataclass(frozen=True)
class Line:
    """One line of the table: an operation at a size, on all sides; the first side is the one judged."""

    op: str
    size: int
    count: int
    dtype: str
    redop: str
    root: int
    ranks: int
    window: int  # calls in flight; 1 is synchronous
    sides: tuple[Side, ...]
    machine: Machine = field(repr=False)
    device: str = "cpu"
    graph: bool = False  # calls replayed from CUDA graphs
    host: bool = False  # times are those of the host alone, to enqueue a call

    @property
    def judged(self) -> Side:
        return self.sides[0]

    def ratio(self, side: Side) -> float | None:
        """How many times as long as the judged side `side` takes: above 1 the judged side is ahead."""
        if side is self.judged or not (side.measured and self.judged.measured and self.judged.p50_us):
            return None
        return side.p50_us / self.judged.p50_us


def describe_machine(device: str = "cpu", commit: str | None = None) -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release().partition("-")[0],
        python=platform.python_version(),
        torch=torch.__version__,
        commit=commit or _commit(),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=f"torchrun --nproc-per-node={os.environ.get('LOCAL_WORLD_SIZE', '?')} -m torch_axon.bench "
        + shlex.join(sys.argv[1:]),
        gpu=torch.cuda.get_device_name() if device == "cuda" else None,
    )


def append_lines(path: Path, lines: "Iterable[DataclassInstance]") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(line)) + "\n" for line in lines)


def read_lines(path: Path) -> list[Line]:
    """Raises ValueError naming file and line where a line is none of ours."""
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            lines.append(parse_line(text, Line, Side))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}:{number} is no line of torch_axon.bench: {error}") from error
    return lines


def parse_line(text: str, line: Callable[..., L], side: Callable[..., object]) -> L:
    """A line of a benchmark with sides of its own, on a machine."""
    fields = json.loads(text)
    fields["sides"] = tuple(side(**each) for each in fields["sides"])
    fields["machine"] = Machine(**fields["machine"])
    return line(**fields)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--tags"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
