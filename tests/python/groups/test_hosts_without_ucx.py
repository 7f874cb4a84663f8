"""Two hosts whose ranks exchange all messages over rails, as by default: no process initialises UCX."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.gpu import backend_of, exercise_all
from support.hosts import ADDRESSES, Hosts, move_to
from support.out_of_reach import pair_in_use
from support.pool import RankPool, own_rank
from support.processes import run_ranks
from support.reference import failure
from torch_axon.runtime import Runtime

TIMEOUT_S = 3.0
DEFAULT = "auto,rings,cma,cuda"
WITH_RINGS, ALONE, UCX = "rails,rings,cma,cuda", "rails", "ucx,rings,cma,cuda"
SECRET = b"a secret of both hosts"


def _use(transports: str, num_rails: str = "auto") -> None:
    os.environ |= {"AXON_TRANSPORTS": transports, "AXON_RAILS": num_rails}
    if transports == DEFAULT:
        del os.environ["AXON_TRANSPORTS"]


@pytest.mark.parametrize("num_rails", ["0", "2"])
def test_collectives_end_once_a_process_of_the_other_host_is_killed(num_rails: str, hosts: Hosts) -> None:
    with pair_in_use(hosts, 29515, TIMEOUT_S, {"AXON_TRANSPORTS": ALONE, "AXON_RAILS": num_rails}) as pools:
        os.kill(pools[1].pids[0], signal.SIGKILL)
        pools[1].finish(dying=[0])
        [(seconds, message)] = pools[0].finish()
    assert seconds < TIMEOUT_S
    assert "rank 1" in message


def _listening_ports() -> list[int]:
    """Returns the TCP ports on which this process listens."""
    own = {os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if _is_open(number)}
    ports = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                ports.append(int(words[1].rpartition(":")[2], 16))
    return ports


def _is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


def _exchange_everything(store: str, rank: int, num_ranks: int, transports: str, num_rails: str) -> None:
    _use(transports, num_rails)
    before = set(_listening_ports())
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    exercise_all(8, 70_000, 300_000, 8 << 20)
    for peer in range(num_ranks):
        if peer // (num_ranks // 2) != rank // (num_ranks // 2):
            path = backend_of().path_to(peer)
            assert {(name, device) for name, device in path["lanes"] if name != "rail"} == {("tcp", "eth0")}, path
    [port] = set(_listening_ports()) - before
    threads = _threads()
    assert "axon-rails" in threads
    assert not [name for name in threads if "async" in name or "ucx" in name], threads
    _write_as_a_stranger(port, ADDRESSES)
    dist.barrier()
    dist.destroy_process_group()


def _threads() -> list[str]:
    return [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]


def _write_as_a_stranger(port: int, addresses: Sequence[str]) -> None:
    """The port answers garbage by closing the connection."""
    for bytes_ in (b"\0" * 200, b"axrl" + b"\1" * 200, os.urandom(4096)):
        for host in addresses:
            try:
                stranger = socket.create_connection((host, port), timeout=10)
            except ConnectionRefusedError:  # the other host's process has another port
                continue
            with stranger:
                try:
                    stranger.sendall(bytes_)
                    assert stranger.recv(1000) == b""
                except ConnectionError:
                    pass


@pytest.mark.parametrize(
    ("transports", "num_rails"), [(ALONE, "0"), (DEFAULT, "auto"), (WITH_RINGS, "auto"), (WITH_RINGS, "2")]
)
def test_every_operation_works_without_a_port_of_ucx(
    transports: str, num_rails: str, hosts: Hosts, tmp_path: Path
) -> None:
    with RankPool(2, meeting="none") as one, RankPool(2, meeting="none") as other:
        for host, pool in enumerate((one, other)):
            pool.run(move_to, hosts.names[host])
            pool.start(_exchange_on_host, str(tmp_path / "store"), host, transports, num_rails)
        for pool in (one, other):
            pool.finish()


def _exchange_on_host(store: str, host: int, transports: str, num_rails: str) -> None:
    _exchange_everything(store, 2 * host + own_rank(), 4, transports, num_rails)


def _meet(store: str, rank: int, transports: str) -> str:
    _use(transports)
    timeout = timedelta(seconds=TIMEOUT_S)
    return failure(
        lambda: dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timeout)
    )


@pytest.mark.parametrize("transports", [WITH_RINGS, DEFAULT])
def test_ranks_with_different_networks_are_told_so(transports: str, hosts: Hosts, tmp_path: Path) -> None:
    with RankPool(1, meeting="none") as one, RankPool(1, meeting="none") as other:
        for rank, (pool, own) in enumerate(((one, transports), (other, UCX))):
            pool.run(move_to, hosts.names[rank])
            pool.start(_meet, str(tmp_path / "store"), rank, own)
        for pool in (one, other):
            [message] = pool.finish()
            assert re.search("AXON_TRANSPORTS must name ucx for all processes, or for none", message), message


def _meet_and_reduce(store: str, rank: int, transports: str) -> float:
    _use(transports)
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2)
    data = torch.full((200_000,), float(rank + 1))
    dist.all_reduce(data)
    dist.destroy_process_group()
    return float(data[-1])


def test_ranks_that_name_rails_meet_those_that_name_nothing(hosts: Hosts, tmp_path: Path) -> None:
    with RankPool(1, meeting="none") as one, RankPool(1, meeting="none") as other:
        for rank, (pool, transports) in enumerate(((one, WITH_RINGS), (other, DEFAULT))):
            pool.run(move_to, hosts.names[rank])
            pool.start(_meet_and_reduce, str(tmp_path / "store"), rank, transports)
        assert [pool.finish()[0] for pool in (one, other)] == [3.0, 3.0]


def _look_at_ports(store: str, transports: str) -> tuple[int, list[str]]:
    """Returns on how many ports a rank listens in a group of its host, and its threads."""
    _use(transports)
    before = set(_listening_ports())
    dist.init_process_group("axon", init_method=f"file://{store}", rank=own_rank(), world_size=2)
    dist.all_reduce(torch.ones(1000))
    ports = set(_listening_ports()) - before
    if transports != UCX:
        for port in ports:
            _write_as_a_stranger(port, ["127.0.0.1"])
    threads = _threads()
    dist.barrier()
    dist.destroy_process_group()
    return len(ports), threads


def test_a_group_of_one_host_opens_only_the_port_of_rails(tmp_path: Path) -> None:
    with RankPool(2, meeting="none") as ranks:
        for num_ports, threads in ranks.run(_look_at_ports, str(tmp_path / "store"), DEFAULT):
            assert num_ports == 1
            assert not [name for name in threads if "async" in name], threads


def test_ucx_opens_its_port_where_it_is_named(tmp_path: Path) -> None:
    with RankPool(2, meeting="none") as ranks:
        for num_ports, threads in ranks.run(_look_at_ports, str(tmp_path / "store"), UCX):
            assert num_ports >= 2
            assert "async" in threads


@pytest.mark.parametrize("transports", [ALONE, DEFAULT])
@pytest.mark.parametrize("program", ["loads_with_workers", "forks_while_a_message_waits"])
def test_forked_children_leave_the_sockets_alone(program: str, transports: str, tmp_path: Path) -> None:
    prefixes = [["env", f"AXON_TRANSPORTS={transports}"]] * 2
    for ended in run_ranks(program, 2, tmp_path / "store", timeout_s=100, prefixes=prefixes):
        assert ended.code == 0, ended.errors


class _Here:
    runtime: Runtime


def _serve() -> int:
    _use(WITH_RINGS)
    _Here.runtime = Runtime("server", secret=SECRET)

    @_Here.runtime.register
    def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
        return tensor * factor

    return _Here.runtime.listen(ADDRESSES[0])


def _call(port: int) -> None:
    _use(WITH_RINGS)
    with Runtime("client", secret=SECRET) as runtime, runtime.connect((ADDRESSES[0], port)) as server:
        for num_elements in (0, 1, 16_384, 16_385, 70_000, 2_000_000):
            tensor = torch.randn(num_elements)
            answers = [server.invoke("scale", tensor, factor=float(i)) for i in range(4)]
            for i, answer in enumerate(answers):
                assert torch.equal(answer.result(30), i * tensor)


def test_runtimes_call_each_other(hosts: Hosts) -> None:
    with RankPool(1, meeting="none") as server, RankPool(1, meeting="none") as client:
        for host, pool in enumerate((server, client)):
            pool.run(move_to, hosts.names[host])
        [port] = server.run(_serve)
        client.run(_call, port)
