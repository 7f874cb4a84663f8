"""The benchmark of calls measures all sides that this environment has, and says why the others are missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.processes import output_of

RUN = Path(__file__).parents[3] / "benchmarks" / "active_message" / "run.py"


def test_sides_are_measured_or_say_why_not(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    command = [sys.executable, str(RUN), "--sides=axon,socket,no_such_side", "--sizes=8,100K", "--in-flight=1,8"]
    output_of([*command, "--turns=1", "--seconds=0.01", f"--json={results}", f"--plot={tmp_path / 'results.png'}"])
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["num_bytes"], line["in_flight"]) for line in lines] == [(8, 1), (8, 8), (102400, 1), (102400, 8)]
    for line in lines:
        axon, stream, unknown = line["sides"]
        assert axon["failure"] is None
        assert stream["failure"] is None
        assert all(side["calls_per_s"] > 0 for side in (axon, stream))
        assert all((side["p50_us"] is not None) == (line["in_flight"] == 1) for side in (axon, stream))
        assert "no_such_side" in unknown["failure"]
    assert (tmp_path / "results.png").stat().st_size > 0
