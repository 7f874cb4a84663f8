"""Runtimes of two hosts that are connected by TCP only."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from support.hosts import ADDRESSES, Hosts, move_to, two_hosts
from support.pool import RankPool
from support.runtime_servers import functions
from torch_axon.runtime import Peer, Runtime, RuntimeClosedError

SECRET = b"a secret of both hosts"
DEADLINE_S = 30.0
CALL_TIMEOUT_S = 1.0


class _Here:
    """The state of a process of these tests between its tasks."""

    runtime: Runtime
    server: Peer
    port: int


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with two_hosts() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def client(hosts: Hosts) -> Iterator[RankPool]:
    """A process of the second host that is connected to a server of the first."""
    with RankPool(1, meeting="none") as server, RankPool(1, meeting="none") as client:
        for host, pool in enumerate((server, client)):
            pool.run(move_to, hosts.names[host])
        [port] = server.run(_serve)
        client.run(_connect, port)
        yield client
        client.run(_close)
        server.run(_close)


def _serve() -> int:
    _Here.runtime = Runtime("server", secret=SECRET)
    functions(_Here.runtime)
    return _Here.runtime.listen(ADDRESSES[0])


def _connect(port: int) -> None:
    _Here.runtime = Runtime("client", secret=SECRET)
    _Here.server = _Here.runtime.connect((ADDRESSES[0], port))
    _Here.port = port


def _close() -> None:
    _Here.runtime.close(drain=False)


def _call_with_tensors() -> None:
    for num_elements in (0, 1, 16_384, 16_385, 2_000_000):
        tensor = torch.randn(num_elements)
        answers = [_Here.server.invoke("scale", tensor, factor=float(i)) for i in range(4)]
        for i, answer in enumerate(answers):
            assert torch.equal(answer.result(DEADLINE_S), i * tensor)


def _call_with_everything_else() -> None:
    assert _Here.server.invoke("echo", {"a": [1, None, "b"]}).result(DEADLINE_S) == {"a": [1, None, "b"]}
    with pytest.raises(ValueError, match="7"):
        _Here.server.invoke("fails", "value").result(DEADLINE_S)
    _Here.server.tell("greet", "from afar").result(DEADLINE_S)
    assert "from afar" in _Here.server.invoke("greeted").result(DEADLINE_S)
    assert [number.numel() for number in _Here.server.iterate("numbers", 5)] == [0, 20_000, 40_000, 0, 20_000]
    _Here.server.send("news", torch.ones(300_000)).result(DEADLINE_S)
    assert _Here.server.invoke("read", DEADLINE_S).result(DEADLINE_S).sum() == 300_000


def _come_and_go() -> None:
    def meet_and_call(runtime: Runtime) -> None:
        with runtime.connect((ADDRESSES[0], _Here.port)) as peer:
            call = peer.invoke("scale", torch.ones(2_000_000))
            word = peer.tell("greet", "again")
        assert call.result(DEADLINE_S).sum() == 4_000_000  # has been waited for
        assert word.exception(DEADLINE_S) is None
        with pytest.raises(RuntimeClosedError, match="peer 'server' was closed here"):
            peer.invoke("echo", 1).result(DEADLINE_S)

    def held_there() -> list[int]:
        counts: list[int] = _Here.server.invoke("held").result(DEADLINE_S)[:3]
        return counts

    before = held_there()
    with Runtime("passing", secret=SECRET) as runtime:
        for _ in range(20):
            meet_and_call(runtime)
    until = time.monotonic() + DEADLINE_S
    while held_there() != before:
        assert time.monotonic() < until, (before, held_there())


def _be_left_alone() -> tuple[float, float, str]:
    """Returns how long calls in flight and later calls took to fail, and the error of the first."""
    under_way = _Here.server.invoke("never", timeout=CALL_TIMEOUT_S)
    began = time.monotonic()
    error = under_way.exception(DEADLINE_S)
    first_s = time.monotonic() - began
    later = _Here.server.invoke("echo", torch.ones(1_000_000), timeout=CALL_TIMEOUT_S)
    began = time.monotonic()
    assert later.exception(DEADLINE_S) is not None
    return first_s, time.monotonic() - began, f"{type(error).__name__}: {error}"


def test_tensors_of_any_size_come_and_go(client: RankPool) -> None:
    client.run(_call_with_tensors)


def test_values_errors_streams_and_messages_come_and_go(client: RankPool) -> None:
    client.run(_call_with_everything_else)


def test_peers_that_are_closed_leave_nothing_at_either_host(client: RankPool) -> None:
    client.run(_come_and_go)


def test_calls_end_by_their_deadline_where_the_link_is_cut(client: RankPool, hosts: Hosts) -> None:
    """This test must be the last here: it does not restore the link, since delayed messages would arrive late."""
    hosts.cut()
    [(first_s, later_s, error)] = client.run(_be_left_alone)
    assert first_s < CALL_TIMEOUT_S + 1, error
    assert later_s < CALL_TIMEOUT_S + 1
    assert error == f"TimeoutError: 'server' has not answered 'never' within {CALL_TIMEOUT_S * 1000:.0f} ms"
