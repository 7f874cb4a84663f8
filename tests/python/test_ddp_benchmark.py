"""The benchmark of DDP's steps measures each side of each model, whose losses agree."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from processes import output_of

STEP = Path(__file__).parents[2] / "benchmarks" / "ddp_step.py"


def test_every_side_of_every_model_is_measured(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    shown = output_of([*launcher, str(STEP), "--blocks=2", "--steps=1", f"--json={results}"])
    assert "communication alone" in shown
    digits, text = (json.loads(line) for line in results.read_text().splitlines())
    assert [digits["model"], text["model"]] == ["digits", "text"]
    for line in (digits, text):
        assert line["steps"] == 2
        assert sum(line["bucket_num_bytes"]) == 4 * line["num_parameters"]
        assert [side["name"] for side in line["sides"]] == ["axon", "gloo", "none"]
        assert all(side["step_ms"] > 0 for side in line["sides"])
        assert [side["communication_ms"] is None for side in line["sides"]] == [False, False, True]
        assert line["largest_loss_difference"] == 0  # a sum of two does not depend on its order
