"""How a runtime connects: to what, how long it tries, without blocking a loop, and what an address reveals."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import closing

import pytest

from support.runtime_clients import give_up_connecting
from torch_axon.runtime import (
    Peer,
    Runtime,
    RuntimeClosedError,
    UnknownHostError,
    VersionMismatchError,
    WrongSecretError,
)

DEADLINE_S = 60
SECRET = "a secret of these tests"


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        port: int = held.getsockname()[1]
        return port


def test_host_and_port_are_understood_in_several_forms() -> None:
    with Runtime("server", secret=SECRET) as server, Runtime("client", secret=SECRET) as client:
        server.register("echo")(lambda value: value)
        port = server.listen()
        for to in (
            ("127.0.0.1", port),
            ["127.0.0.1", port],
            ("127.0.0.1", str(port)),
            f"127.0.0.1:{port}",
            server.address,
            bytearray(server.address),
            memoryview(server.address),
        ):
            assert client.connect(to).invoke("echo", 1).result(DEADLINE_S) == 1


@pytest.mark.parametrize(
    ("to", "error", "text"),
    [
        ("server", ValueError, "connect: to is 'server', without a port; allowed: 'host:port'"),
        ("server:http", TypeError, "connect: port is 'http'; allowed: 1 to 65535"),
        (":80", TypeError, "connect: host is ''; allowed: a name or an address"),
        (("server", 0), ValueError, "connect: port is 0; allowed: 1 to 65535"),
        (("server", 65536), ValueError, "connect: port is 65536; allowed"),
        (("server", 1.5), TypeError, "connect: port is 1.5; allowed"),
        ((b"server", 80), TypeError, "connect: host is b'server'; allowed"),
        (("server", 80, 1), TypeError, r"connect: to is \('server', 80, 1\); allowed: the address of a runtime"),
        (4000, TypeError, "connect: to is 4000; allowed: the address of a runtime"),
        (b"nonsense", ValueError, "address of a runtime: 8 bytes are too few"),
    ],
)
def test_what_is_no_place_is_named(to: object, error: type[Exception], text: str) -> None:
    with Runtime("client", secret=SECRET) as client, pytest.raises(error, match=text):
        client.connect(to)  # type: ignore[arg-type]


def test_what_is_no_secret_is_named_but_not_printed() -> None:
    with pytest.raises(TypeError, match="secret is of type list; allowed: bytes or text"):
        Runtime("client", secret=[1, 2])  # type: ignore[arg-type]


def test_names_of_runtimes_have_a_length() -> None:
    with pytest.raises(ValueError, match="a runtime's name is 0 bytes long; allowed: 1 to 255"):
        Runtime("")


def test_what_is_no_place_to_listen_at_is_named() -> None:
    with Runtime("server", secret=SECRET) as server:
        with pytest.raises(ValueError, match="listen: port is 70000; allowed: 0 to 65535"):
            server.listen("127.0.0.1", 70000)
        with pytest.raises(TypeError, match="listen: host is None; allowed: a name"):
            server.listen(None)  # type: ignore[arg-type]


def test_what_goes_wrong_on_the_way_is_a_connection_error() -> None:
    with Runtime("server", secret=SECRET) as server, Runtime("guessing", secret="another secret of theirs") as guessing:
        port = server.listen()
        with pytest.raises(WrongSecretError, match="the secrets of the two ends differ"):
            guessing.connect(("127.0.0.1", port), wait=DEADLINE_S)  # which waiting does not change
        with pytest.raises(UnknownHostError, match=r"host 'host\.invalid' is not known"):
            guessing.connect("host.invalid:80")
        with pytest.raises(ConnectionError, match="cannot be reached: Connection refused"):
            guessing.connect(("127.0.0.1", free_port()))
    for error in (WrongSecretError, UnknownHostError, VersionMismatchError):
        assert issubclass(error, ConnectionError)


def test_connecting_waits_for_a_server_that_is_about_to_come_up() -> None:
    port = free_port()
    with Runtime("client", secret=SECRET) as client, Runtime("server", secret=SECRET) as server:
        with pytest.raises(ConnectionError, match=r"Connection refused \(attempt \d+, within wait=0\.05 s\)"):
            client.connect(("127.0.0.1", port), wait=0.05)
        met: list[Peer] = []
        waiting = threading.Thread(target=lambda: met.append(client.connect(("127.0.0.1", port), wait=DEADLINE_S)))
        waiting.start()
        server.listen("127.0.0.1", port)
        waiting.join(DEADLINE_S)
        assert met[0].name == "server"
        for wait in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="connect: wait is"):
                client.connect(("127.0.0.1", port), wait=wait)


def test_connecting_goes_on_from_an_address_where_no_process_answers() -> None:
    """In a network that is being set up, another listener may replace the first one at an address."""
    with Runtime("client", secret=SECRET) as client, Runtime("server", secret=SECRET) as server:
        silent = socket.create_server(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        met: list[Peer] = []
        waiting = threading.Thread(target=lambda: met.append(client.connect(f"127.0.0.1:{port}", wait=DEADLINE_S)))
        waiting.start()
        kept, _ = silent.accept()  # it waits for an answer now, for less than `timeout`
        silent.close()
        server.listen("127.0.0.1", port)
        waiting.join(DEADLINE_S)
        kept.close()
        assert met[0].name == "server"


def test_waiting_ends_when_the_runtime_is_closed() -> None:
    async def main(client: Runtime) -> None:
        connecting = asyncio.create_task(client.aconnect(f"127.0.0.1:{free_port()}", wait=DEADLINE_S))
        await asyncio.sleep(0)
        client.close()
        with pytest.raises(RuntimeClosedError, match="'client' is closed"):
            await connecting

    asyncio.run(main(Runtime("client", secret=SECRET)))


def test_connecting_does_not_block_a_loop() -> None:
    async def main(client: Runtime, server: Runtime, port: int) -> None:
        connecting = asyncio.create_task(client.aconnect(f"127.0.0.1:{port}", wait=DEADLINE_S))
        for _ in range(10):
            await asyncio.sleep(0)  # the loop runs meanwhile
        assert not connecting.done()
        server.listen("127.0.0.1", port)
        async with await connecting as peer:
            assert peer.name == "server"
        with pytest.raises(TypeError, match="connect: to is 3"):
            await client.aconnect(3)  # type: ignore[arg-type]

    with Runtime("server", secret=SECRET) as server, Runtime("client", secret=SECRET) as client:
        asyncio.run(main(client, server, free_port()))


def test_connecting_can_be_cancelled() -> None:
    async def main(client: Runtime, silent: socket.socket) -> None:
        for to in (f"127.0.0.1:{free_port()}", silent.getsockname()):
            connecting = asyncio.create_task(client.aconnect(to, timeout=0.5, wait=DEADLINE_S))
            await asyncio.sleep(0)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.aconnect(silent.getsockname(), timeout=0.5, wait=DEADLINE_S), 0.01)

    with Runtime("client", secret=SECRET) as client, socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(main(client, silent))
        for thread in threading.enumerate():
            if thread.name == "axon-connect client":
                thread.join(DEADLINE_S)
                assert not thread.is_alive()
        assert client.num_connections == 0


def test_a_connection_that_comes_too_late_is_closed() -> None:
    async def main(client: Runtime, address: bytes) -> None:
        await give_up_connecting(client, address)

    with Runtime("server") as server, Runtime("client") as client:
        for _ in range(20):
            asyncio.run(main(client, server.address))
        other = client.connect(server.address)
        deadline = threading.Event()
        while client.num_connections > 1 and not deadline.wait(0.001):
            pass
        assert other.failure is None


def test_an_address_does_not_hold_the_secret() -> None:
    with Runtime("server", secret=SECRET) as server, Runtime("stranger") as stranger:
        port = server.listen()
        assert SECRET.encode() not in server.address
        assert stranger.connect(server.address).name == "server"
        other = Runtime("other", secret=SECRET)
        with other:
            other.listen()
            assert other.address[-32:] != server.address[-32:]
            # a message that opens one listener opens no other one with the same secret
            forged = server.address[:6] + other.address[6:8] + server.address[8:]
            with pytest.raises(WrongSecretError):
                stranger.connect(forged)
        address = server.address
    with Runtime("server", secret=SECRET) as restarted:
        restarted.listen("127.0.0.1", port)
        with Runtime("stranger") as stranger:
            assert stranger.connect(address).name == "server"


def test_an_address_without_a_secret_ends_with_its_runtime() -> None:
    with Runtime("server") as server, Runtime("client") as client:
        first = server.address
        port = int.from_bytes(first[6:8], "little")
        server.close()
        with Runtime("again", secret=SECRET) as again:
            again.listen("127.0.0.1", port)
            with pytest.raises(WrongSecretError):
                client.connect(first)


def test_connecting_from_a_runtime_that_is_closed_says_so() -> None:
    client = Runtime("client", secret=SECRET)
    client.close()
    with Runtime("server", secret=SECRET) as server, pytest.raises(RuntimeClosedError, match="'client' is closed"):
        client.connect(server.address, wait=DEADLINE_S)
