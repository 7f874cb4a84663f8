"""Runs a small `make demo`."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from support.pool import BACKEND

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))

from digits_ddp import Outcome, conclude, largest_relative_difference  # noqa: E402 scripts are no package

GOOD = Outcome(backend="axon", accuracy=0.98, step_ms=4.0, losses=[2.0, 1.0])


def run_demo(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--backends", BACKEND, "gloo", "--output", str(output)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=200, check=False)


def verdict(output: Path, outcomes: list[Outcome], num_ranks: int = 2) -> int:
    return conclude(outcomes, num_ranks, argparse.Namespace(accuracy=0.95, output=output))


def test_demo_trains_to_the_same_losses_over_both_backends(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--epochs", "3", "--accuracy", "0.8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"losses of {BACKEND} and gloo: identical to the last digit" in done.stdout
    ours, gloo = json.loads((tmp_path / "demo.json").read_text())
    assert ours["losses"] == gloo["losses"]
    assert ours["losses"][-1] < ours["losses"][0] / 4
    assert min(ours["step_ms"], gloo["step_ms"]) > 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_demo_fails_when_a_model_has_not_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict(tmp_path, [GOOD, replace(GOOD, backend="gloo", accuracy=0.5)]) == 1
    assert "gloo: accuracy 50.00% is below 95.00%" in capsys.readouterr().err


def test_demo_fails_when_the_losses_of_two_ranks_differ_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nearly = replace(GOOD, backend="gloo", losses=[2.0, 1.0 + 1e-6])
    assert verdict(tmp_path, [GOOD, nearly]) == 1
    assert "losses of axon and gloo differ by 1e-06, more than 0" in capsys.readouterr().err
    assert verdict(tmp_path, [GOOD, nearly], num_ranks=4) == 0


def test_demo_states_that_losses_are_identical(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict(tmp_path, [GOOD, replace(GOOD, backend="gloo")]) == 0
    assert "identical to the last digit over 2 steps (bound 0)" in capsys.readouterr().out


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
