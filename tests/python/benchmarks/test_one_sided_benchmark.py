"""The benchmarks of one-sided transfers and of windows measure all operations, and say why sides are missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.processes import output_of

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import baselines  # noqa: E402

RUN = ROOT / "benchmarks" / "one_sided" / "run.py"
SHORT = ["--rounds=1", "--seconds=0.001"]
OPERATIONS = {
    *("idle", "notification", "write", "read", "write + notification"),
    *("write list", "read list", "write plan", "read plan", "prepare", "make"),
}


def records_of(results: Path, arguments: Sequence[str]) -> list[dict[str, Any]]:
    output_of([sys.executable, str(RUN), *SHORT, *arguments, f"--json={results}"])
    return baselines.read(results)


def test_all_operations_are_measured(tmp_path: Path) -> None:
    plot = tmp_path / "results.png"
    sides = ["axon", "axon_polling", "axon_nixl"]
    arguments = [f"--sides={','.join(sides)}", "--sizes=64,100K", "--lists=32x4K", "--in-flight=1,4", f"--plot={plot}"]
    records = records_of(tmp_path / "results.jsonl", arguments)
    assert {record["op"] for record in records} == OPERATIONS
    assert len({baselines.key_of(record) for record in records}) == len(records)
    for record in records:
        assert baselines.benchmark_of(record) == "one_sided"
        assert [side["name"] for side in record["sides"]] == sides
        for side in record["sides"]:
            if record["op"] == "make" and side["name"] != "axon_nixl":
                assert "without a request" in side["failure"]
            else:
                assert side["failure"] is None
                assert side["value"] >= 0
                assert side["calls"] >= record["in_flight"]
                assert bool(side["path"]) == (side["name"] != "axon_nixl")
    kinds = {(each["op"], each["num_bytes"], each["in_flight"], each["buffers"]) for each in records}
    assert {("write", 64, 1, "reused"), ("read", 102400, 4, "reused"), ("write", 102400, 1, "fresh")} <= kinds
    assert ("read list", 32 * 4096, 1, "reused") in kinds
    assert plot.stat().st_size > 0


def test_missing_sides_say_why(tmp_path: Path) -> None:
    arguments = ["--sides=axon,axon_invoke,no_such_side,nccl", "--ops=read,notification", "--sizes=4K", "--in-flight=1"]
    for record in records_of(tmp_path / "results.jsonl", arguments):
        axon, invoke, unknown, nccl = record["sides"]
        assert axon["value"] > 0
        assert (invoke["value"] is None) == (record["op"] == "notification")
        assert "no_such_side" in unknown["failure"]
        assert "allowed: cuda" in nccl["failure"]


def test_windows_are_measured(tmp_path: Path) -> None:
    results = tmp_path / "windows.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    output_of([*command, str(ROOT / "benchmarks" / "windows.py"), "--sizes=8,64K", "--rounds=1", f"--json={results}"])
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(record["op"], record["size"]) for record in records] == [("signal", 8), ("put", 8), ("put", 65536)]
    for record in records:
        assert [side["backend"] for side in record["sides"]] == ["window", "dist.send", "gloo"]
        assert all(side["p50_us"] > 0 for side in record["sides"])
