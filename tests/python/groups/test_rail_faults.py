"""Rails between two hosts over several devices, over IPv6, beside forks, and with a peer or a device that stops."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.gpu import backend_of
from support.hosts import Hosts, pools_on
from support.pool import RankPool
from support.reference import failure, same_bits

pytestmark = pytest.mark.usefixtures("network")

_NUM_BYTES = 8 << 20
_SECOND_LINK = ("10.213.78.1", "10.213.78.2")
_ON_TWO_DEVICES = {"AXON_RAILS": "4", "AXON_RAIL_DEVICES": "eth0,eth1", "AXON_UCX_NET_DEVICES": "eth0"}

Pools = tuple[RankPool, RankPool]


@pytest.fixture
def pools(hosts: Hosts) -> Iterator[Pools]:
    """One process on each host."""
    with pools_on(hosts, 1) as pools:
        yield pools


def _on_both(pools: Pools, call: Callable[..., object], *arguments: object) -> None:
    for rank, pool in enumerate(pools):
        pool.start(call, rank, *arguments)
    for pool in pools:
        pool.finish()


@contextmanager
def _later(actions: Mapping[float, Callable[[], object]]) -> Iterator[None]:
    """Does each action after its delay in seconds, and waits for all of them at the end."""
    timers = [threading.Timer(delay_s, action) for delay_s, action in actions.items()]
    for timer in timers:
        timer.start()
    yield
    for timer in timers:
        timer.join()


def _pattern(source: int, number: int) -> torch.Tensor:
    return (torch.arange(_NUM_BYTES, dtype=torch.int32) * 7 + number + 101 * source).to(torch.uint8)


def _exchange(rank: int, number: int) -> None:
    received = torch.zeros(_NUM_BYTES, dtype=torch.uint8)
    works = [dist.isend(_pattern(rank, number), 1 - rank), dist.irecv(received, 1 - rank)]
    for work in works:
        assert work is not None
        work.wait()
    same_bits(received, _pattern(1 - rank, number))


def _num_rails(rank: int) -> int:
    return sum(name == "rail" for name, _ in backend_of().path_to(1 - rank)["lanes"])


def _open_rails(rank: int, store: str, variables: dict[str, str], timeout_s: float = 60) -> None:
    """Forms the group, and exchanges messages until all rails are open at both ranks."""
    os.environ.update(variables)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timeout)
    deadline = time.monotonic() + 20
    for number in range(1000):
        _exchange(rank, number)
        missing = torch.tensor([int(variables["AXON_RAILS"]) - _num_rails(rank)])
        dist.all_reduce(missing, dist.ReduceOp.MAX)
        if missing.item() == 0:
            return
        assert time.monotonic() < deadline, backend_of().path_to(1 - rank)
    raise AssertionError("the rails do not open")


def _leave(_rank: int) -> None:
    dist.destroy_process_group()


def _num_sent(device: str) -> int:
    return int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())


def _use_both_devices(rank: int) -> None:
    before = {device: _num_sent(device) for device in ("eth0", "eth1")}
    for number in range(8):
        _exchange(rank, number)
    dist.barrier()
    for device, num_bytes in before.items():
        assert _num_sent(device) - num_bytes > _NUM_BYTES, device


def test_all_devices_that_are_named_carry_bytes(hosts: Hosts, pools: Pools, tmp_path: Path) -> None:
    hosts.add_link("eth1", _SECOND_LINK)
    _on_both(pools, _open_rails, str(tmp_path / "store"), _ON_TWO_DEVICES)
    _on_both(pools, _use_both_devices)
    _on_both(pools, _leave)


def _exchange_some(rank: int, count: int) -> None:
    for number in range(count):
        _exchange(rank, number)


def test_a_device_that_goes_down_leaves_its_stripes_to_the_others(hosts: Hosts, pools: Pools, tmp_path: Path) -> None:
    hosts.add_link("eth1", _SECOND_LINK)
    _on_both(pools, _open_rails, str(tmp_path / "store"), _ON_TWO_DEVICES)
    subprocess.run(["ip", "-n", hosts.names[0], "link", "set", "eth1", "down"], check=True)
    _on_both(pools, _exchange_some, 3)  # the first one waits until the rails over the device have been silent too long
    _on_both(pools, _leave)


def _exchange_over_open_rails(rank: int) -> None:
    _exchange_some(rank, 3)
    assert _num_rails(rank) == 4


def test_rails_over_throttled_links_stay_open(hosts: Hosts, pools: Pools, tmp_path: Path) -> None:
    hosts.add_link("eth1", _SECOND_LINK)
    _on_both(pools, _open_rails, str(tmp_path / "store"), _ON_TWO_DEVICES)
    hosts.limit("50mbit", "eth1")
    _on_both(pools, _exchange_over_open_rails)
    hosts.limit("50mbit", "eth0")
    _on_both(pools, _exchange_over_open_rails)
    hosts.lift_limit("eth1")
    _on_both(pools, _exchange_over_open_rails)
    _on_both(pools, _leave)


def _leave_a_slow_device_few_bytes(rank: int) -> None:
    """The message has 16 stripes. While a slow rail sends one, that over the other device sends nearly all of them."""
    data = torch.ones(16 << 20, dtype=torch.uint8)
    before = {device: _num_sent(device) for device in ("eth0", "eth1")}
    for source in (0, 1):
        dist.send(data, 1 - rank) if rank == source else dist.recv(data, 1 - rank)
    dist.barrier()
    sent = {device: _num_sent(device) - num_bytes for device, num_bytes in before.items()}
    assert sent["eth1"] < sum(sent.values()) / 5, sent


def test_bytes_move_from_a_throttled_device_to_another_one(hosts: Hosts, pools: Pools, tmp_path: Path) -> None:
    hosts.add_link("eth1", _SECOND_LINK)
    variables = _ON_TWO_DEVICES | {"AXON_RAILS": "2", "AXON_COMPRESS": "never"}
    _on_both(pools, _open_rails, str(tmp_path / "store"), variables)
    _on_both(pools, _exchange_some, 20)  # their sockets get room for several stripes
    hosts.limit("25mbit", "eth1")
    _on_both(pools, _leave_a_slow_device_few_bytes)
    _on_both(pools, _leave)


# With rails for all messages, the one for short messages would break as well, which is the loss of the peer.
@pytest.mark.parametrize("network", ["ucx"], indirect=True)
def test_a_message_outlives_rails_that_break_twice(hosts: Hosts, pools: Pools, tmp_path: Path) -> None:
    hosts.add_link("eth1", _SECOND_LINK)
    on_the_second = {"AXON_RAILS": "1", "AXON_RAIL_DEVICES": "eth1", "AXON_UCX_NET_DEVICES": "eth0"}
    _on_both(pools, _open_rails, str(tmp_path / "store"), on_the_second)
    hosts.limit("25mbit", "eth1")  # 8 MiB take 2.7 s, and longer after each reset
    with _later({delay_s: partial(hosts.reset, 0, "dst 10.213.78.0/24") for delay_s in (1, 4)}):
        _on_both(pools, _exchange_some, 3)
    _on_both(pools, _leave)


def _leave_the_fast_link_to_one_connection(rank: int, store: str) -> None:
    """With two cores, exchanges messages until the rail is found to be fast."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    os.environ["OMP_NUM_THREADS"] = "1"
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2)
    deadline = time.monotonic() + 60
    for number in range(10_000):
        _exchange(rank, number)
        reasons = backend_of().path_to(1 - rank)["network_obstacles"]
        agreed = torch.tensor([int(any("its link is fast" in reason for reason in reasons))])
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        if agreed.item():
            return
        assert time.monotonic() < deadline, reasons
    raise AssertionError(reasons)


def test_fast_links_need_no_rails_where_cores_are_few(hosts: Hosts, pools: Pools, tmp_path: Path) -> None:
    hosts.control_congestion("reno")
    _on_both(pools, _leave_the_fast_link_to_one_connection, str(tmp_path / "store"))
    _on_both(pools, _leave)


def _exchange_over_ipv6(rank: int) -> None:
    _exchange(rank, 1)
    routes = {device for name, device in backend_of().path_to(1 - rank)["lanes"] if name == "rail"}
    assert routes == {f"eth1 to [fd00:77::{2 - rank}]"}


def test_rails_run_over_ipv6(hosts: Hosts, pools: Pools, tmp_path: Path) -> None:
    hosts.add_link("eth1", _SECOND_LINK)
    for number, name in enumerate(hosts.names):
        subprocess.run(["ip", "-n", name, "address", "flush", "dev", "eth1"], check=True)
        address = ["address", "add", f"fd00:77::{number + 1}/64", "dev", "eth1", "nodad"]
        if subprocess.run(["ip", "-n", name, *address], check=False).returncode != 0:
            pytest.skip("this kernel has no IPv6")
    variables = _ON_TWO_DEVICES | {"AXON_RAIL_DEVICES": "eth1"}
    _on_both(pools, _open_rails, str(tmp_path / "store"), variables)
    _on_both(pools, _exchange_over_ipv6)
    _on_both(pools, _leave)


def test_a_peer_that_is_stopped_for_a_while_goes_on(pools: Pools, tmp_path: Path) -> None:
    _on_both(pools, _open_rails, str(tmp_path / "store"), {"AXON_RAILS": "3"})
    victim = pools[1].pids[0]
    with _later({0.1: partial(os.kill, victim, signal.SIGSTOP), 3: partial(os.kill, victim, signal.SIGCONT)}):
        _on_both(pools, _exchange_some, 5)
    _on_both(pools, _leave)


def _fork_between_messages(rank: int) -> None:
    """The child neither holds up nor ends its parent's rails, whether it leaves or is still there."""
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            said = failure(lambda: dist.send(torch.zeros(_NUM_BYTES, dtype=torch.uint8), 1 - rank))
            if number % 2:
                time.sleep(60)
            os._exit(0 if "was forked from one that uses torch_axon" in said else 1)
        children.append(child)
        _exchange(rank, number)
        if number % 2 == 0:
            assert os.waitpid(child, 0)[1] == 0
    assert _num_rails(rank) == 3
    dist.destroy_process_group()
    for child in children[1::2]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_children_of_a_process_with_rails_leave_them_alone(pools: Pools, tmp_path: Path) -> None:
    _on_both(pools, _open_rails, str(tmp_path / "store"), {"AXON_RAILS": "3"})
    _on_both(pools, _fork_between_messages)
