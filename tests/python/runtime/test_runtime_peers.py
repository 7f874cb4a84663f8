"""Which peer `connect` returns: the one that this runtime has, or a new one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from support.runtime_clients import give_up_connecting
from torch_axon.runtime import Peer, PeerLostError, Runtime, RuntimeClosedError, WrongSecretError, current_call

DEADLINE_S = 60
SECRET = "a secret of these tests"


def serving(port: int = 0, name: str = "server") -> Runtime:
    server = Runtime(name, secret=SECRET)
    server.listen("127.0.0.1", port)
    server.register("echo")(lambda value: value)
    return server


def port_of(server: Runtime) -> int:
    return int.from_bytes(server.address[6:8], "little")


@pytest.fixture
def server() -> Iterator[Runtime]:
    with serving() as server:
        yield server


@pytest.fixture
def client() -> Iterator[Runtime]:
    with Runtime("client", secret=SECRET) as client:
        yield client


def expect_works(peer: Peer) -> None:
    assert peer.invoke("echo", 1).result(DEADLINE_S) == 1


def test_every_way_to_a_runtime_leads_to_the_same_peer(server: Runtime, client: Runtime) -> None:
    port = port_of(server)
    peer = client.connect(server.address)
    assert client.connect(server.address) is peer
    assert client.connect(server.address_at("localhost")) is peer
    assert client.connect(("127.0.0.1", port)) is peer
    assert client.connect(f"localhost:{port}", wait=1) is peer
    assert asyncio.run(client.aconnect(server.address)) is peer
    assert client.num_connections == server.num_connections == 1
    assert (server.counts()["met"], server.counts()["hung_up"]) == (1, 0)
    expect_works(peer)


def test_connecting_again_needs_the_secret_and_a_listener(server: Runtime, client: Runtime) -> None:
    address, port = server.address, port_of(server)
    peer = client.connect(address)
    with pytest.raises(WrongSecretError):
        client.connect(address[:-1] + bytes([address[-1] ^ 1]))
    expect_works(peer)
    server.close()
    with pytest.raises(ConnectionError):
        client.connect(("127.0.0.1", port))


def test_a_peer_that_was_closed_on_either_side_is_replaced(server: Runtime, client: Runtime) -> None:
    accepted: list[Peer] = []
    server.register("meet")(lambda: accepted.append(current_call().peer))  # type: ignore[union-attr]
    peer = client.connect(server.address)
    for _ in range(50):
        peer.close()
        second = client.connect(server.address)
        assert second is not peer
        second.invoke("meet").result(DEADLINE_S)
        accepted.pop().close(drain=False)
        third = client.connect(server.address)
        assert third is not second
        expect_works(third)
        with pytest.raises(RuntimeClosedError):
            peer.invoke("echo", 1).result(DEADLINE_S)
        with pytest.raises(PeerLostError):
            second.invoke("echo", 1).result(DEADLINE_S)
        peer = third


def test_a_peer_that_is_closing_is_replaced(server: Runtime, client: Runtime) -> None:
    goes_on = threading.Event()
    server.register("waits")(lambda: goes_on.wait(DEADLINE_S))
    peer = client.connect(server.address)
    call = peer.invoke("waits")
    closing = threading.Thread(target=peer.close)
    closing.start()
    while peer.failure is None:
        pass
    another = client.connect(server.address)
    assert another is not peer
    goes_on.set()
    closing.join(DEADLINE_S)
    assert call.result(DEADLINE_S)
    expect_works(another)


def test_a_restarted_runtime_is_another_peer(client: Runtime) -> None:
    port, met = 0, set[Peer]()
    for _ in range(10):
        with serving(port) as server:
            port = port_of(server)
            peer = client.connect(("127.0.0.1", port))
            assert peer.incarnation == server.incarnation
            expect_works(peer)
            met.add(peer)
    assert len(met) == 10


def test_threads_that_connect_at_once_get_the_same_peer(server: Runtime, client: Runtime) -> None:
    num_threads = 8
    for _ in range(20):
        met: list[Peer] = []
        at_once = threading.Barrier(num_threads)

        def connect(number: int, met: list[Peer] = met, at_once: threading.Barrier = at_once) -> None:
            to = (server.address, ("127.0.0.1", port_of(server)))[number % 2]
            at_once.wait(DEADLINE_S)
            met.append(client.connect(to) if number % 4 else asyncio.run(client.aconnect(to)))

        threads = [threading.Thread(target=connect, args=(number,)) for number in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert len(met) == num_threads
        assert set(met) == {met[0]}
        assert client.num_connections == 1
        expect_works(met[0])
        met[0].close()
    assert server.counts()["met"] == 20


def test_threads_that_connect_in_vain_all_learn_why(client: Runtime) -> None:
    failures: list[BaseException] = []
    with Runtime("full", max_connections=1) as server, Runtime("first") as first:
        first.connect(server.address)

        def connect() -> None:
            with pytest.raises(BufferError, match="max_connections") as failure:
                client.connect(server.address)
            failures.append(failure.value)

        threads = [threading.Thread(target=connect) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert len(failures) == 4


def test_a_cancelled_connect_closes_no_peer_that_others_have(server: Runtime, client: Runtime) -> None:
    async def give_up() -> None:
        await give_up_connecting(client, server.address)
        await asyncio.sleep(0)  # the loop is told of what the thread has found

    peer = client.connect(server.address)
    for _ in range(20):
        asyncio.run(give_up())
    assert client.connect(server.address) is peer
    expect_works(peer)
    peer.close()
    for _ in range(20):
        asyncio.run(give_up())
    while client.num_connections > 0:
        pass


def test_each_runtime_has_peers_of_its_own(server: Runtime, client: Runtime) -> None:
    """Also if one of them was connected to: that connection belongs to the other one."""
    accepted: list[Peer] = []
    server.register("meet")(lambda: accepted.append(current_call().peer))  # type: ignore[union-attr]
    peer = client.connect(server.address)
    peer.invoke("meet").result(DEADLINE_S)
    back = server.connect(client.address)
    assert back is not accepted[0]
    assert back.incarnation == accepted[0].incarnation == client.incarnation
    with Runtime("third", secret=SECRET) as third:
        other = third.connect(server.address)
        other.close()
    expect_works(peer)
    itself = server.connect(server.address)
    assert server.connect(server.address) is itself
    expect_works(itself)
