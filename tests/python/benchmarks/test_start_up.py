"""The benchmark of a job's start measures both backends, and what their processes hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.processes import output_of

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import baselines  # noqa: E402


def test_both_backends_are_measured(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    command = [sys.executable, str(ROOT / "benchmarks" / "start_up.py"), "--ranks=4", "--rounds=1", "--loaded"]
    shown = output_of([*command, f"--json={results}"])
    [record] = baselines.read(results)
    assert baselines.benchmark_of(record) == "start_up"
    assert baselines.key_of(record) == ("start_up", 4, True)
    assert [side["backend"] for side in record["sides"]] == ["axon", "gloo"]
    for side in record["sides"]:
        assert 0 < side["init_ms"] < side["first_all_reduce_ms"]
        assert side["store_ms"] > 0
        assert side["group_of_8_ms"] > 0  # of the four that there are
        assert side["group_of_all_ms"] > 0
        assert 0 < side["private_kib"] <= side["most_private_kib"]
        assert side["descriptors"] > 0
        assert side["threads"] > 0
        assert len(side["rounds"]) == 1
        assert f"{side['init_ms']:.1f}" in shown
    assert {figure.name for figure in baselines.figures_of(record)} >= {"init_ms", "group_of_all_ms", "private_kib"}
    assert json.loads(results.read_text()) == record
