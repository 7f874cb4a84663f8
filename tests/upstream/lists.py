"""Expected results of upstream's tests. Each test is in one of three lists, on CPUs and on GPUs: passes (must_pass,
gated, passes_beside_rpc; passes_on_gpus), upstream refuses (upstream_refuses[_on_gpus]), or is not supported
(cannot_pass[_on_gpus]).

The lists hold names, one per line. In cannot_pass, a colon and the reason follow the name, then in brackets the test's
error. Tests that upstream refuses are grouped below the line of its source that refuses them (`Gate`).
"""

from __future__ import annotations

import json
import operator
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch

HERE = Path(__file__).parent
RESULTS = HERE / "results"

_COMPARISONS = {"<": operator.lt, ">=": operator.ge, "!=": operator.ne}


@dataclass(frozen=True)
class Host:
    """What the gates depend on: torch's version and, where each rank has its own GPU, how many."""

    torch_version: str = torch.__version__
    num_gpus: int = 0

    def has(self, condition: str) -> bool:
        """`condition`: "torch >= 2.15", "GPUs < 4"."""
        what, comparison, number = condition.split()
        value = {"torch": _version(self.torch_version), "GPUs": (self.num_gpus,)}[what]
        return _COMPARISONS[comparison](value, _version(number))

    @property
    def results(self) -> Path:
        minor = ".".join(map(str, _version(self.torch_version)))
        return RESULTS / (f"torch-{minor}-{self.num_gpus}-gpus.jsonl" if self.num_gpus else f"torch-{minor}.jsonl")


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


@dataclass(frozen=True)
class Gate:
    """A line of upstream's source, the tests that it prevents from running, and torch's message where the line has
    none."""

    line: str
    conditions: list[str] = field(default_factory=list)
    sayings: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def stands_on(self, host: Host) -> bool:
        return all(map(host.has, self.conditions))

    def says(self, why: str) -> bool:
        return bool(why) and (why in self.sayings or why in self.line)

    @property
    def is_for_all(self) -> bool:
        """Returns whether the gate is closed whatever the backend and the machine."""
        return self.line.startswith(("@unittest.skip(", "@skip_but_pass_in_sandcastle(")) or "_if(True," in self.line

    @property
    def wants_more_gpus(self) -> bool:
        return any(condition.startswith("GPUs") for condition in self.conditions)


@dataclass(frozen=True)
class Shortcoming:
    """The reason why a test cannot pass, and its error."""

    reason: str
    saying: str


@dataclass(frozen=True)
class Expected:
    """Names of tests: those that cannot pass map to the reasons, those that upstream refuses to the lines that refuse
    them."""

    to_pass: set[str]
    not_to_pass: dict[str, Shortcoming]
    not_to_run: dict[str, list[Gate]]

    def __post_init__(self) -> None:
        listed = [self.to_pass, self.not_to_pass.keys(), self.not_to_run.keys()]
        if twice := (listed[0] & listed[1]) | (listed[0] & listed[2]) | (listed[1] & listed[2]):
            raise ValueError(f"tests of upstream's are in two of the three lists: {', '.join(sorted(twice))}")


def _lines(list_name: str) -> list[str]:
    lines = (HERE / f"{list_name}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def read_shortcomings(list_name: str) -> dict[str, Shortcoming]:
    shortcomings = {}
    for line in _lines(list_name):
        row = re.fullmatch(r"([\w.]+): (.+) \[(.+)\]", line)
        if row is None:
            raise ValueError(f"{list_name}.txt: not 'name: reason [what it says]' but {line!r}")
        shortcomings[row[1]] = Shortcoming(row[2], row[3])
    return shortcomings


def read_gates(list_name: str) -> list[Gate]:
    gates: list[Gate] = []
    for line in _lines(list_name):
        if line.startswith("@"):
            gates.append(Gate(line))
        elif line.startswith("when: "):
            gates[-1].conditions.append(line.removeprefix("when: "))
        elif line.startswith("says: "):
            gates[-1].sayings.append(line.removeprefix("says: "))
        else:
            gates[-1].names.append(line)
    return gates


def gates(on_gpus: bool) -> list[Gate]:
    return read_gates("upstream_refuses_on_gpus" if on_gpus else "upstream_refuses")


def must_pass() -> list[str]:
    """Returns the expectations on CPUs, which hold whenever our own tests run."""
    return [*_lines("must_pass"), *_lines("gated")]


def cannot_pass() -> dict[str, Shortcoming]:
    return read_shortcomings("cannot_pass")


def committed(host: Host) -> list[dict[str, str]]:
    return [json.loads(line) for line in host.results.read_text().splitlines()] if host.results.exists() else []


def expected(host: Host) -> Expected:
    """Returns the expectations on GPUs.

    A gate that depends on the host takes precedence over the other lists; where more GPUs open it, its tests must pass.
    """
    on_gpus = host.num_gpus > 0
    to_pass = set(_lines("passes_on_gpus") if on_gpus else [*must_pass(), *_lines("passes_beside_rpc")])
    not_to_pass = read_shortcomings("cannot_pass_on_gpus") if on_gpus else cannot_pass()
    not_to_run: dict[str, list[Gate]] = {}
    for gate in gates(on_gpus):
        for name in gate.names:
            if gate.stands_on(host):
                not_to_run.setdefault(name, []).append(gate)
            elif gate.wants_more_gpus:
                to_pass.add(name)
    conditional = {name for name, refusing in not_to_run.items() if all(gate.conditions for gate in refusing)}
    not_to_pass = {name: why for name, why in not_to_pass.items() if name not in conditional}
    return Expected(to_pass - conditional, not_to_pass, not_to_run)
