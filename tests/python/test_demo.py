"""`make demo` in small."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from pool import BACKEND

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from digits_ddp import largest_relative_difference  # noqa: E402 the examples are scripts, not a package


def run_demo(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--backends", BACKEND, "gloo", "--output", str(output)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=200, check=False)


def test_demo_trains_to_the_same_losses_over_both_backends(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--epochs", "3", "--accuracy", "0.8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"losses of {BACKEND} and gloo: identical to the last digit" in done.stdout
    ours, gloo = json.loads((tmp_path / "demo.json").read_text())
    assert ours["losses"] == gloo["losses"]
    assert ours["losses"][-1] < ours["losses"][0] / 4
    assert min(ours["step_ms"], gloo["step_ms"]) > 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_demo_fails_when_the_model_has_not_learned(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--epochs", "1", "--accuracy", "1.01")
    assert done.returncode != 0
    assert "is below 101.00%" in done.stderr


@pytest.mark.parametrize(
    ("left", "right", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 1.0], 0.5),
        ([0.0], [0.0], 0.0),
        ([1.0], [math.nan], math.inf),
        ([math.inf], [math.inf], math.inf),
    ],
)
def test_difference_of_losses_is_relative_to_the_larger(
    left: list[float], right: list[float], difference: float
) -> None:
    assert largest_relative_difference(left, right) == difference
