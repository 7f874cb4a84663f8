"""Groups are created and destroyed again and again in a process, by every init method, with users' options."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.pool import BACKEND, RankPool, own_rank
from support.processes import leftovers, printed
from support.reference import failure, same_bits


def _check_group(size: int) -> None:
    data = torch.ones(1000)
    dist.all_reduce(data)
    same_bits(data, torch.full((1000,), float(size)))


def _resources() -> tuple[int, int, int]:
    descriptors, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    return descriptors, threads, len(leftovers())


def _again_and_again(size: int, port: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """The store outlives the groups, as torchrun's does, and keeps their entries: all use the same names."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    early = _resources()
    for step in range(100):
        dist.init_process_group(BACKEND, store=store, rank=own_rank(), world_size=size, timeout=timedelta(seconds=30))
        _check_group(size)
        dist.destroy_process_group()
        if step == 10:
            early = _resources()
    return early, _resources()


def test_a_hundred_incarnations_leak_nothing(fresh_ranks) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    keys = server.num_keys()
    ranks: RankPool = fresh_ranks(2, meeting="none")
    for early, late in ranks.run(_again_and_again, 2, server.port, timeout_s=100):
        assert late <= early
        assert all(after <= before for before, after in zip(early, late, strict=True)), (early, late)
    if BACKEND == "axon":
        assert server.num_keys() - keys < 20


def _meet_by_environment(port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(own_rank()), "WORLD_SIZE": "2"}
    dist.init_process_group(BACKEND)
    _check_group(2)
    dist.destroy_process_group()


def _meet_by_address(port: int) -> None:
    dist.init_process_group(BACKEND, init_method=f"tcp://127.0.0.1:{port}", rank=own_rank(), world_size=2)
    _check_group(2)
    dist.destroy_process_group()


def _meet_by_stores(folder: str) -> None:
    for kind in ("file", "prefix", "file again"):
        store: dist.Store = dist.FileStore(f"{folder}/{kind}", 2)
        if kind == "prefix":
            store = dist.PrefixStore("deeper", store)
        dist.init_process_group(BACKEND, store=store, rank=own_rank(), world_size=2)
        _check_group(2)
        dist.destroy_process_group()


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_every_way_to_meet(fresh_ranks, tmp_path: Path) -> None:
    ranks: RankPool = fresh_ranks(2, meeting="none")
    ranks.run(_meet_by_environment, _free_port())
    ranks.run(_meet_by_address, _free_port())
    ranks.run(_meet_by_stores, str(tmp_path))


def _name_devices() -> None:
    for name in (f"cpu:{BACKEND}", BACKEND):
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        _check_group(1)
        assert dist.get_backend() in (BACKEND, f"cpu:{BACKEND}", "custom")
        dist.destroy_process_group()


def test_the_backend_can_be_named_for_the_cpu(fresh_ranks) -> None:
    fresh_ranks(1, meeting="none").run(_name_devices)


def _choose_transports(transports: str, folder: str) -> None:
    os.environ["AXON_UCX_TLS"] = transports
    dist.init_process_group(BACKEND, init_method=f"file://{folder}/store", rank=own_rank(), world_size=2)
    for size in (1, 1000, 1 << 20):
        data = torch.full((size,), float(own_rank() + 1))
        dist.all_reduce(data)
        same_bits(data, torch.full((size,), 3.0))
        incoming = torch.zeros(size)
        sent = dist.isend(torch.full((size,), float(own_rank())), 1 - own_rank())
        dist.recv(incoming, 1 - own_rank())
        sent.wait()
        same_bits(incoming, torch.full((size,), float(1 - own_rank())))
    dist.destroy_process_group()


@pytest.mark.parametrize("transports", ["tcp,self", "posix,self", "sysv,self", "posix,cma,self"])
def test_ranks_of_a_host_with_and_without_shared_memory(transports: str, fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_choose_transports, transports, str(tmp_path))


def _mixed_backends(folder: str) -> None:
    """axon and Gloo work in one process, on the same ranks."""
    method = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=method, rank=own_rank(), world_size=2)
    group = dist.new_group(backend=BACKEND)
    for each in (group, None, group):
        data = torch.ones(10)
        dist.all_reduce(data, group=each)
        same_bits(data, torch.full((10,), 2.0))
    dist.destroy_process_group()


def test_a_group_beside_one_of_gloo(fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_mixed_backends, str(tmp_path))


def _options() -> list[timedelta]:
    import torch_axon

    seen = []
    for arguments in (
        {"pg_options": torch_axon.Options(timeout=timedelta(seconds=7))},
        {"pg_options": torch_axon.Options(timeout=timedelta(seconds=7)), "timeout": timedelta(seconds=9)},
        {"timeout": timedelta(seconds=11)},
    ):
        dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1, **arguments)
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        seen.append(backend.options._timeout)
        group = dist.new_group(pg_options=torch_axon.Options())
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group()
    wrong = dist.ProcessGroupGloo._Options()
    message = failure(
        lambda: dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1, pg_options=wrong)
    )
    assert "pg_options" in message
    assert "torch_axon.Options" in message
    return seen


def test_options_carry_a_timeout(fresh_ranks) -> None:
    seen = fresh_ranks(1, meeting="none").run(_options)[0]
    assert seen == [timedelta(seconds=seconds) for seconds in (7, 9, 11)]


def _absent(folder: str) -> str:
    return failure(
        lambda: dist.init_process_group(
            BACKEND, init_method=f"file://{folder}/store", rank=0, world_size=2, timeout=timedelta(seconds=1)
        )
    )


def test_a_rank_that_never_joins_is_missed(fresh_ranks, tmp_path: Path) -> None:
    message = fresh_ranks(1, meeting="none").run(_absent, str(tmp_path))[0]
    assert "imed out" in message or BACKEND != "axon"


def _set_and_init(variables: dict[str, str]) -> tuple[str, str]:
    """Returns what the first group prints to stderr and raises, with these variables."""
    os.environ.update(variables)
    raised = ""
    with printed() as text, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1)
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
        except Exception as error:
            raised = str(error)
        return text() + "".join(str(one.message) for one in caught), raised


def test_unknown_settings_warn_naming_the_nearest(fresh_ranks) -> None:
    printed, raised = fresh_ranks(1, meeting="none").run(_set_and_init, {"AXON_LOGS": "info"})[0]
    assert "AXON_LOGS" in printed
    assert "mean AXON_LOG?" in printed
    assert not raised


def test_bad_settings_are_errors(fresh_ranks) -> None:
    for name, value in (
        ("AXON_LOG", "loud"),
        ("AXON_ALGO", "all_reduce=abacus"),
        ("AXON_ALGO", "dance=ring"),
        ("AXON_ALGO", "broadcast=ll_one_shot"),
    ):
        _, raised = fresh_ranks(1, meeting="none").run(_set_and_init, {name: value})[0]
        assert name in raised
        assert any(part in raised for part in value.split("="))
