"""What is expected of upstream's tests. In the lists: names, one a line; after a colon the reason where there is one.

On GPUs, whose number opens and closes gates, what passed in committed results, where there are some, has to pass
again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).parent
RESULTS = HERE / "results"


@dataclass(frozen=True)
class Expected:
    """Names, and of what cannot pass the reasons. `is_complete`: nothing else passes."""

    to_pass: set[str]
    not_to_pass: dict[str, str]
    is_complete: bool

    def __post_init__(self) -> None:
        if both := self.to_pass & self.not_to_pass.keys():
            raise ValueError(f"upstream's tests that are listed as passing and as unable to: {', '.join(sorted(both))}")


def read(list_name: str) -> dict[str, str]:
    """Reasons by name."""
    lines = (HERE / f"{list_name}.txt").read_text().splitlines()
    rows = [line.partition(":") for line in lines if line and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in rows}


def must_pass() -> list[str]:
    return [*read("must_pass"), *read("gated")]


def cannot_pass() -> dict[str, str]:
    return read("cannot_pass")


def results_name(torch_version: str, num_gpus: int) -> str:
    minor = ".".join(torch_version.split(".")[:2])
    return f"torch-{minor}-{num_gpus}-gpus.jsonl" if num_gpus else f"torch-{minor}.jsonl"


def committed(num_gpus: int) -> list[dict[str, str]]:
    results = RESULTS / results_name(torch.__version__, num_gpus)
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def expected(num_gpus: int) -> Expected:
    if num_gpus == 0:
        return Expected(set(must_pass()), cannot_pass(), is_complete=True)
    passed = {row["name"] for row in committed(num_gpus) if row["outcome"] == "passed"}
    return Expected(passed, read("cannot_pass_on_gpus"), is_complete=False)
