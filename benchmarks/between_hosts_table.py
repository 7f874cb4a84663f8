"""Compares the backend with Gloo between network namespaces of this host, for whole tables of cases.

    python benchmarks/between_hosts_table.py [--shapes 2x1,2x2,4x1] [--congestion-controls reno,bbr] [--minutes 20]
        [--operations all_reduce,broadcast] [--sizes 8,64K,16M] [--rails auto,0,1] [--rate 1gbit] [--delay 10ms]
        [--json FILE]

A shape is hosts × ranks per host. A round runs torch_axon.bench once per shape, congestion control and value of
AXON_RAILS, in an order that rotates. Within a run, the backend and Gloo take turns, and results are checked. Rounds are
repeated until the time is up; the first one always ends. A figure is the median over the rounds: the time in µs and,
following "×", how many times as long Gloo takes; "/" precedes the number of rounds. Cases that are slower than Gloo are
listed again at the end, and the status is then 1. Needs root, and removes the namespaces at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

_OPERATIONS = "all_reduce,reduce,broadcast,all_gather,reduce_scatter,gather,scatter,all_to_all,sendrecv,barrier"
_SIZES = "8,1K,8K,64K,256K,1M,4M,16M,128M"
_BETWEEN_HOSTS = Path(__file__).with_name("between_hosts.py")
_MOST_RUN_S = 1800


@dataclass(frozen=True)
class Setting:
    """One run of torch_axon.bench."""

    shape: str
    control: str
    rails: str

    def run(self, own: argparse.Namespace) -> list[dict[str, object]]:
        num_hosts, num_local = self.shape.split("x")
        with tempfile.TemporaryDirectory() as folder:
            records = Path(folder) / "records.jsonl"
            command = [sys.executable, str(_BETWEEN_HOSTS), "--hosts", num_hosts, "--ranks-per-host", num_local]
            command += ["--congestion-control", self.control]
            for option in ("rate", "delay"):
                command += [f"--{option}", getattr(own, option)] if getattr(own, option) else []
            command += [own.operations, "--sizes", own.sizes, "--seconds", str(own.seconds), "--blocks", "4"]
            environment = os.environ | {"AXON_RAILS": self.rails}
            subprocess.run(
                [*command, "--json", str(records)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=None if own.verbose else subprocess.DEVNULL,
                timeout=_MOST_RUN_S,
                check=True,
            )
            return [json.loads(line) for line in records.read_text().splitlines()]


@dataclass
class Case:
    """An operation at a size in a setting: what each round measured."""

    times_us: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def time_us(self) -> float:
        return statistics.median(self.times_us)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


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
            axon, gloo = record["sides"]  # type: ignore[misc]
            if axon["failure"] or gloo["failure"] or axon["wrong"]:
                raise RuntimeError(f"{setting}: {record}")
            key = (setting, str(record["op"]), int(str(record["size"])))
            case = cases.setdefault(key, Case())
            case.times_us.append(axon["p50_us"])
            case.ratios.append(gloo["p50_us"] / axon["p50_us"])
        longest_s = max(longest_s, time.monotonic() - begun)
        print(f"# {setting} took {time.monotonic() - begun:.0f} s", file=sys.stderr)
    raise AssertionError("unreachable")


def _print_table(cases: Cases, own: argparse.Namespace) -> None:
    rails = own.rails.split(",")
    print(f"{'shape':6}{'control':9}{'operation':16}{'bytes':>11}", *(f"{f'rails {each}':>22}" for each in rails))
    rows = dict.fromkeys((key.shape, key.control, operation, size) for key, operation, size in cases)
    for shape, control, operation, size in rows:
        row = [cases[Setting(shape, control, each), operation, size] for each in rails]
        figures = (f"{case.time_us:12.0f} × {case.ratio:5.2f} /{len(case.ratios)}" for case in row)
        print(f"{shape:6}{control:9}{operation:16}{size:11}", *(f"{figure:>22}" for figure in figures))
        if own.json:
            record = {"shape": shape, "control": control, "operation": operation, "size": size}
            record |= {"median_us": {each: case.time_us for each, case in zip(rails, row, strict=True)}}
            record |= {"gloo_ratio": {each: case.ratio for each, case in zip(rails, row, strict=True)}}
            record |= {"rounds": len(row[0].ratios), "num_cores": os.cpu_count(), "rate": own.rate, "delay": own.delay}
            with open(own.json, "a") as file:
                file.write(json.dumps(record) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="2x1,2x2,4x1", help="hosts x ranks per host, separated by commas")
    parser.add_argument("--congestion-controls", default="reno,bbr")
    parser.add_argument("--operations", default=_OPERATIONS)
    parser.add_argument("--sizes", default=_SIZES)
    parser.add_argument("--rails", default="auto", help="values of AXON_RAILS to compare, separated by commas")
    parser.add_argument("--minutes", type=float, default=20, help="no round begins that would not end within this time")
    parser.add_argument("--seconds", type=float, default=0.1, help="per side, operation and size in a round")
    parser.add_argument("--rate", help="of the link, in tc's notation")
    parser.add_argument("--delay", help="of each host's packets, in tc's notation; needs a kernel with netem")
    parser.add_argument("--json", help="file to which one line per case is appended")
    parser.add_argument("--verbose", action="store_true", help="show what the ranks write to standard error")
    own = parser.parse_args()
    axes = (own.shapes.split(","), own.congestion_controls.split(","), own.rails.split(","))
    cases = _measure([Setting(*each) for each in itertools.product(*axes)], own)
    _print_table(cases, own)
    slower = [(key, case) for key, case in cases.items() if case.ratio < 1]
    print(f"{len(slower)} of {len(cases)} cases are slower than Gloo")
    for (setting, operation, size), case in sorted(slower, key=lambda each: each[1].ratio):
        print(f"  {setting.shape} {setting.control} rails {setting.rails} {operation} {size}: × {case.ratio:.2f}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
