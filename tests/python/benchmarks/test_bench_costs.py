"""Tests the benchmark's costs of groups, of further peers, and of processes that are idle and woken."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from support.bench_runs import run_bench
from support.pool import BACKEND, RankPool
from torch_axon.bench import peers, wakes
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
    assert " ".join(titles).endswith("ms per group RSS KiB per group KiB per peer GPU MiB GPU MiB per group")
    for cost, row in zip(costs_of(record), rows, strict=True):
        assert row[0] == cost["backend"]
        assert cost["num_further"] == 3
        if cost["backend"] == BACKEND:  # the memory of Gloo's peers is below the variation between its groups
            assert (cost["peer_kib"] > 0) == (num_ranks > 2)
        assert row[-3] == (f"{cost['peer_kib']:.0f}" if cost["peer_kib"] else "–")


@pytest.mark.parametrize(("rank", "num_ranks", "further_kib"), [(0, 3, 8), (0, 5, 24), (3, 5, 24), (2, 3, 0)])
def test_peers_cost_what_is_left_without_their_group(
    rank: int, num_ranks: int, further_kib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process pays 1,000 KiB once, 50 KiB for each group, and 8 KiB for each peer."""
    known = {rank}

    def growth_kib(_: str, teams: Sequence[list[int]]) -> int:
        team = next((set(team) for team in teams if rank in team), known)
        once, new = 1000 * (known == {rank}), team - known
        known.update(new)
        return once + 50 + 8 * len(new)

    monkeypatch.setattr(peers, "_growth_kib", growth_kib)
    assert peers._further_peers_kib("any", rank, num_ranks) == further_kib


@pytest.mark.parametrize(("num_ranks", "further_kib"), [(3, 8), (5, 24)])
def test_a_peer_is_one_of_those_beyond_a_pair(
    num_ranks: int, further_kib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(num_ranks))
    done = subprocess.CompletedProcess([], 0, stdout=f"{further_kib}\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert peers.peer_kib("any", timedelta(seconds=1)) == 8


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


def measured_wakes() -> Wakes:
    return measure_wakes(BACKEND, nap_s=0.01, rounds=ROUNDS)


def test_receivers_are_woken_after_their_messages_left(three_ranks: RankPool) -> None:
    """A receiver that did not wait would have finished before."""
    found = three_ranks.run(measured_wakes)
    assert found == [found[0]] * 3
    assert found[0].asleep_us > 0
    assert found[0].pipe_us > 0
    assert found[0].call_us > 0


@pytest.fixture
def pipe() -> Iterator[int]:
    """Yields the reading end of a pipe to which no process writes."""
    ends = os.pipe()
    yield ends[0]
    for end in ends:
        os.close(end)


def test_a_byte_that_never_comes_is_waited_for_no_longer_than_the_deadline(pipe: int) -> None:
    with pytest.raises(TimeoutError, match=r"rank 0 wrote no byte into the pipe within 0\.01 s"):
        wakes._receive_both(pipe, torch.zeros(2), timeout_s=0.01)
