"""Compares the backend with Gloo or NCCL between network namespaces of this host, for whole tables of cases.

    python benchmarks/between_hosts_table.py [--shapes 2x1,2x2,4x1] [--congestion-controls reno,bbr] [--minutes 20]
        [--operations all_reduce,broadcast] [--sizes 8,64K,16M] [--rails auto,0,1 | --transports ucx,rails]
        [--rate 1gbit] [--delay 10ms] [--json FILE]
    python benchmarks/between_hosts_table.py --device cuda [--modes eager,graph] [--vs nccl,nccl:4x4]
        [--results benchmarks/results]

A shape is hosts × ranks per host; on GPUs each rank has one of its own. In mode `graph`, CUDA graphs replay the calls.
A round runs torch_axon.bench once per shape, congestion control, rival, mode, and value of AXON_RAILS or network of
AXON_TRANSPORTS, in an order that rotates. Within a run, the backend and the rival take turns, and results are checked.
`nccl:4x4` is NCCL with four threads of four sockets each. Rounds are repeated until the time is up; the first one
always ends. A figure is the median over the rounds: the time in µs and, following "×", how many times as long the rival
takes; "/" precedes the number of rounds. Cases that are slower than the rival are listed again at the end, and the
status is then 1. `--results` writes a result file for each setting, with one line per case: that of the round whose
ratio is the median. Needs root, and removes the namespaces at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_OPERATIONS = "all_reduce,reduce,broadcast,all_gather,reduce_scatter,gather,scatter,all_to_all,sendrecv,barrier"
_SIZES = "8,1K,8K,64K,256K,1M,4M,16M,128M"
# By device.
_SHAPES = {"cpu": "2x1,2x2,4x1", "cuda": "2x1,2x2"}
_RIVALS = {"cpu": "gloo", "cuda": "nccl"}
_DTYPES = {"cpu": "float32", "cuda": "bfloat16"}
_RIVAL = re.compile(r"gloo|nccl(:(?P<threads>\d+)x(?P<sockets>\d+))?")
_BETWEEN_HOSTS = Path("benchmarks/between_hosts.py")
_ROOT = Path(__file__).parents[1]
_MOST_RUN_S = 1800

Record = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """One run of torch_axon.bench."""

    shape: str
    control: str
    rails: str
    rival: str
    network: str = ""  # of AXON_TRANSPORTS; empty: the default
    mode: str = "eager"

    @property
    def column(self) -> str:
        """Returns what the settings of one row differ in."""
        return self.network or f"rails {self.rails}"

    def variables(self) -> dict[str, str]:
        """Returns the environment variables by which it differs from others."""
        found = {"AXON_RAILS": self.rails}
        if self.network:
            found["AXON_TRANSPORTS"] = f"{self.network},rings,cma,cuda"
        match = _RIVAL.fullmatch(self.rival)
        if match and match["threads"]:
            found |= {"NCCL_SOCKET_NTHREADS": match["threads"], "NCCL_NSOCKS_PERTHREAD": match["sockets"]}
        return found

    def arguments(self, own: argparse.Namespace) -> list[str]:
        """Returns those of between_hosts.py."""
        num_hosts, num_local = self.shape.split("x")
        found = ["--hosts", num_hosts, "--ranks-per-host", num_local, "--congestion-control", self.control]
        for option in ("rate", "delay"):
            found += [f"--{option}", getattr(own, option)] if getattr(own, option) else []
        found += [own.operations, "--device", own.device, "--vs", self.rival.partition(":")[0], "--dtype", own.dtype]
        found += ["--sizes", own.sizes, "--seconds", str(own.seconds), "--blocks", "4"]
        found += ["--graph"] if self.mode == "graph" else []
        return [*found, "--commit", own.commit] if own.commit else found

    def run(self, own: argparse.Namespace) -> list[Record]:
        command = [str(_BETWEEN_HOSTS), *self.arguments(own)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "records.jsonl"
            subprocess.run(
                [sys.executable, *command, "--json", str(path)],
                cwd=_ROOT,
                env=os.environ | self.variables(),
                stdout=subprocess.DEVNULL,
                stderr=None if own.verbose else subprocess.DEVNULL,
                timeout=_MOST_RUN_S,
                check=True,
            )
            records: list[Record] = [json.loads(line) for line in path.read_text().splitlines()]
        variables = [f"{name}={value}" for name, value in self.variables().items()]
        for record in records:
            record["machine"]["command"] = shlex.join([*variables, "python", *command])
        return records

    def result_name(self, gpu: str) -> str:
        """Returns the name of its result file: between_hosts_reno_2hosts_1xh200.jsonl."""
        num_hosts, num_local = self.shape.split("x")
        model = re.search(r"[A-Z]+\d+", gpu)
        parts = ["between_hosts", self.control]
        parts += [] if self.rails == "auto" else [f"rails_{self.rails}"]
        parts += [self.network] if self.network else []
        parts += [f"{num_hosts}hosts", f"{num_local}x{(model[0] if model else gpu).lower()}"]
        parts += [] if self.mode == "eager" else [self.mode]
        parts += [] if self.rival == "nccl" else [self.rival.replace(":", "_")]
        return "_".join(parts) + ".jsonl"


@dataclass
class Case:
    """An operation at a size in a setting: what each round measured."""

    records: list[Record] = field(default_factory=list)

    @property
    def time_us(self) -> float:
        return statistics.median(float(record["sides"][0]["p50_us"]) for record in self.records)

    @property
    def ratio(self) -> float:
        return statistics.median(map(_ratio, self.records))

    @property
    def typical(self) -> Record:
        return sorted(self.records, key=_ratio)[(len(self.records) - 1) // 2]


def _ratio(record: Record) -> float:
    axon, rival = record["sides"]
    return float(rival["p50_us"]) / float(axon["p50_us"])


Cases = dict[tuple[Setting, str, int], Case]


def _measure(settings: list[Setting], own: argparse.Namespace) -> Cases:
    cases: Cases = {}
    deadline = time.monotonic() + own.minutes * 60
    longest_s = 0.0
    for count in itertools.count():
        setting = settings[(count + count // len(settings)) % len(settings)]
        begun = time.monotonic()
        if count >= len(settings) and begun + longest_s > deadline:
            return cases
        for record in setting.run(own):
            axon, rival = record["sides"]
            if axon["failure"] or rival["failure"] or axon["wrong"]:
                raise RuntimeError(f"{setting}: {record}")
            cases.setdefault((setting, record["op"], record["size"]), Case()).records.append(record)
        longest_s = max(longest_s, time.monotonic() - begun)
        print(f"# {setting} took {time.monotonic() - begun:.0f} s", file=sys.stderr)
    raise AssertionError("unreachable")


def _print_table(cases: Cases, own: argparse.Namespace) -> None:
    columns = list(dict.fromkeys(key.column for key, _, _ in cases))
    by_row: dict[tuple[str, str, str, str, str, int], dict[str, Case]] = {}
    for (key, operation, size), case in cases.items():
        by_row.setdefault((key.shape, key.control, key.rival, key.mode, operation, size), {})[key.column] = case
    print(
        f"{'shape':6}{'control':9}{'rival':10}{'mode':7}{'operation':16}{'bytes':>11}",
        *(f"{column:>22}" for column in columns),
    )
    for (shape, control, rival, mode, operation, size), row in by_row.items():
        figures = (
            f"{row[column].time_us:12.1f} × {row[column].ratio:5.2f} /{len(row[column].records)}" for column in columns
        )
        print(
            f"{shape:6}{control:9}{rival:10}{mode:7}{operation:16}{size:11}", *(f"{figure:>22}" for figure in figures)
        )
        if own.json:
            record: Record = {"shape": shape, "control": control, "rival": rival, "mode": mode}
            record |= {"operation": operation, "size": size}
            record |= {"median_us": {column: row[column].time_us for column in columns}}
            record |= {"ratio": {column: row[column].ratio for column in columns}}
            record |= {"rounds": len(row[columns[0]].records), "num_cores": os.cpu_count()}
            record |= {"rate": own.rate, "delay": own.delay, "device": own.device}
            with open(own.json, "a") as file:
                file.write(json.dumps(record) + "\n")


def _write_results(cases: Cases, folder: Path) -> None:
    lines: dict[str, list[str]] = {}
    for (setting, _, _), case in cases.items():
        name = setting.result_name(case.typical["machine"]["gpu"])
        lines.setdefault(name, []).append(json.dumps(case.typical) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in lines.items():
        (folder / name).write_text("".join(texts), encoding="utf-8")


def _rivals(text: str) -> list[str]:
    rivals = text.split(",")
    for rival in rivals:
        if not _RIVAL.fullmatch(rival):
            raise argparse.ArgumentTypeError(f"{rival!r} is not gloo, nccl or nccl:THREADSxSOCKETS")
    return rivals


def _modes(text: str) -> list[str]:
    modes = text.split(",")
    for mode in modes:
        if mode not in ("eager", "graph"):
            raise argparse.ArgumentTypeError(f"{mode!r} is not eager or graph")
    return modes


def parse(command_line: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--vs", type=_rivals, help="gloo, nccl or nccl:4x4, separated by commas (default: by the device)"
    )
    parser.add_argument("--modes", type=_modes, default=["eager"], help="eager or graph, separated by commas")
    parser.add_argument("--shapes", help="hosts x ranks per host, separated by commas")
    parser.add_argument("--congestion-controls", default="reno,bbr")
    parser.add_argument("--operations", default=_OPERATIONS)
    parser.add_argument("--sizes", default=_SIZES)
    parser.add_argument("--dtype", help="default: float32 on CPUs, bfloat16 on GPUs")
    parser.add_argument("--rails", default="auto", help="values of AXON_RAILS to compare, separated by commas")
    parser.add_argument("--transports", default="", help="networks of AXON_TRANSPORTS to compare, separated by commas")
    parser.add_argument("--minutes", type=float, default=20, help="no round begins that would not end within this time")
    parser.add_argument("--seconds", type=float, default=0.1, help="per side, operation and size in a round")
    parser.add_argument("--rate", help="of the link, in tc's notation")
    parser.add_argument("--delay", help="of each host's packets, in tc's notation; needs a kernel with netem")
    parser.add_argument("--json", help="file to which one line per case is appended")
    parser.add_argument("--results", type=Path, help="folder of result files, which are replaced; with --device cuda")
    parser.add_argument("--commit", help="that the result files name (default: git's)")
    parser.add_argument("--verbose", action="store_true", help="show what the ranks write to standard error")
    own = parser.parse_args(command_line)
    if own.results and own.device != "cuda":
        parser.error("argument --results: needs --device cuda, whose GPU names the files")
    if "graph" in own.modes and own.device != "cuda":
        parser.error("argument --modes: graph needs --device cuda")
    if own.transports and "," in own.rails:
        parser.error("argument --transports: not together with several values of --rails")
    own.vs = own.vs or [_RIVALS[own.device]]
    own.shapes = own.shapes or _SHAPES[own.device]
    own.dtype = own.dtype or _DTYPES[own.device]
    return own


def settings_of(own: argparse.Namespace) -> list[Setting]:
    axes = (
        own.shapes.split(","),
        own.congestion_controls.split(","),
        own.rails.split(","),
        own.vs,
        own.transports.split(","),
        own.modes,
    )
    return [Setting(*each) for each in itertools.product(*axes)]


def main() -> int:
    own = parse(sys.argv[1:])
    cases = _measure(settings_of(own), own)
    _print_table(cases, own)
    if own.results:
        _write_results(cases, own.results)
    slower = [(key, case) for key, case in cases.items() if case.ratio < 1]
    print(f"{len(slower)} of {len(cases)} cases are slower than {' or '.join(own.vs)}")
    for (setting, operation, size), case in sorted(slower, key=lambda each: each[1].ratio):
        name = f"{setting.shape} {setting.control} {setting.column} {setting.mode} {operation} {size}"
        print(f"  {name}: × {case.ratio:.2f} {setting.rival}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
