"""Two hosts whose ranks reach each other through TCP only."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import torch
import torch.distributed as dist

from support.devices import on_cpu_and_gpu
from support.gpu import backend_of, exercise_all
from support.hosts import ADDRESSES, Hosts, move_to
from support.out_of_reach import pair_in_use
from support.pool import RankPool
from support.processes import environment, run_ranks
from support.reference import failure, same_bits

pytestmark = pytest.mark.usefixtures("network")

TIMEOUT_S = 3.0

Returned = TypeVar("Returned")


@pytest.mark.parametrize("num_rails", ["0", "1", "3"])
@pytest.mark.parametrize("obstacle", ["cut", "silence", "stop"])
def test_collectives_between_hosts_end_once_the_other_one_is_out_of_reach(
    obstacle: str, num_rails: str, hosts: Hosts
) -> None:
    with pair_in_use(hosts, 29513, TIMEOUT_S, {"AXON_RAILS": num_rails}) as pools:
        stop, go_on = (partial(os.kill, pools[1].pids[0], number) for number in (signal.SIGSTOP, signal.SIGCONT))
        {"cut": hosts.cut, "silence": hosts.silence, "stop": stop}[obstacle]()
        [first] = pools[0].finish()
        go_on()
        [second] = pools[1].finish()
    for rank, (seconds, message) in enumerate([first, second]):
        if obstacle == "stop" and rank == 1:
            continue
        assert seconds < 5 * TIMEOUT_S  # the network itself would report nothing for minutes
        assert f"rank {1 - rank}" in message


def _run_on_both(
    hosts: Hosts, call: Callable[..., Returned], store: Path, setting_of: Sequence[str] | None = None
) -> list[Returned]:
    """Returns what call(store, rank) returns on each host, or call(store, rank, setting_of[rank])."""
    with RankPool(1, meeting="none") as one, RankPool(1, meeting="none") as other:
        for rank, pool in enumerate((one, other)):
            pool.run(move_to, hosts.names[rank])
            pool.start(call, str(store), rank, *([] if setting_of is None else [setting_of[rank]]))
        return [pool.finish()[0] for pool in (one, other)]


def _exchange_long_messages(store: str, rank: int, num_rails: str) -> None:
    os.environ["AXON_RAILS"] = num_rails
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2)
    for num_bytes in (65_536, 65_537, 262_144, 262_145, 1_048_577, 5_000_000) * 3:
        sent = [(torch.arange(num_bytes) % 251 + source).to(torch.uint8) for source in range(2)]
        for source in range(2):
            data = sent[source].clone() if rank == source else torch.zeros_like(sent[source])
            dist.broadcast(data, src=source)
            same_bits(data, sent[source])
        received = torch.zeros_like(sent[0])
        works = [dist.isend(sent[rank], 1 - rank), dist.irecv(received, 1 - rank)]
        for work in works:
            assert work is not None
            work.wait()
        same_bits(received, sent[1 - rank])
    dist.destroy_process_group()


@pytest.mark.parametrize("num_rails", [("0", "0"), ("0", "2"), ("1", "1"), ("2", "3")])
def test_long_messages_take_the_rails_that_both_ends_have(
    num_rails: tuple[str, str], hosts: Hosts, tmp_path: Path
) -> None:
    _run_on_both(hosts, _exchange_long_messages, tmp_path / "store", num_rails)


def _weights(dtype: torch.dtype, num_elements: int, seed: int) -> torch.Tensor:
    """Normal numbers, among them NaNs with payloads, infinities, both zeros and denormals."""
    values = torch.randn(num_elements, generator=torch.Generator().manual_seed(seed)).mul_(0.02).to(dtype)
    if dtype in (torch.bfloat16, torch.float32):
        bits = values.view(torch.int16 if dtype == torch.bfloat16 else torch.int32)
        shift = 0 if dtype == torch.bfloat16 else 16
        for i, pattern in enumerate([0x7FA1, 0x7FC5, 0x7F80, 0x0001, 0x0000, -0x8000, -0x0043, -0x7FFF]):
            bits[i * 4001 :: 40_009] = (pattern << shift) + (0x1234 if shift else 0)
    return values


def _exchange_floats(store: str, rank: int, compress: str) -> None:
    os.environ["AXON_COMPRESS"] = compress
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2)
    for dtype in (torch.bfloat16, torch.float32, torch.float16, torch.float64):
        for num_elements in (150_000, 1_000_003, 4_000_000):
            sent = [_weights(dtype, num_elements, seed) for seed in range(2)]
            for source in range(2):
                data = sent[source].clone() if rank == source else torch.zeros_like(sent[source])
                dist.broadcast(data, src=source)
                assert torch.equal(data.view(torch.uint8), sent[source].view(torch.uint8))
            gathered = [torch.zeros_like(each) for each in sent]
            dist.all_gather(gathered, sent[rank])
            received = torch.zeros_like(sent[0])
            for work in (dist.isend(sent[rank], 1 - rank), dist.irecv(received, 1 - rank)):
                assert work is not None
                work.wait()
            for got, expected in ((gathered[0], sent[0]), (gathered[1], sent[1]), (received, sent[1 - rank])):
                assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
            total = sent[rank].clone().nan_to_num_(0, 0, 0)
            expected_total = sum(each.nan_to_num(0, 0, 0) for each in sent)
            dist.all_reduce(total)
            assert torch.equal(total, expected_total)
    dist.destroy_process_group()


@pytest.mark.parametrize("compress", [("always", "always"), ("always", "never"), ("auto", "always")])
def test_compressed_tensors_arrive_bit_by_bit(compress: tuple[str, str], hosts: Hosts, tmp_path: Path) -> None:
    _run_on_both(hosts, _exchange_floats, tmp_path / "store", compress)


def _num_bytes_sent() -> int:
    """Returns how many bytes this host has sent over its only device."""
    line = next(line for line in Path("/proc/self/net/dev").read_text().splitlines() if "eth0" in line)
    return int(line.split(":")[1].split()[8])


def _send_weights(store: str, rank: int) -> float:
    """Returns the ratio of bytes on the wire and bytes sent, once the link's speed is known."""
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2)
    data = torch.randn(2 << 20, generator=torch.Generator().manual_seed(1)).mul_(0.02).to(torch.bfloat16)
    before = 0
    for i in range(6):
        if i == 4:
            before = _num_bytes_sent()
        if rank == 0:
            dist.send(data, 1)
        else:
            dist.recv(data, 0)
    ratio = (_num_bytes_sent() - before) / (2 * data.nbytes)
    dist.destroy_process_group()
    return ratio


def test_tensors_are_compressed_by_themselves_on_a_slow_link(hosts: Hosts, tmp_path: Path) -> None:
    hosts.limit("200mbit")
    ratio, _ = _run_on_both(hosts, _send_weights, tmp_path / "store")
    assert 0.7 < ratio < 0.85


def _exchange_everything(store: str, rank: int) -> dict[str, object]:
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2)
    exercise_all(8, 100_000, 8 << 20)
    path: dict[str, object] = backend_of().path_to(1 - rank)
    dist.destroy_process_group()
    return path


def _enter_a_container() -> str:
    """Gives this process its own shared memory, so that it looks like another host. Returns the error, or ""."""
    clone_newipc = 0x08000000  # linux/sched.h
    libc = ctypes.CDLL(None, use_errno=True)
    return "" if libc.unshare(clone_newipc) == 0 else os.strerror(ctypes.get_errno())


@on_cpu_and_gpu
def test_containers_of_a_host_are_hosts_of_their_own(tmp_path: Path, device: str) -> None:
    last_gpu = max(torch.cuda.device_count() - 1, 0)
    with (
        RankPool(1, meeting="none", device=device) as one,
        RankPool(1, meeting="none", device=device, first_gpu=last_gpu) as other,
    ):
        [obstacle] = one.run(_enter_a_container)
        if obstacle:
            pytest.skip(f"needs a namespace of its own: {obstacle}")
        for rank, pool in enumerate((one, other)):
            pool.start(_exchange_everything, str(tmp_path / "store"), rank)
        for pool in (one, other):
            [path] = pool.finish()
            assert not path["same_host"]
            assert path["kernels"] is (None if device == "cpu" else False)


def test_hosts_that_look_alike_are_told_apart(hosts: Hosts, tmp_path: Path) -> None:
    """Emulates machines cloned from one snapshot, whose boot ids and namespaces have the same numbers."""
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    for name in ("pid", "net", "ipc"):
        (numbers / name).touch()
    isolation = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    ranks = run_ranks(
        "meets_a_lookalike",
        2,
        tmp_path / "store",
        str(numbers),
        prefixes=[[*hosts.prefix(rank), *isolation] for rank in range(2)],
    )
    survivor, victim = ranks
    assert survivor.code == 0, survivor.errors
    paths = [json.loads(rank.output.splitlines()[-2 if rank is survivor else -1]) for rank in ranks]
    assert paths[0]["numbers"] == paths[1]["numbers"]
    for path in paths:
        assert not path["same_host"]
        assert {device for name, device in path["lanes"] if name != "rail"} == {"eth0"}
    assert re.search("rank 1 (is gone|cannot be reached)", survivor.output.splitlines()[-1])
    assert victim.code != 0


def _form_and_reduce(store: str, rank: int) -> tuple[str, float]:
    """Returns the error and how long it takes. UCX finds out while the group forms, rails when they connect."""
    timeout = timedelta(seconds=30)

    def form_and_reduce() -> None:
        dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timeout)
        dist.all_reduce(torch.ones(3))

    started = time.monotonic()
    message = failure(form_and_reduce)
    took_s = time.monotonic() - started
    if dist.is_initialized():
        dist.destroy_process_group()
    return message, took_s


def test_a_rank_without_a_way_to_it_is_named(hosts: Hosts, tmp_path: Path) -> None:
    hosts.cut()
    for rank, (message, took_s) in enumerate(_run_on_both(hosts, _form_and_reduce, tmp_path / "store")):
        assert re.search(rf"\[rank {rank} of group '0'\].* rank {1 - rank} (cannot be reached|is gone): ", message)
        assert took_s < 25


class _KilledOnceAnnounced(dist.Store):
    """A store that kills its process as soon as this rank's address is in it."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)
        os.kill(os.getpid(), signal.SIGKILL)


def _be_gone_once_announced(path: str) -> None:
    dist.init_process_group("axon", store=_KilledOnceAnnounced(dist.FileStore(path, 2)), rank=1, world_size=2)


def _meet_the_gone(path: str) -> tuple[str, float, float]:
    """Returns the error, and how long it and leaving take."""
    timeout = timedelta(seconds=TIMEOUT_S)
    started = time.monotonic()

    def meet() -> None:
        store = dist.FileStore(path, 2)
        dist.init_process_group("axon", store=store, rank=0, world_size=2, timeout=timeout)
        dist.all_reduce(torch.ones(3))

    message = failure(meet)
    raised = time.monotonic()
    if dist.is_initialized():
        dist.destroy_process_group()
    left = time.monotonic()
    dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    return message, raised - started, left - raised


def test_a_rank_whose_port_refuses_is_named(hosts: Hosts, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with RankPool(1, meeting="none") as one, RankPool(1, meeting="none") as other:
        for rank, pool in enumerate((one, other)):
            pool.run(move_to, hosts.names[rank])
        one.start(_meet_the_gone, path)
        other.run(_be_gone_once_announced, path, dying=[0])
        [(message, until_raised, until_left)] = one.finish()
    assert re.search("rank 1 cannot be reached|all_reduce.*rank 1", message), message
    assert until_raised < TIMEOUT_S + 1
    assert until_left < TIMEOUT_S


def test_the_doctor_names_the_network_and_what_the_ranks_do_not_share(hosts: Hosts) -> None:
    meeting = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29514"}
    ranks = [
        subprocess.Popen(
            [*hosts.prefix(rank), sys.executable, "-m", "torch_axon.doctor", "--json"],
            env=environment(RANK=str(rank), **meeting),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    path = json.loads(outputs[0])["pairs"][0]["host"]
    assert path["name"].startswith("TCP (eth0)")
    assert "not the net namespaces" in path["obstacle"]["reason"]
