"""What the benchmark says of groups, of further peers, and of processes that are quiet and woken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pool import BACKEND, RankPool
from test_bench import run_bench

from torch_axon.bench.wakes import Wakes, measure_wakes

ROUNDS = 3


def costs_of(record: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["cost"]["backend"] for line in lines] == [BACKEND, "gloo"]
    return [line["cost"] for line in lines]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_run_says_what_groups_and_further_peers_cost(num_ranks: int, tmp_path: Path) -> None:
    record = tmp_path / "groups.jsonl"
    done = run_bench("--groups", "3", "--json", str(record), num_ranks=num_ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    titles, *rows = [line.split() for line in done.stdout.splitlines()[:3]]
    assert " ".join(titles).endswith("ms a group RSS KiB a group KiB a peer GPU MiB GPU MiB a group")
    for cost, row in zip(costs_of(record), rows, strict=True):
        assert row[0] == cost["backend"]
        assert cost["num_further"] == 3
        assert (cost["peer_kib"] > 0) == (num_ranks > 2)
        assert row[-3] == (f"{cost['peer_kib']:.0f}" if num_ranks > 2 else "–")


def test_run_says_what_a_quiet_process_costs(tmp_path: Path) -> None:
    record = tmp_path / "idle.jsonl"
    done = run_bench("--idle", "0.5", "--nap", "0.05", "--iters", str(ROUNDS), "--json", str(record))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:3]]
    for cost, row in zip(costs_of(record), rows, strict=True):
        assert (cost["nap_s"], cost["rounds"]) == (0.05, ROUNDS)
        assert 0 <= cost["core_percent"] < 200
        assert row[1] == f"{cost['core_percent']:.2f}"
        assert row[2:] == [f"{cost[name]:.1f}" for name in ("message_us", "asleep_us", "call_us", "pipe_us")]


def wakes() -> Wakes:
    return measure_wakes(BACKEND, nap_s=0.01, rounds=ROUNDS)


def test_receivers_are_woken_after_their_messages_left(three_ranks: RankPool) -> None:
    """And one that did not wait would have been done before."""
    found = three_ranks.run(wakes)
    assert found == [found[0]] * 3
    assert found[0].asleep_us > 0
    assert found[0].pipe_us > 0
    assert found[0].call_us > 0
