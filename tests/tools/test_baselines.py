"""The committed results hold one named record per measurement; a new run is compared with them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import baselines  # noqa: E402
import compare  # noqa: E402

PATHS = sorted(baselines.RESULTS.glob("*.jsonl"))
LOGS = {"fuzz.jsonl", "instructions.jsonl", "soak.jsonl"}  # of all machines
SWEEPS = re.compile(r"(kernels|tiles)_")
NAME = re.compile(
    r"[a-z0-9_]+_(\d+xh[12]00|\d+(-\d+)?ranks_(epyc_2core|xeon_2core|h100)|epyc_2core|xeon_32core)\.jsonl"
)
BASELINES = [
    path for path in PATHS if path.name not in LOGS and not SWEEPS.match(path.name) and "faults" not in path.name
]


@pytest.mark.parametrize("path", BASELINES, ids=lambda path: path.name)
def test_baseline_has_one_line_for_each_measurement_on_one_machine(path: Path) -> None:
    records = baselines.read(path)
    assert len({baselines.key_of(record) for record in records}) == len(records)
    assert len({baselines.machine_of(record) for record in records}) == 1
    assert all(record["machine"]["commit"] and record["machine"]["date"] for record in records)


@pytest.mark.parametrize("path", [path for path in PATHS if path.name not in LOGS], ids=lambda path: path.name)
def test_name_says_benchmark_machine_and_ranks(path: Path) -> None:
    assert NAME.fullmatch(path.name)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_result_is_referred_to(path: Path) -> None:
    listed = subprocess.run(
        ["git", "grep", "-lF", path.name, "--", "csrc", "docs", "README.md", "Makefile", "benchmarks/README.md"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode == 128:
        pytest.skip("the sources are outside a git repository")
    assert listed.stdout


def test_results_that_are_referred_to_exist() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "benchmarks" / "README.md"]
    pages += [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".cpp", ".hpp", ".cu", ".cuh")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    named = set(re.findall(r"(?<![/\w])(?:benchmarks/)?results/([a-z0-9_-]+\.(?:jsonl|png))", text)) - {"name.jsonl"}
    assert not {name for name in named if not (baselines.RESULTS / name).exists()}


def line(size: int, axon_us: float, gloo_us: float, **changes: Any) -> dict[str, Any]:
    sides = [{"backend": name, "p50_us": us, "failure": None} for name, us in (("axon", axon_us), ("gloo", gloo_us))]
    machine = {"cpu": "Model 9", "cores": 2, "gpu": None, "commit": "abc", "date": "2026-01-02"}
    return {"op": "all_reduce", "size": size, "ranks": 2, "window": 1, "sides": sides, "machine": machine, **changes}


def verdicts(new: list[dict[str, Any]], old: list[dict[str, Any]]) -> list[bool]:
    return [comparison.is_slower(1.1) for comparison in compare.compare(new, old)]


@pytest.mark.parametrize(
    ("new", "slower"),
    [
        (line(8, 10.5, 100), [False]),
        (line(8, 12, 100), [True]),
        (line(8, 12, 120), [False]),  # the machine is slower: so is the other side
        (line(8, 12, 80), [True]),
        (line(8, 12, 100, ranks=4), []),
        (line(8, 12, 100, machine={"cpu": "Model 8", "cores": 2}), []),
    ],
)
def test_slower_is_what_lost_to_its_baseline_and_to_the_other_side(new: dict[str, Any], slower: list[bool]) -> None:
    assert verdicts([new], [line(8, 10, 100)]) == slower


def test_rates_are_slower_where_they_are_less() -> None:
    sides = [{"name": "axon", "calls_per_s": 900.0, "failure": None}]
    new = {
        "num_bytes": 8,
        "in_flight": 16,
        "path": "one host",
        "memory": "host",
        "sides": sides,
        "machine": {"cpu": "", "cores": 1},
    }
    old = {**new, "sides": [{**sides[0], "calls_per_s": 1000.0}]}
    assert verdicts([new], [old]) == [True]
    assert verdicts([old], [new]) == [False]


def test_what_takes_nothing_has_no_ratio() -> None:
    sides = [{"name": "axon", "value": 0.0, "failure": None}, {"name": "nixl", "value": 100.0, "failure": None}]
    machine = {"cpu": "Model 9", "cores": 2}
    case = {"op": "idle", "num_bytes": 0, "num_blocks": 1, "in_flight": 1, "buffers": "reused", "place": "one host"}
    record = {**case, "memory": "plain", "sides": sides, "machine": machine}
    assert baselines.benchmark_of(record) == "one_sided"
    assert compare.compare([record], [record]) == []


def test_every_committed_baseline_equals_itself() -> None:
    for path in BASELINES:
        records = baselines.read(path)
        found = compare.compare(records, records)
        assert found, path
        assert all(comparison.times == 1 for comparison in found), path


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_command_fails_on_a_planted_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.jsonl", line(8, 10, 100), line(64, 10, 100))
    new = write(tmp_path / "new.jsonl", line(8, 10, 100), line(64, 20, 100))
    assert compare.main([str(old), "--baseline", str(old)]) == 0
    assert compare.main([str(new), "--baseline", str(old)]) == 1
    assert "2 figures compared, 1 slower than 1.1 times their baseline" in capsys.readouterr().out


def test_baseline_is_found_by_its_machine_and_measurements(tmp_path: Path) -> None:
    write(tmp_path / "other_ranks.jsonl", line(8, 10, 100, ranks=4))
    write(tmp_path / "sweep.jsonl", {"lanes": 3})
    same = write(tmp_path / "same.jsonl", line(8, 10, 100))
    assert compare.find_baselines([line(8, 11, 100)], tmp_path) == [same]


def test_record_supersedes_lines_of_the_same_measurement(tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", line(8, 10, 100), line(64, 10, 100))
    new = write(tmp_path / "new.jsonl", line(64, 9, 100), line(512, 12, 100))
    assert compare.main([str(new), "--record", str(old)]) == 0
    assert [(each["size"], each["sides"][0]["p50_us"]) for each in baselines.read(old)] == [(8, 10), (64, 9), (512, 12)]


def test_run_without_a_baseline_is_an_error(tmp_path: Path) -> None:
    new = write(tmp_path / "new.jsonl", line(8, 10, 100))
    with pytest.raises(SystemExit, match="needs one baseline of its measurements and machine; there is none"):
        compare.main([str(new)])
