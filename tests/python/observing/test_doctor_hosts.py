"""What the doctor tells of the data between hosts: what carries it, and why not more."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.hosts import ADDRESSES, Hosts, two_hosts
from support.processes import environment
from torch_axon.doctor.crossings import crossings_of
from torch_axon.doctor.facts import Facts, Limits
from torch_axon.doctor.paths import pairs_of
from torch_axon.doctor.probe import Probe, Speed, View
from torch_axon.doctor.report import Report, judge
from torch_axon.doctor.terminal import show

_TCP = ("tcp", "eth0")
_RAIL = ("rail", "eth0 to 10.0.0.2")
_SECOND_LINK = ("10.213.78.1", "10.213.78.2")


def _facts(rank: int, host: int) -> Facts:
    return Facts(
        rank=rank,
        hostname=f"node{host}",
        pid=100 + rank,
        boot=str(host),
        namespaces={"pid": host, "net": host, "ipc": host},
        versions=dict.fromkeys(("torch_axon", "torch", "UCX", "CUDA driver"), "1") | {"built with CUDA": "no"},
        places={},
        settings={},
        unknown_settings=[],
        limits=Limits(8, 1024, 1000, 4096, 40, None, None),
        gpus=[],
    )


def _judge(*host_of_rank: int, **changes: Any) -> Report:
    """Reports of ranks on these hosts, which all see the same of ranks on other hosts."""
    size = len(host_of_rank)
    facts = [_facts(rank, host) for rank, host in enumerate(host_of_rank)]
    probes = [Probe(rank) for rank in range(size)]
    for rank, host in enumerate(host_of_rank):
        for peer, other in enumerate(host_of_rank):
            if host == other and rank != peer:
                lanes = [("ring", "memory"), ("cma", "memory")]
                probes[rank].views.append(View(rank, peer, same_host=True, lanes=lanes, host=Speed(1.0, 10.0)))
            elif host != other:
                speed = Speed(10.0 + rank, 4.0 + peer)
                view = View(rank, peer, lanes=[_TCP, _RAIL, _RAIL], host=speed)
                probes[rank].views.append(View(**(vars(view) | changes)))
    return judge(size, facts, probes)


def test_ranks_of_one_host_cross_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    report = _judge(0, 0, 0)
    assert report.between_hosts == []
    show(report)
    assert "Between hosts" not in capsys.readouterr().out


def test_each_pair_of_hosts_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    report = _judge(0, 1, 0, 2)
    assert [each.hosts for each in report.between_hosts] == [
        ("node0 (ranks 0, 2)", "node1 (rank 1)"),
        ("node0 (ranks 0, 2)", "node2 (rank 3)"),
        ("node1 (rank 1)", "node2 (rank 3)"),
    ]
    for each in report.between_hosts:
        assert each.carriers == ["TCP (eth0) + 2 rails (eth0 to 10.0.0.2)"]
        assert each.obstacles == []
    assert report.between_hosts[0].speed == Speed(10.5, 5.5)  # of ranks 0 and 1: 10, 5; of ranks 1 and 2: 11, 6
    assert report.findings == []
    show(report)
    shown = capsys.readouterr().out
    assert "Between hosts" in shown
    assert "node1 (rank 1)" in shown


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("1 rail to it cannot be opened: 10.0.0.2:41234: Connection refused", "all TCP ports"),
        ("1 rail to it got no answer yet from 10.0.0.2:41234", "AXON_RAIL_DEVICES"),
        ("AXON_RAILS is 1", "unset AXON_RAILS"),
        ("no rails, because fewer than 256 file descriptors were free in this process", "ulimit -n"),
        ("1 rail for 2 cores and 1 process of this host", None),
        ("UCX carries long messages, over rc_mlx5 (mlx5_0:1)", None),
        ("no device of this host leads to it", "a route to each other"),
    ],
)
def test_a_reason_is_told_once_with_what_to_do(reason: str, remedy: str | None) -> None:
    report = _judge(0, 0, 1, 1, obstacles=[reason])
    (crossing,) = report.between_hosts
    (obstacle,) = crossing.obstacles
    assert obstacle.reason == f"rank 0 to rank 2 and 7 more: {reason}"
    assert len(report.findings) == (0 if remedy is None else 1)
    for finding in report.findings:
        assert not finding.is_problem
        assert reason in finding.text
        assert remedy is not None
        assert remedy in finding.remedy


def test_the_rank_that_accepts_no_rails_tells_why() -> None:
    views = [View(0, 1, lanes=[_TCP], obstacles=["it accepts no rails"]), View(1, 0, lanes=[_TCP])]
    facts, probes = [_facts(0, 0), _facts(1, 1)], [Probe(rank, [view]) for rank, view in enumerate(views)]
    (crossing,) = crossings_of(facts, probes, pairs_of(facts, probes))
    assert [each.reason for each in crossing.obstacles] == ["rank 0 to rank 1: it accepts no rails"]
    views[1].obstacles.append("AXON_RAILS is 0")
    (crossing,) = crossings_of(facts, probes, pairs_of(facts, probes))
    assert [each.reason for each in crossing.obstacles] == ["rank 1 to rank 0: AXON_RAILS is 0"]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts() as hosts:
        yield hosts


def _between(hosts: Hosts, *variables: dict[str, str], prefix: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    """Runs the doctor with one rank per host. Returns the carriers, and the reasons why there are not more."""
    meeting = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29515"}
    ranks = [
        subprocess.Popen(
            [*hosts.prefix(rank), *prefix, sys.executable, "-m", "torch_axon.doctor", "--json"],
            env=environment(RANK=str(rank), **meeting, **variables[rank % len(variables)]),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    (crossing,) = json.loads(outputs[0])["between_hosts"]
    assert crossing["speed"]["latency_us"] > 0
    assert crossing["speed"]["bandwidth_gbs"] > 0
    reasons = [each["reason"] for each in crossing["obstacles"]]
    return crossing["carriers"], [reason for reason in reasons if "namespaces" not in reason]


def test_open_rails_are_counted_with_their_devices_and_addresses(hosts: Hosts) -> None:
    carriers, reasons = _between(hosts, {"AXON_RAILS": "4"})
    assert sorted(carriers) == [f"TCP (eth0) + 4 rails (eth0 to {address})" for address in ADDRESSES]
    assert reasons == []


def test_rails_over_two_links_name_both(hosts: Hosts) -> None:
    hosts.add_link("eth1", _SECOND_LINK)
    variables = {"AXON_RAILS": "4", "AXON_RAIL_DEVICES": "eth0,eth1", "AXON_UCX_NET_DEVICES": "eth0"}
    carriers, _ = _between(hosts, variables)
    assert sorted(carriers) == [
        f"TCP (eth0) + 2 rails (eth0 to {first}) + 2 rails (eth1 to {second})"
        for first, second in zip(ADDRESSES, _SECOND_LINK, strict=True)
    ]


def test_a_rank_without_rails_says_why(hosts: Hosts) -> None:
    carriers, reasons = _between(hosts, {"AXON_RAILS": "4"}, {"AXON_RAILS": "0"})
    assert carriers == ["TCP (eth0)"]
    assert reasons == ["rank 1 to rank 0: AXON_RAILS is 0"]


def test_ranks_without_ucx_count_rails_and_name_no_ucx(hosts: Hosts) -> None:
    carriers, reasons = _between(hosts, {"AXON_TRANSPORTS": "rails,rings,cma", "AXON_RAILS": "4"})
    assert sorted(carriers) == [f"TCP (eth0) + 4 rails (eth0 to {address})" for address in ADDRESSES]
    assert reasons == []


def test_ranks_short_of_descriptors_say_so(hosts: Hosts) -> None:
    carriers, reasons = _between(hosts, {}, prefix=("sh", "-c", 'ulimit -n 260 && exec "$@"', "sh"))
    assert carriers == ["TCP (eth0)"]
    assert len(reasons) == 1
    assert "fewer than 256 file descriptors were free" in reasons[0]


def _refuse(hosts: Hosts) -> tuple[str, str]:
    return "lo", r"127.0.0.1:\d+: Connection refused"


def _have_no_route(hosts: Hosts) -> tuple[str, str]:
    hosts.add_link("eth1", _SECOND_LINK)
    subprocess.run(["ip", "-n", hosts.names[0], "address", "flush", "dev", "eth1"], check=True)
    return "eth1", rf"{_SECOND_LINK[1]}:\d+: Network is unreachable"


def _answer_nothing(hosts: Hosts) -> tuple[str, str]:
    hosts.add_link("eth1", _SECOND_LINK)
    absent = ["lladdr", "02:00:00:00:00:ff", "dev", "eth1", "nud", "permanent"]
    subprocess.run(["ip", "-n", hosts.names[0], "neigh", "replace", _SECOND_LINK[1], *absent], check=True)
    return "eth1", rf"got no answer yet from {_SECOND_LINK[1]}:\d+|no answer within the time of a handshake"


@pytest.mark.parametrize("block", [_refuse, _have_no_route, _answer_nothing])
def test_a_port_that_cannot_be_reached_is_named_with_its_address(block: Any, hosts: Hosts) -> None:
    device, pattern = block(hosts)
    # Short messages over UCX go on. Over rails they would use the port, too, and the rank would be out of reach.
    own = {"AXON_RAILS": "4", "AXON_UCX_NET_DEVICES": "eth0", "AXON_TRANSPORTS": "ucx,rings,cma,cuda"}
    carriers, reasons = _between(hosts, own, own | {"AXON_RAIL_DEVICES": device})
    assert sorted(carriers) == ["TCP (eth0)", f"TCP (eth0) + 4 rails (eth0 to {ADDRESSES[0]})"]
    (reason,) = reasons
    assert reason.startswith("rank 0 to rank 1: 4 rails to it ")
    assert re.search(pattern, reason), reason
