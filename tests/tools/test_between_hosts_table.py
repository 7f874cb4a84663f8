"""benchmarks/between_hosts_table.py turns its arguments into runs, and their records into result files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import between_hosts_table as table  # noqa: E402


def _record(axon_us: float, rival_us: float) -> table.Record:
    sides = [{"backend": "axon", "p50_us": axon_us}, {"backend": "nccl", "p50_us": rival_us}]
    return {"op": "broadcast", "size": 8, "sides": sides, "machine": {"gpu": "NVIDIA H100 80GB HBM3"}}


def test_gpus_run_beside_nccl_in_every_setting() -> None:
    own = table.parse(["--device", "cuda", "--vs", "nccl,nccl:4x4"])
    settings = table.settings_of(own)
    assert len(settings) == len({setting.result_name("NVIDIA H200") for setting in settings}) == 8
    plain, four = settings[:2]
    assert plain.variables() == {"AXON_RAILS": "auto"}
    assert four.variables() == {"AXON_RAILS": "auto", "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
    assert plain.arguments(own) == four.arguments(own)
    arguments = " ".join(four.arguments(own))
    assert arguments.startswith("--hosts 2 --ranks-per-host 1 --congestion-control reno all_reduce,")
    assert "--device cuda --vs nccl --dtype bfloat16" in arguments
    assert four.result_name("NVIDIA H200") == "between_hosts_reno_2hosts_1xh200_nccl_4x4.jsonl"


def test_cpus_run_beside_gloo() -> None:
    own = table.parse(["--rate", "1gbit"])
    arguments = " ".join(table.settings_of(own)[0].arguments(own))
    assert "--rate 1gbit" in arguments
    assert "--device cpu --vs gloo --dtype float32" in arguments


def test_graphs_have_runs_and_result_files_of_their_own() -> None:
    own = table.parse(
        ["--device", "cuda", "--modes", "eager,graph", "--shapes", "2x1", "--congestion-controls", "reno"]
    )
    eager, graph = table.settings_of(own)
    assert "--graph" not in eager.arguments(own)
    assert "--graph" in graph.arguments(own)
    assert graph.result_name("NVIDIA H200") == "between_hosts_reno_2hosts_1xh200_graph.jsonl"


@pytest.mark.parametrize(
    "arguments",
    [["--vs", "mpi"], ["--vs", "nccl:4"], ["--results", "folder"], ["--modes", "graph"], ["--modes", "fast"]],
)
def test_unknown_rivals_and_modes_and_results_of_cpus_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        table.parse(arguments)


def test_a_result_file_holds_the_round_whose_ratio_is_the_median(tmp_path: Path) -> None:
    rounds = [_record(10, 30), _record(10, 10), _record(11, 22), _record(10, 15)]
    setting = table.Setting("2x1", "bbr", "0", "nccl")
    case = table.Case(rounds)
    assert case.ratio == 1.75
    table._write_results({(setting, "broadcast", 8): case}, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == "between_hosts_bbr_rails_0_2hosts_1xh100.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [_record(10, 15)]
