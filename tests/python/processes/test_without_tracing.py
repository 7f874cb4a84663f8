"""Ranks that may not read each other's memory: no CMA, the same results, and the doctor reports it."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from support import without_tracing
from support.pool import BACKEND
from support.processes import output_of, run_ranks

pytestmark = [
    pytest.mark.skipif(BACKEND != "axon", reason="what axon promises"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter knows the system calls of x86-64"),
]

_PREFIX = [sys.executable, without_tracing.__file__]


def test_results_are_right_at_every_size(tmp_path: Path) -> None:
    for ended in run_ranks("computes_every_size", 2, tmp_path / "store", prefixes=[_PREFIX, _PREFIX]):
        assert ended.code == 0, ended.errors
        assert json.loads(ended.output)["lanes"] == ["ring"]


def test_the_doctor_says_so() -> None:
    command = [*_PREFIX, sys.executable, "-m", "torch_axon.doctor", "--json", "--ranks", "2"]
    (pair,) = json.loads(output_of(command))["pairs"]
    assert pair["host"]["name"] == "rings"
    assert "may not read the other's memory: Operation not permitted" in pair["host"]["obstacle"]["reason"]
    assert "SYS_PTRACE" in pair["host"]["obstacle"]["remedy"]
