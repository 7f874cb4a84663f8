"""AXON_TRACE: a Chrome trace of every operation, one file per rank; and torch's flight recorder."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.processes import run_ranks


def _events(path: Path) -> list[dict]:
    return json.loads(path.read_text())


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[dict]]:
    """Returns the traces of the two ranks of a program."""
    for rank in run_ranks("is_traced", 2, tmp_path / "store", str(tmp_path / "trace.json")):
        assert rank.code == 0, rank.errors
    return [_events(tmp_path / f"trace.rank{rank}.json") for rank in (0, 1)]


def test_every_operation_begins_and_ends_on_its_groups_track(traces: list[list[dict]]) -> None:
    for rank, events in enumerate(traces):
        assert {event["pid"] for event in events} == {rank}
        names = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
        assert len(names) == 2  # the default group and another one
        begun = [event for event in events if event["ph"] == "b"]
        ended = [event for event in events if event["ph"] == "e"]
        assert Counter(event["name"] for event in begun) == Counter(event["name"] for event in ended)
        assert {event["tid"] for event in begun} == set(names.values())
        for end in ended:
            (begin,) = [each for each in begun if each["id"] == end["id"] and each["ts"] <= end["ts"]][-1:]
            assert begin["name"] == end["name"]


def test_operations_say_what_they_are(traces: list[list[dict]]) -> None:
    for rank, events in enumerate(traces):
        begun = [event for event in events if event["ph"] == "b"]
        (large,) = [event["args"] for event in begun if event["args"].get("bytes") == 4 << 20]
        assert large["call"] == f"all_reduce #{large['sequence']} (float32[1048576], SUM)"
        assert large["algorithm"] == "two_shot"
        assert re.search(r"programs\.py:\d+, in is_traced$", large["site"])
        (message,) = [event for event in begun if event["name"] in ("send", "receive")]
        assert message["name"] == ("send" if rank == 0 else "receive")
        assert message["args"]["peer"] == 1 - rank
        assert "tag 5" in message["args"]["call"]


def test_a_failure_stands_at_the_operations_end(traces: list[list[dict]]) -> None:
    failed = [event for event in traces[0] if event["ph"] == "e" and "error" in event["args"]]
    assert [event["name"] for event in failed] == ["broadcast"]
    assert "Timed out" in failed[0]["args"]["error"]


def test_ranks_are_those_of_the_job_whatever_their_first_group(tmp_path: Path) -> None:
    for rank in run_ranks("is_traced_in_pairs", 4, tmp_path / "store", str(tmp_path / "trace.json")):
        assert rank.code == 0, rank.errors
    for rank in range(4):
        events = _events(tmp_path / f"trace.rank{rank}.json")
        assert events[0]["args"]["name"].startswith(f"rank {rank} (pid ")
        assert [event["name"] for event in events if event["ph"] == "b"] == ["barrier"]
    assert len([*tmp_path.glob("*.json")]) == 4


def _recorded() -> None:
    dist.all_reduce(torch.ones(10))
    if dist.get_rank() == 0:
        dist.send(torch.ones(5), 1)
    else:
        dist.recv(torch.ones(5), 0)
    dump: Any = torch._C._distributed_c10d._dump_fr_trace_json  # type: ignore[attr-defined]
    recorded = json.loads(dump(includeCollectives=True, backend="axon"))["entries"][-2:]
    message = "send 0->1" if dist.get_rank() == 0 else "recv 1<-0"
    assert [entry["profiling_name"] for entry in recorded] == ["axon:all_reduce", f"axon:{message}"]
    assert recorded[0]["input_sizes"] == [[10]]


@on_cpu_and_gpu
@pytest.mark.skipif(torch.__version__ < "2.15", reason="needs torch 2.15")  # 2.14's has to be attached
def test_torchs_flight_recorder_knows_our_calls(two_ranks: RankPool) -> None:
    two_ranks.run(_recorded)
