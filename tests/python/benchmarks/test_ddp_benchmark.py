"""The benchmark of DDP's steps measures each side of each model, whose losses agree, and the hidden communication."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from support.processes import output_of
from torch_axon.bench.contenders import Control

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import ddp_step
import ddp_timeline
from ddp_timeline import Span, Timeline, read_all_reduces, timeline_of

STEP = Path(__file__).parents[3] / "benchmarks" / "ddp_step.py"


def test_every_side_of_every_model_is_measured(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--blocks=2", "--steps=1", f"--trace={tmp_path}/trace%r.json", f"--json={results}"]
    shown = output_of([*launcher, str(STEP), *options])
    assert "communication alone" in shown
    digits, text = (json.loads(line) for line in results.read_text().splitlines())
    assert [digits["model"], text["model"]] == ["digits", "text"]
    for line in (digits, text):
        assert line["steps"] == 2
        assert sum(line["bucket_num_bytes"]) == 4 * line["num_parameters"]
        assert [side["name"] for side in line["sides"]] == ["axon", "gloo", "solo", "none"]
        assert all(side["step_ms"] > 0 for side in line["sides"])
        assert [side["communication_ms"] is None for side in line["sides"]] == [False, False, True, True]
        assert line["largest_loss_difference"] == 0  # a sum of two does not depend on its order
        for side in line["sides"][:2]:
            assert f"hidden {side['hidden_share']:.0%}" in shown
        assert line["timeline"]["buckets"] == len(line["bucket_num_bytes"])
        assert line["timeline"]["in_flight_us"] > 0
    assert len(digits["bucket_num_bytes"]) == 1
    assert text["timeline"]["beside_backward_us"] > 0


def training_of(name: str, blocks: list[list[float]]) -> ddp_step.Training:
    """Returns a training whose steps have taken these numbers of seconds."""
    training = object.__new__(ddp_step.Training)
    training.name, training.blocks = name, blocks
    return training


def test_hidden_is_what_does_not_show_of_communication_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """axon's steps take 2 and 6 ms longer than the steps over groups of one rank in the same rounds."""
    monkeypatch.setattr(ddp_step, "_losses", lambda _: torch.tensor([3.0, 2.0]))
    trainings = [
        training_of("axon", [[0.012, 0.030, 0.011], [0.016, 0.017, 0.001]]),
        training_of("solo", [[0.010, 0.010, 0.020], [0.009, 0.010, 0.010]]),
    ]
    control = cast("Control", SimpleNamespace(maximum=list))  # of one rank
    axon, solo = ddp_step._sides(trainings, {"axon": 0.016}, control)
    assert (axon.name, axon.last_loss) == ("axon", 2.0)
    assert axon.step_ms == pytest.approx(14)
    assert axon.communication_ms == pytest.approx(16)
    assert axon.exposed_ms == pytest.approx(4)
    assert axon.exposed_quartiles_ms == pytest.approx((3, 5))
    assert axon.hidden_share == pytest.approx(0.75)
    assert solo == ddp_step.Side("solo", step_ms=10, communication_ms=None, last_loss=2.0)


def event(phase: str, name: str, ident: int, at: float) -> str:
    return json.dumps({"ph": phase, "name": name, "tid": 1, "id": ident, "ts": at}) + ",\n"


def test_what_lies_before_the_last_bucket_leaves_is_beside_the_backward_pass(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    # when the last one leaves at 150, the first has completed and the second has not
    calls = [(100, 130), (120, 170), (150, 190)]
    events = "".join(
        event("b", "all_reduce", begin, begin) + event("e", "all_reduce", begin, end)
        for begin, end in [(10, 20), *calls, (300, 310)]
    )
    trace.write_text("[\n" + event("b", "barrier", 7, 140) + events + '{"ph":"b","na')
    spans = read_all_reduces(trace, 50)
    assert spans == [Span(*call) for call in [*calls, (300, 310)]]
    assert timeline_of(spans, [Span(90, 200)]) == Timeline(
        buckets=3, ended_beside_backward=1, in_flight_us=120, beside_backward_us=60
    )


def test_a_trace_that_lacks_an_end_is_waited_for_no_longer_than_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ddp_timeline, "_DEADLINE_S", 0.0)
    trace = tmp_path / "trace.json"
    ended = event("b", "all_reduce", 1, 10) + event("e", "all_reduce", 1, 20)
    trace.write_text("[\n" + ended + event("b", "all_reduce", 1, 30))
    with pytest.raises(TimeoutError, match="1 all_reduces without an end, 1 with one"):
        read_all_reduces(trace, 0)
