"""The system denies resources: groups and runtimes work without them, or name them, and no rank hangs or dies."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import scarce
from support.gpu import backend_of
from support.pool import RankPool, own_rank
from support.processes import environment
from support.reference import failure
from torch_axon.runtime import Runtime

SMALL, FULL, READ_ONLY = "size=16m", "size=16k", "size=64m,ro"


def _init(store: str, size: int = 2, timeout_s: float = 30) -> None:
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("axon", init_method=f"file://{store}", rank=own_rank(), world_size=size, timeout=timeout)


def _log_to(path: str) -> None:
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)


def _exchange(store: str, size: int) -> list[str]:
    """Returns the lanes that carried messages from rank 0 to the last one; raises at a wrong message."""
    _init(store, size)
    for count in (1, 5000, 1 << 20):
        data = torch.full((count,), float(own_rank() + 1))
        dist.all_reduce(data)
        assert bool((data == size * (size + 1) / 2).all())
    peer = size - 1 if own_rank() == 0 else 0
    lanes = [str(name) for name, _ in backend_of().path_to(peer)["lanes"]]
    dist.destroy_process_group()
    return lanes


def _scarce_shared_memory(ranks: RankPool, options: str) -> None:
    obstacles = ranks.run(scarce.mount_shared_memory, options)
    if any(obstacles):
        pytest.skip(f"needs a /dev/shm of its own: {obstacles[0]}")


def _use(transports: str) -> None:
    os.environ["AXON_TRANSPORTS"] = transports


@pytest.mark.parametrize("options", [SMALL, FULL, READ_ONLY])
def test_groups_need_no_dev_shm(options: str, tmp_path: Path) -> None:
    with RankPool(3, meeting="none") as ranks:
        _scarce_shared_memory(ranks, options)
        for lanes in ranks.run(_exchange, str(tmp_path / "store"), 3):
            assert "ring" in lanes


@pytest.mark.parametrize("options", [SMALL, FULL, READ_ONLY])
def test_without_rings_a_scarce_dev_shm_is_named_and_tcp_serves(options: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with RankPool(3, meeting="none") as ranks:
        _scarce_shared_memory(ranks, options)
        ranks.run(_log_to, str(log))
        ranks.run(_use, "ucx")
        lanes = ranks.run(_exchange, str(tmp_path / "store"), 3)
    if options == SMALL:  # each has its own, which has room for one process
        assert all("posix" in each for each in lanes)
        assert log.read_text() == ""
    else:
        assert all("tcp" in each and "posix" not in each for each in lanes)
        assert (
            log.read_text().count("take TCP: UCX wants 5 MiB of shared memory for each process and finds /dev/shm") == 3
        )
        assert "--shm-size" in log.read_text()


def test_ranks_that_share_a_dev_shm_too_small_for_all_go_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with RankPool(1, meeting="none") as first:
        _scarce_shared_memory(first, "size=9m")
        [pid] = first.pids
        with RankPool(3, meeting="none") as ranks:
            ranks.run(scarce.share_mounts, pid)
            ranks.run(_log_to, str(log))
            ranks.run(_use, "ucx")
            ranks.run(_exchange, str(tmp_path / "store"), 3)
    assert "/dev/shm (9 MiB, " in log.read_text()


def _init_with_ucx_over(transports: str, store: str) -> str:
    os.environ["AXON_UCX_TLS"] = transports
    _use("ucx")
    return failure(lambda: _init(store))


def test_shared_memory_that_the_user_insists_on_is_named_where_it_is_missing(tmp_path: Path) -> None:
    with RankPool(1, meeting="none") as ranks:
        _scarce_shared_memory(ranks, READ_ONLY)
        [message] = ranks.run(_init_with_ucx_over, "posix,self", str(tmp_path / "store"))
    assert "/dev/shm (64 MiB, 64 MiB of them free, read-only)" in message


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and `unshare`")
@pytest.mark.parametrize("level", [1, 2])
def test_rings_need_no_executable_memory(level: int) -> None:
    setting = f'echo {level} > /proc/sys/vm/memfd_noexec || exit 77; exec "$@"'
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", setting, "sh"]
    doctor = [*namespace, sys.executable, "-m", "torch_axon.doctor", "--ranks", "2", "--json"]
    done = subprocess.run(doctor, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    if done.returncode == 77:
        pytest.skip("before Linux 6.3, or the setting may not be changed")
    assert json.loads(done.stdout)["pairs"][0]["host"]["name"] == "rings + CMA", done.stderr


# ---- Calls that are refused


@pytest.mark.parametrize(
    "refused",
    [
        {"memfd_create": errno.ENOMEM},
        {"memfd_create": errno.EPERM},
        {"inotify_init": errno.EMFILE, "inotify_init1": errno.EMFILE},
        {"process_vm_readv": errno.EPERM},
        {"pidfd_open": errno.ENOSYS},
    ],
    ids=str,
)
def test_groups_do_without_calls_that_are_refused(refused: dict[str, int], tmp_path: Path) -> None:
    scarce.need_seccomp()
    log = tmp_path / "log"
    with RankPool(2, meeting="none") as ranks:
        ranks.run(_log_to, str(log))
        ranks.run(scarce.refuse_calls, refused)
        lanes = ranks.run(_exchange, str(tmp_path / "store"), 2)
    takes_rings = "memfd_create" not in refused
    assert all(("ring" in each) == takes_rings for each in lanes)
    assert ("memfd_create" in log.read_text()) != takes_rings


def _die_or_hear(store: str) -> str:
    _init(store)
    dist.all_reduce(torch.ones(1))
    if own_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    message = failure(lambda: [dist.all_reduce(torch.ones(1)) for _ in range(2)])
    dist.destroy_process_group()
    return message


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_a_death_is_noticed_without_pidfd_open(error: int, tmp_path: Path) -> None:
    scarce.need_seccomp()
    with RankPool(2, meeting="none") as ranks:
        ranks.run(scarce.refuse_calls, {"pidfd_open": error})
        [message, _] = ranks.run(_die_or_hear, str(tmp_path / "store"), dying=[1])
    assert "Timed out" not in message
    assert "rank 1 is gone: its process " in message


def _init_without_threads(store: str) -> str:
    scarce.refuse_threads()
    return failure(lambda: _init(store, 1))


def _open_without_threads() -> str:
    scarce.refuse_threads()
    return failure(lambda: Runtime("short of threads"))


def _listen_without_threads() -> list[str]:
    os.environ["AXON_SECRET"] = "a secret of the test"
    with Runtime("short of threads") as runtime:
        scarce.refuse_threads()
        assert "can't start new thread" in failure(lambda: Runtime("another"))
        return [
            failure(lambda: runtime.listen("127.0.0.1", 0)),
            failure(lambda: runtime.address),
        ]


def test_threads_that_cannot_be_started_are_named(tmp_path: Path) -> None:
    scarce.need_seccomp()
    with RankPool(1, meeting="none") as ranks:
        [message] = ranks.run(_init_without_threads, str(tmp_path / "store"))
        assert "thread" in message
        assert "ulimit -u" in message
    with RankPool(1, meeting="none") as ranks:
        [message] = ranks.run(_open_without_threads)
        assert "thread" in message
    with RankPool(1, meeting="none") as ranks:
        for message in ranks.run(_listen_without_threads)[0]:
            assert "the thread 'axon-listener' cannot be started" in message
            assert "ulimit -u" in message


def _without_locked_memory() -> None:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))


def test_groups_lock_no_memory(tmp_path: Path) -> None:
    with RankPool(2, meeting="none") as ranks:
        ranks.run(_without_locked_memory)
        for lanes in ranks.run(_exchange, str(tmp_path / "store"), 2):
            assert "ring" in lanes


# ---- File descriptors


def _start_with(number: int, store: str) -> str:
    scarce.leave_descriptors(number)
    return failure(lambda: _init(store, 1))


def test_an_engine_that_does_not_find_its_descriptors_says_so(tmp_path: Path) -> None:
    with RankPool(1, meeting="none") as ranks:
        for number in (1, 12):
            [message] = ranks.run(_start_with, number, str(tmp_path / f"store{number}"))
            assert "file descriptors of this process are left" in message
            assert "are needed to start torch_axon" in message


def _init_alone(store: str) -> None:
    dist.init_process_group("axon", init_method=f"file://{store}alone", rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def _form_short_of_descriptors(number: int, store: str) -> str:
    _init_alone(store + str(own_rank()))
    if own_rank() == 1:
        scarce.leave_descriptors(number)
    return failure(lambda: _init(store, timeout_s=3))


def test_a_rank_without_descriptors_for_the_others_says_so(tmp_path: Path) -> None:
    with RankPool(2, meeting="none") as ranks:
        [other, message] = ranks.run(_form_short_of_descriptors, 9, str(tmp_path / "store"))
    assert "9 of " in message
    assert "are needed to meet another process; ulimit -n raises the limit" in message
    assert "Not joined by: rank 1" in other


def _serve(_: str) -> Any:
    runtime = Runtime("server")
    runtime.register("echo")(lambda value: value)
    _SERVING.append(runtime)
    address = runtime.address
    scarce.leave_descriptors(30)
    return address


_SERVING: list[Runtime] = []


def _take_all_descriptors() -> None:
    _HELD.append([])
    try:
        while True:
            _HELD[-1].append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass


_HELD: list[list[int]] = []


def _give_descriptors_back() -> None:
    for descriptor in _HELD.pop():
        os.close(descriptor)


def _refusals_of_many_connections(address: bytes) -> list[str]:
    """The process connects as often as connections are accepted, each time from another runtime."""
    said = []
    with ExitStack() as stack:
        peers = []
        while len(said) < 3:
            assert len(peers) < 100
            try:
                peers.append(stack.enter_context(Runtime("many")).connect(address, timeout=5))
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        data = torch.ones(100_000)
        for peer in peers:
            assert torch.equal(peer.invoke("echo", data).result(10), data)
        said.append(str(len(peers)))
    return said


def _connect(address: bytes) -> str:
    with Runtime("latecomer") as runtime:
        try:
            with runtime.connect(address, timeout=5) as peer:
                return str(peer.invoke("echo", "here").result(10))
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def _eventually(call: Callable[[], str], wanted: str) -> str:
    deadline = time.monotonic() + 20
    while (said := call()) != wanted and time.monotonic() < deadline:
        pass
    return said


def test_a_server_refuses_in_words_whom_it_has_no_descriptors_for(tmp_path: Path) -> None:
    with RankPool(1, meeting="none") as server, RankPool(1, meeting="none") as client:
        [address] = server.run(_serve, "")
        [(*refusals, accepted)] = client.run(_refusals_of_many_connections, address)
        assert int(accepted) > 5
        for refusal in refusals:
            assert "file descriptors of this process are left" in refusal
        assert _eventually(lambda: client.run(_connect, address)[0], "here") == "here"
        server.run(_take_all_descriptors)
        [refusal] = client.run(_connect, address)
        assert "refuses: " in refusal
        assert "ulimit -n" in refusal
        server.run(_give_descriptors_back)
        assert client.run(_connect, address) == ["here"]
