"""Children that outlive their parent, as a DataLoader's workers do: no peer mistakes them for the parent."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.hosts import ADDRESSES, move_to, two_hosts
from support.pool import RankPool
from support.reference import failure
from torch_axon.runtime import Peer, PeerLostError, Runtime

SECRET = b"a secret of both hosts"
DEADLINE_S = 60.0


class _Here:
    """The state of a process of these tests between its tasks."""

    runtime: Runtime
    server: Peer


def _descriptors() -> tuple[list[int], list[int]]:
    """Returns this process's TCP sockets, and other descriptors, some of which tell the pool of its ranks' ends."""
    tcp, others = [], []
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            is_tcp = False
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as each:
                    is_tcp = each.family == socket.AF_INET
            if is_tcp or number > 2:
                (tcp if is_tcp else others).append(number)
    return tcp, others


def _leave_child(note: str, how: str) -> None:
    """Kills this process; a child lives on with all that it has inherited."""
    if how == "forked":
        if (child := os.fork()) == 0:
            for number in _descriptors()[1]:
                os.close(number)
            signal.pause()
            os._exit(0)
    else:
        deadline = time.monotonic() + DEADLINE_S
        while any(os.get_inheritable(number) for number in _descriptors()[0]):
            assert time.monotonic() < deadline, "sockets remain that programs inherit"
            time.sleep(0.01)
        closing = [(os.POSIX_SPAWN_CLOSE, number) for number in _descriptors()[1]]
        child = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ, file_actions=closing)
    Path(note).write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _child_noted_in(note: Path) -> Iterator[None]:
    """Checks at the end that the child of a killed process is still alive."""
    try:
        yield
        os.kill(int(note.read_text()), 0)
    finally:
        if note.exists():
            os.kill(int(note.read_text()), signal.SIGKILL)


def _form(store: str, rank: int) -> None:
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(5))


def _miss_the_other() -> str:
    message = failure(lambda: dist.all_reduce(torch.ones(5)))
    dist.destroy_process_group()
    return message


@pytest.mark.parametrize("how", ["forked", "spawned"])
@pytest.mark.parametrize("where", ["one host", "two hosts"])
def test_a_rank_is_missed_though_a_child_lives(where: str, how: str, tmp_path: Path) -> None:
    store, note = str(tmp_path / "store"), tmp_path / "child"
    with two_hosts() as hosts, RankPool(1, meeting="none") as survivor, RankPool(1, meeting="none") as victim:
        for rank, pool in enumerate((survivor, victim)):
            if where == "two hosts":
                pool.run(move_to, hosts.names[rank])
            pool.start(_form, store, rank)
        for pool in (survivor, victim):
            pool.finish()
        with _child_noted_in(note):
            survivor.start(_miss_the_other)
            victim.run(_leave_child, str(note), how, dying=[0])
            [message] = survivor.finish()
    assert "rank 1 is gone" in message


def _serve(port: int = 0) -> int:
    _Here.runtime = Runtime("server", secret=SECRET)
    _Here.runtime.register("echo")(lambda value: value)
    return _Here.runtime.listen(ADDRESSES[0], port)


def _connect(port: int) -> None:
    _Here.runtime = Runtime("client", secret=SECRET)
    _Here.server = _Here.runtime.connect((ADDRESSES[0], port))
    assert _Here.server.invoke("echo", 1).result(DEADLINE_S) == 1


def _miss_the_server() -> None:
    """A call without an answer keeps the connection in use."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        error = _Here.server.invoke("echo", 1, timeout=DEADLINE_S).exception(DEADLINE_S)
        if error is not None:
            break
        assert time.monotonic() < deadline
    assert isinstance(error, PeerLostError), error
    _Here.runtime.close(drain=False)


def _stop_serving() -> None:
    _Here.runtime.close(drain=False)


@pytest.mark.parametrize("how", ["forked", "spawned"])
def test_a_server_is_missed_and_its_port_is_free_though_a_child_lives(how: str, tmp_path: Path) -> None:
    note = tmp_path / "child"
    with two_hosts() as hosts, RankPool(1, meeting="none") as server, RankPool(1, meeting="none") as client:
        for host, pool in enumerate((server, client)):
            pool.run(move_to, hosts.names[host])
        [port] = server.run(_serve)
        client.run(_connect, port)
        with _child_noted_in(note), RankPool(1, meeting="none") as successor:
            client.start(_miss_the_server)
            server.run(_leave_child, str(note), how, dying=[0])
            client.finish()
            successor.run(move_to, hosts.names[0])
            assert successor.run(_serve, port) == [port]
            successor.run(_stop_serving)
