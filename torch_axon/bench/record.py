"""Records of a result file: one self-contained JSON object per operation and size (`benchmarks/README.md`)."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

L = TypeVar("L")


@dataclass(frozen=True)
class Machine:
    """The machine, the software and the time of a measurement."""

    cpu: str
    cores: int
    kernel: str
    python: str
    torch: str
    commit: str | None
    date: str
    command: str
    gpu: str | None = None  # for CUDA tensors


@dataclass(frozen=True)
class Side:
    """The figures of one backend. Times are those of the slowest rank; `wrong` counts elements of all ranks."""

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
    """A record: one operation at one size, for all sides. The first side is the one under test."""

    op: str
    size: int
    count: int
    dtype: str
    redop: str
    root: int
    ranks: int
    window: int  # number of calls in flight; 1: synchronous
    sides: tuple[Side, ...]
    machine: Machine = field(repr=False)
    device: str = "cpu"
    graph: bool = False  # calls replayed from CUDA graphs
    host: bool = False  # times are those of the host to enqueue a call

    @property
    def judged(self) -> Side:
        return self.sides[0]

    def ratio(self, side: Side) -> float | None:
        """Returns the time of `side` divided by that of the side under test: above 1, the latter is faster."""
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


def describe_machine_of_script(commit: str | None = None) -> Machine:
    """Describes a GPU host, with the command of the script that torchrun has started there."""
    command = f"torchrun --nproc-per-node={os.environ['LOCAL_WORLD_SIZE']} {shlex.join(sys.argv)}"
    return replace(describe_machine("cuda", commit), command=command)


def append_lines(path: Path, lines: "Iterable[DataclassInstance]") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(line)) + "\n" for line in lines)


def read_lines(path: Path) -> list[Line]:
    """Reads a result file.

    Raises:
        ValueError: a line is not a record of this benchmark; the text names file and line
    """
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            lines.append(parse_line(text, Line, Side))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}:{number} is not a record of torch_axon.bench: {error}") from error
    return lines


def parse_line(text: str, line: Callable[..., L], side: Callable[..., object]) -> L:
    """A record of a benchmark that has its own kind of sides."""
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
