"""Two hosts: two network namespaces joined by a veth pair, so that nothing but TCP leads from rank to rank."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from processes import environment, run_ranks

ADDRESSES = ("10.213.77.1", "10.213.77.2")
TIMEOUT_S = 3.0


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _await_link(host: int) -> None:
    """The kernel calls a new link up as much as a second after it carries data, unless asked; UCX takes none before."""
    deadline = time.monotonic() + 10
    while "state UP" not in _ip("-n", _name(host), "link", "show", "eth0"):
        assert time.monotonic() < deadline, "the link between the namespaces does not come up"


def _reason_against() -> str:
    if shutil.which("ip") is None:
        return "needs iproute2's `ip`"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    probe = subprocess.run(["ip", "netns", "add", _name(9)], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"this kernel or container makes no network namespaces: {probe.stderr.strip()}"
    _ip("netns", "delete", _name(9))
    return ""


def _name(host: int) -> str:
    return f"axon-{os.getpid()}-{host}"


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """For each of two hosts, the command prefix that runs a program there."""
    if reason := _reason_against():
        pytest.skip(reason)
    made: list[str] = []
    try:
        for host in (0, 1):
            _ip("netns", "add", _name(host))
            made.append(_name(host))
        _ip("link", "add", "eth0", "netns", _name(0), "type", "veth", "peer", "name", "eth0", "netns", _name(1))
        for host, address in enumerate(ADDRESSES):
            _ip("-n", _name(host), "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", _name(host), "link", "set", "eth0", "up")
            _ip("-n", _name(host), "link", "set", "lo", "up")
        for host in (0, 1):
            _await_link(host)
        yield [["ip", "netns", "exec", _name(host)] for host in (0, 1)]
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _cut_the_link(_: Sequence[subprocess.Popen[str]]) -> None:
    _ip("-n", _name(0), "link", "set", "eth0", "down")


def test_all_reduce_between_hosts_until_the_link_is_cut(hosts: list[list[str]]) -> None:
    when_ready: Callable[[Sequence[subprocess.Popen[str]]], None] = _cut_the_link
    ranks = run_ranks(
        "crosses_hosts",
        2,
        f"tcp://{ADDRESSES[0]}:29513",
        str(TIMEOUT_S),
        when_ready=when_ready,
        prefixes=hosts,
    )
    for rank, ended in enumerate(ranks):
        assert ended.code == 0, ended.errors
        seconds, message = ended.output.splitlines()[-2:]
        assert float(seconds) < TIMEOUT_S + 1
        assert f"rank {1 - rank}" in message


def test_the_doctor_names_the_network_and_what_the_ranks_do_not_share(hosts: list[list[str]]) -> None:
    meeting = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29514"}
    ranks = [
        subprocess.Popen(
            [*prefix, sys.executable, "-m", "torch_axon.doctor", "--json"],
            env=environment(RANK=str(rank), **meeting),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, prefix in enumerate(hosts)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    path = json.loads(outputs[0])["pairs"][0]["host"]
    assert path["name"] == "TCP (eth0)"
    assert "not its net namespaces" in path["obstacle"]["reason"]
