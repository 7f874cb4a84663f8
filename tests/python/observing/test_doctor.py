"""The doctor: its findings between ranks of this machine, and its judgement of machines with problems."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from pathlib import Path as File
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from support.processes import environment, run_ranks
from torch_axon.doctor.__main__ import main
from torch_axon.doctor.exposure import Exposure
from torch_axon.doctor.facts import Facts, Limits
from torch_axon.doctor.paths import Path, pairs_of
from torch_axon.doctor.probe import Choice, Probe, Speed, View, probe, rounds_of
from torch_axon.doctor.report import Report, judge
from torch_axon.doctor.terminal import show
from torch_axon.runtime import Peer, Runtime

_LIMITS = Limits(
    cpus=8, shm_mib=1024, shm_free_mib=1000, open_files=4096, files_open=40, locked_kib=None, ptrace_scope=None
)
_WITHOUT_RINGS = {"AXON_TRANSPORTS": "ucx,cuda"}
_VERSIONS = {"torch_axon": "1", "torch": "2.11", "UCX": "1.22", "CUDA driver": "none", "built with CUDA": "yes"}


def _facts(rank: int, **changes: Any) -> Facts:
    healthy = Facts(
        rank=rank,
        hostname="node",
        pid=100 + rank,
        boot="b",
        namespaces={"pid": 1, "net": 2, "ipc": 3},
        versions=_VERSIONS,
        places={},
        settings={},
        unknown_settings=[],
        limits=_LIMITS,
        gpus=[],
    )
    return replace(healthy, **changes)


def _view(rank: int, **changes: Any) -> View:
    lanes = [("posix", "memory"), ("cma", "memory")]
    return replace(View(rank, 1 - rank, same_host=True, lanes=lanes, host=Speed(2.0, 10.0)), **changes)


def _judge(
    facts: dict[str, Any] | None = None, view: dict[str, Any] | None = None, other_view: dict[str, Any] | None = None
) -> Report:
    """Reports of two ranks with these facts, each with its view."""
    views = [_view(0, **(view or {})), _view(1, **(view or {}) | (other_view or {}))]
    probes = [Probe(rank, [each]) for rank, each in enumerate(views)]
    return judge(2, [_facts(rank, **(facts or {})) for rank in (0, 1)], probes)


def _host_path(report: Report) -> Path:
    return report.pairs[0].host


def test_nothing_stands_in_the_way_of_the_fastest_paths() -> None:
    report = _judge(view={"kernels": True, "direct": True, "gpu": Speed(5.0, 300.0)})
    assert report.findings == []
    assert report.is_healthy
    assert _host_path(report).name == "shared memory + CMA"
    assert report.pairs[0].gpu == Path("kernels, zero-copy", Speed(5.0, 300.0), None)


_SLOWER_WITHIN_A_HOST = {
    "ptrace": ({"lanes": [("posix", "memory")], "memory": "Operation not permitted"}, {}, "SYS_PTRACE"),
    "setting": (
        {"lanes": [("posix", "memory")]},
        {"settings": {"AXON_TRANSPORTS": "ucx", "UCX_TLS": "posix"}},
        "unset UCX_TLS",
    ),
    "shared memory": ({"lanes": [("tcp", "lo")]}, {"settings": {"AXON_TRANSPORTS": "ucx"}}, "/dev/shm"),
    "rings": ({"lanes": [("tcp", "lo")]}, {}, "as one user"),
}


@pytest.mark.parametrize("case", _SLOWER_WITHIN_A_HOST)
def test_a_slower_path_within_a_host_says_what_to_do(case: str) -> None:
    view, facts, remedy = _SLOWER_WITHIN_A_HOST[case]
    path = _host_path(_judge(facts, view))
    assert path.name == ("TCP (lo)" if "tcp" in str(view) else "shared memory")
    assert path.obstacle is not None
    assert remedy in path.obstacle.remedy


@pytest.mark.parametrize(
    ("lane", "rdma", "name", "remedy"),
    [
        (("tcp", "eth0"), [], "TCP (eth0)", None),
        (("tcp", "eth0"), ["mlx5_0"], "TCP (eth0)", "AXON_UCX_ROOT"),
        (("rc_mlx5", "mlx5_0:1"), ["mlx5_0"], "rc_mlx5 (mlx5_0:1)", None),
    ],
)
def test_between_hosts_tcp_is_the_fastest_where_there_is_no_other_network(
    lane: tuple[str, str], rdma: list[str], name: str, remedy: str | None
) -> None:
    probes = [Probe(rank, [_view(rank, same_host=False, lanes=[lane])]) for rank in (0, 1)]
    path = pairs_of([_facts(rank, boot=str(rank), rdma=rdma) for rank in (0, 1)], probes)[0].host
    assert path.name == name
    assert (path.obstacle is None) == (remedy is None)
    assert path.obstacle is None or remedy in path.obstacle.remedy


def test_containers_of_a_host_are_told_what_they_do_not_share() -> None:
    views = [Probe(rank, [_view(rank, same_host=False, lanes=[("tcp", "eth0")])]) for rank in (0, 1)]
    ranks = [_facts(0), _facts(1, namespaces={"pid": 1, "net": 7, "ipc": 8})]
    obstacle = pairs_of(ranks, views)[0].host.obstacle
    assert obstacle is not None
    assert "net and ipc namespaces" in obstacle.reason
    assert "--ipc=host" in obstacle.remedy


def test_ranks_that_share_all_they_look_at_are_told_nothing() -> None:
    views = [Probe(rank, [_view(rank, same_host=False, lanes=[("tcp", "eth0")])]) for rank in (0, 1)]
    assert pairs_of([_facts(0), _facts(1)], views)[0].host.obstacle is None


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 16, 33])
def test_all_pairs_meet_once(size: int) -> None:
    rounds = rounds_of(size)
    for peers in rounds:
        assert all(peers[peer] == rank != peer for rank, peer in peers.items())
    met = [pair for peers in rounds for pair in peers.items() if pair[0] < pair[1]]
    assert sorted(met) == [*combinations(range(size), 2)]
    assert len(rounds) <= max(28, size)


def test_pairs_that_there_was_no_time_for_are_counted() -> None:
    report = judge(2, [_facts(0), _facts(1)], [Probe(rank, num_untried=1) for rank in (0, 1)])
    assert [finding.text for finding in report.findings] == ["1 pairs of ranks were not tried within a minute"]
    assert report.is_healthy


def test_without_rich_the_doctor_says_so_before_it_examines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("torch_axon.doctor.__main__.run_alone", lambda *_: pytest.fail("it examines"))
    assert main([]) == 2
    assert "pip install rich" in capsys.readouterr().err


def test_a_build_without_cuda_leaves_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_axon._build.CUDA", False)
    no_such_gpu = 99
    assert probe(dist.HashStore(), 0, 1, no_such_gpu, timedelta(seconds=30)) == Probe(0)


def test_a_rank_that_fails_tells_the_others_at_once(tmp_path: File) -> None:
    started = time.monotonic()
    first, second = run_ranks("is_probed_and_fails", 2, tmp_path / "store")
    assert "RuntimeError: rank 0 fails, no views" in first.output
    assert "rank 0" in second.output
    assert "no views" in second.output
    assert time.monotonic() - started < 40  # its timeout is 60


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("pidfd_getfd on process 7: Operation not permitted", "SYS_PTRACE"),
        ("AXON_TRANSPORTS does not name cuda", "add cuda to AXON_TRANSPORTS"),
        ("GPU 0 has no peer access to GPU 1", "nvidia-smi topo"),
        ("the arena of GPU 0 is full: 64 MiB are taken", "AXON_ARENA_MB"),
    ],
)
def test_the_reason_of_either_rank_against_kernels_is_told(said: str, remedy: str) -> None:
    report = _judge(view={"kernels": False, "gpu": Speed(50.0, 5.0)}, other_view={"obstacle": said})
    assert report.pairs[0].gpu is not None
    assert report.pairs[0].gpu.name == "through host memory"
    (finding,) = report.findings
    assert said in finding.text
    assert remedy in finding.remedy
    assert report.is_healthy  # slow, but right


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"failure": "built for torch 2.10"}, "ranks 0, 1: the extension cannot be loaded: built for torch 2.10"),
        ({"limits": replace(_LIMITS, open_files=64)}, "may open 64 files"),
    ],
)
def test_what_makes_jobs_fail_is_a_problem(facts: dict[str, Any], text: str) -> None:
    report = _judge(facts=facts)
    assert not report.is_healthy
    assert any(finding.is_problem and text in finding.text for finding in report.findings)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"limits": replace(_LIMITS, cpus=1)}, "2 ranks share 1 CPUs"),
        ({"unknown_settings": ["AXON_LOGS"]}, "nothing reads AXON_LOGS"),
        ({"gpus": ["H200"], "versions": _VERSIONS | {"built with CUDA": "no"}}, "built without CUDA"),
        ({"limits": replace(_LIMITS, shm_free_mib=9), "settings": _WITHOUT_RINGS}, "9 MiB free in /dev/shm"),
        ({"limits": replace(_LIMITS, shm_free_mib=None), "settings": _WITHOUT_RINGS}, "no /dev/shm"),
    ],
)
def test_what_makes_jobs_slow_is_a_note(facts: dict[str, Any], text: str) -> None:
    report = _judge(facts=facts)
    assert report.is_healthy
    assert any(text in finding.text for finding in report.findings)


_WITHOUT_CMA = {"settings": {"AXON_TRANSPORTS": "rings,ucx"}}
_UNREADABLE = {"memory": "Operation not permitted"}
_SCOPED = {"limits": replace(_LIMITS, ptrace_scope=1)}
_NO_ACCESS = {"kernels": False, "obstacle": "the GPUs have no peer access to each other"}


@pytest.mark.parametrize(
    ("memory", "facts", "view", "reason", "remedy"),
    [
        ("CPU", _WITHOUT_CMA, {}, "AXON_TRANSPORTS of rank 0 does not name cma", "add cma"),
        ("GPU", _WITHOUT_CMA, {}, "AXON_TRANSPORTS of rank 0 does not name cuda", "add cuda"),
        ("CPU", {}, _UNREADABLE, "rank 0 may not read the memory of rank 1: Operation not permitted", "SYS_PTRACE"),
        ("GPU", _SCOPED, _UNREADABLE, "not permitted (Yama's ptrace_scope is 1)", "yama.ptrace_scope"),
        ("GPU", {}, _NO_ACCESS, "no peer access", "topo -p2p"),
        ("CPU", {}, {"same_host": False}, "on different hosts", "nothing"),
        ("CPU", {}, {}, "rank 0 has not found a better one", "AXON_LOG"),
    ],
)
def test_a_worse_path_of_one_sided_transfers_says_why(
    memory: str, facts: dict[str, Any], view: dict[str, Any], reason: str, remedy: str
) -> None:
    report = _judge(facts, {"one_sided": {memory: "messages"}, **view})
    assert [(each.initiator, each.owner, each.memory) for each in report.one_sided] == [(0, 1, memory), (1, 0, memory)]
    obstacle = report.one_sided[0].obstacle
    assert obstacle is not None
    assert reason in obstacle.reason
    assert remedy in obstacle.remedy


def test_memory_that_cannot_be_opened_says_why() -> None:
    report = _judge(view={"one_sided": {"CPU": "cma"}, "unopened": {"GPU": "RuntimeError: the driver refuses"}})
    assert [(each.memory, each.path) for each in report.one_sided] == [("CPU", "cma"), ("GPU", "none")] * 2
    obstacle = report.one_sided[1].obstacle
    assert obstacle is not None
    assert obstacle.reason == "rank 0 cannot open it: RuntimeError: the driver refuses"


def test_memory_that_cannot_be_opened_leaves_the_rest_of_the_probe_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "all_gather_object", lambda found, own: found.__setitem__(0, own))
    expose = Runtime.expose
    monkeypatch.setattr(Runtime, "expose", lambda *args: regions.append(expose(*args)) or regions[-1])
    with ExitStack() as stack:
        exposure = Exposure(None, stack)
        assert exposure.paths_to(0, True) == ({"CPU": "memcpy"}, {})
        regions[0].close()
        paths, failures = exposure.paths_to(0, True)
        assert paths == {}
        assert failures["CPU"].startswith("AccessDenied: ")
        monkeypatch.setattr(Peer, "open", mock.Mock(side_effect=RuntimeError("the driver refuses")))
        assert exposure.paths_to(0, True) == ({}, {"CPU": "RuntimeError: the driver refuses"})


def test_the_terminal_shows_the_paths_of_one_sided_transfers(capsys: pytest.CaptureFixture[str]) -> None:
    best = {"CPU": "cma", "GPU": "cuda ipc"}
    show(_judge(view={"one_sided": best}, other_view={"one_sided": best | {"CPU": "messages"}, **_UNREADABLE}))
    lines = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert ["initiator to owner", "memory", "Remote.path", "why no better one"] in lines
    assert ["0 to 1", "CPU", "cma", "–"] in lines
    assert ["0 to 1, 1 to 0", "GPU", "cuda ipc", "–"] in lines
    why = "rank 1 may not read the memory of rank 0: Operation not permitted"
    assert ["1 to 0", "CPU", "messages", why] in lines


def _told(report: Report) -> str:
    return " ".join(f"{finding.text}: {finding.remedy}" for finding in report.findings)


@pytest.mark.parametrize(
    "transports", ["rails,rings,cma", "rails,rings", "rails,cma", "rails", "auto,rings,cma", "auto"]
)
def test_ranks_without_ucx_are_told_nothing_of_it(transports: str, capsys: pytest.CaptureFixture[str]) -> None:
    lanes = [
        ("ring" if "rings" in transports else "tcp", "eth0"),
        *([("cma", "")] if "rings,cma" in transports else []),
    ]
    report = _judge(
        {
            "settings": {"AXON_TRANSPORTS": transports, "UCX_TLS": "tcp"},
            "limits": replace(_LIMITS, shm_free_mib=0),
            "places": {"UCX": "/lib/libucp.so"},
        },
        {"lanes": lanes},
    )
    missing = next((name for name in ("rings", "cma") if name not in transports), None)
    if missing is None:
        assert report.findings == []
    else:
        assert len(report.findings) == 1
        assert f"AXON_TRANSPORTS does not name {missing}" in report.findings[0].text
        assert report.findings[0].remedy.startswith(f"add {missing}")
    assert "UCX" not in _told(report)
    show(report)
    shown = capsys.readouterr().out
    assert re.search(r"^UCX +not used", shown, re.MULTILINE)
    assert "libucp" not in shown


def test_ranks_without_ucx_may_differ_in_it() -> None:
    facts = [
        _facts(rank, versions=_VERSIONS | {"UCX": str(rank)}, settings={"AXON_TRANSPORTS": "rails,rings,cma"})
        for rank in (0, 1)
    ]
    assert "UCX" not in _told(judge(2, facts, [Probe(0), Probe(1)]))


def test_a_rank_out_of_reach_is_told_with_what_to_do() -> None:
    why = "rank 1 cannot be reached: no connection to it can be opened: 10.0.0.2:41234: Connection refused"
    report = judge(2, [_facts(0), _facts(1)], [Probe(0, failure=why), Probe(1)])
    [problem] = [finding for finding in report.findings if finding.is_problem]
    assert "AXON_RAIL_DEVICES" in problem.remedy


def test_rings_need_no_room_in_dev_shm() -> None:
    assert _judge(facts={"limits": replace(_LIMITS, shm_mib=None, shm_free_mib=None)}).findings == []


def test_ranks_that_differ_are_told_apart() -> None:
    facts = [_facts(0), _facts(1, versions=_VERSIONS | {"torch_axon": "2"})]
    texts = [finding.text for finding in judge(2, facts, [Probe(0), Probe(1)]).findings if finding.is_problem]
    assert texts == ["rank 0: torch_axon 1; rank 1: torch_axon 2"]


def test_ranks_that_did_not_come_or_come_back_are_named() -> None:
    texts = [finding.text for finding in judge(3, [_facts(0), _facts(1)], [Probe(0)]).findings]
    assert texts == ["rank 1 did not finish its tests", "rank 2 did not report"]


def test_the_terminal_shows_every_pair_and_finding(capsys: pytest.CaptureFixture[str]) -> None:
    show(_judge(facts={"limits": replace(_LIMITS, cpus=1)}))
    shown = capsys.readouterr().out
    for part in (
        "0, 1",
        "shared memory + CMA",
        "2.0",
        "10.0",
        "note: node: 2 ranks share 1 CPUs",
        "→ start fewer ranks",
    ):
        assert part in shown


def test_the_terminal_shows_the_choices_by_size(capsys: pytest.CaptureFixture[str]) -> None:
    choices = [
        Choice("all_reduce", 8, "one_shot", "ll_one_shot"),
        Choice("send/recv", 8, "", "ll128"),
        Choice("all_reduce", 64 << 20, "two_shot", ""),
        Choice("send/recv", 64 << 20, "", "zero_copy"),
    ]
    show(judge(2, [_facts(0), _facts(1)], [Probe(rank, [_view(rank)], choices) for rank in (0, 1)]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["operation", "tensors", "8", "B", "64", "MiB"] in lines
    assert ["all_reduce", "CPU", "one_shot", "two_shot"] in lines
    assert ["all_reduce", "GPU", "ll_one_shot", "through", "host", "memory"] in lines
    assert ["send/recv", "GPU", "ll128", "zero_copy"] in lines


def _run(*arguments: str, prefix: Sequence[str] = (), **variables: str) -> tuple[int, dict[str, Any]]:
    ended = subprocess.run(
        [*prefix, sys.executable, "-m", "torch_axon.doctor", "--json", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def test_two_ranks_of_this_machine_find_each_other() -> None:
    code, report = _run("--ranks", "2")
    assert code == 0, report["findings"]
    (pair,) = report["pairs"]
    assert report["between_hosts"] == []
    assert pair["ranks"] == [0, 1]
    assert pair["host"]["name"] == "rings + CMA"
    ways = [(way["initiator"], way["owner"], way["path"], way["obstacle"]) for way in report["one_sided"]]
    assert ways[:: len(ways) // 2] == [(0, 1, "cma", None), (1, 0, "cma", None)]
    assert 0.1 < pair["host"]["speed"]["latency_us"] < 1e4
    assert 0.01 < pair["host"]["speed"]["bandwidth_gbs"] < 1e3
    algorithms = {
        each["num_bytes"]: each["algorithm"] for each in report["choices"] if each["operation"] == "all_reduce"
    }
    assert algorithms == {8: "one_shot", 64 << 10: "one_shot", 1 << 20: "two_shot", 64 << 20: "two_shot"}
    assert report["ranks"][0]["versions"]["UCX"].startswith("1.")
    assert "libucp" in report["ranks"][0]["places"]["UCX"]


def test_three_ranks_without_shared_memory_say_so() -> None:
    code, report = _run("--ranks", "3", AXON_TRANSPORTS="ucx,cuda", AXON_UCX_TLS="tcp,self")
    assert code == 0, report["findings"]
    assert [pair["ranks"] for pair in report["pairs"]] == [[0, 1], [0, 2], [1, 2]]
    assert all(re.fullmatch(r"TCP \(\w+\)( \+ TCP \(\w+\))*", pair["host"]["name"]) for pair in report["pairs"])
    assert "AXON_UCX_TLS=tcp,self" in report["pairs"][0]["host"]["obstacle"]["reason"]


def test_ranks_that_are_not_to_read_memory_say_so() -> None:
    code, report = _run("--ranks", "2", AXON_TRANSPORTS="ucx,rings,cuda")
    assert code == 0, report["findings"]
    path = report["pairs"][0]["host"]
    assert path["name"] == "rings"
    assert path["obstacle"] == {"reason": "AXON_TRANSPORTS does not name cma", "remedy": "add cma to AXON_TRANSPORTS"}
    for way in report["one_sided"]:
        if way["memory"] == "CPU":
            assert way["path"] == "messages"
            assert "does not name cma" in way["obstacle"]["reason"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and `unshare`")
def test_a_small_shared_memory_is_noted_and_shows_in_the_path() -> None:
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    code, report = _run(prefix=["unshare", "--mount", "sh", "-c", mount, "sh"], AXON_TRANSPORTS="ucx,cuda")
    assert code == 0, report["findings"]
    assert "shared memory" not in report["pairs"][0]["host"]["name"]
    assert "/dev/shm" in report["pairs"][0]["host"]["obstacle"]["remedy"]
    assert any("1 MiB free in /dev/shm" in finding["text"] for finding in report["findings"])


def test_choices_follow_the_overrides() -> None:
    code, report = _run("--ranks", "2", AXON_ALGO="all_reduce=ring")
    assert code == 0, report["findings"]
    assert {each["algorithm"] for each in report["choices"] if each["operation"] == "all_reduce"} == {"ring"}


def test_a_setting_that_no_job_could_start_with_is_a_problem() -> None:
    code, report = _run(AXON_LOG="loudly")
    assert code == 1
    assert not report["healthy"]
    assert any("AXON_LOG is 'loudly'" in finding["text"] for finding in report["findings"])


def test_a_rank_that_does_not_come_is_named_in_time() -> None:
    rank_of_two = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    code, report = _run("--timeout", "2", **rank_of_two)
    assert code == 1
    assert any(finding["text"] == "rank 1 did not report" for finding in report["findings"])


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")
@pytest.mark.parametrize("transports", ["ucx,cuda", "ucx"])
def test_gpus_of_a_host_reach_each_other_unless_told_not_to(transports: str) -> None:
    code, report = _run("--ranks", "2", AXON_TRANSPORTS=transports)
    assert code == 0, report["findings"]
    path = report["pairs"][0]["gpu"]
    assert path["speed"]["latency_us"] > 0
    kernels = {each["kernel"] for each in report["choices"]}
    assert kernels == {""} if transports == "ucx" else {"ll_one_shot", "zero_copy"} <= kernels
    if transports == "ucx":
        assert path["name"] == "through host memory"
        assert "AXON_TRANSPORTS" in path["obstacle"]["reason"]
    else:
        assert path["name"] == "kernels, zero-copy", path["obstacle"]
