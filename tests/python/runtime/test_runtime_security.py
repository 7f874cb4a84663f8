"""External input to a runtime: strangers, wrong secrets, replayed bytes, many connections, oversized messages."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from support.processes import environment
from torch_axon.runtime import Peer, Runtime, WrongSecretError

SECRET = b"a secret of these tests"
DEADLINE_S = 30


@pytest.fixture
def server() -> Iterator[Runtime]:
    with Runtime("server", secret=SECRET) as runtime:

        @runtime.register
        def double(tensor: torch.Tensor) -> torch.Tensor:
            return 2 * tensor

        yield runtime


@contextmanager
def client_of(server: Runtime, secret: bytes = SECRET) -> Iterator[Peer]:
    with Runtime("client", secret=secret) as runtime:
        yield runtime.connect(("127.0.0.1", port_of(server)))


def port_of(server: Runtime) -> int:
    if not server.counts():
        server.listen()
    return int.from_bytes(server.address[6:8], "little")


def expect_works(peer: Peer) -> None:
    tensor = torch.arange(100_000)
    assert torch.equal(peer.invoke("double", tensor).result(DEADLINE_S), 2 * tensor)


def await_count(server: Runtime, name: str, number: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while server.counts()[name] < number:
        assert time.monotonic() < deadline, server.counts()
    assert server.counts()[name] == number


def test_a_wrong_secret_is_refused_and_said_so(server: Runtime) -> None:
    with client_of(server) as peer:
        with (
            Runtime("stranger", secret=b"another secret of 16 bytes") as stranger,
            pytest.raises(WrongSecretError, match=r"127\.0\.0\.1:\d+ refuses: the secrets of the two ends differ"),
        ):
            stranger.connect(("127.0.0.1", port_of(server)))
        await_count(server, "wrong_secret", 1)
        expect_works(peer)


def test_foreign_bytes_are_dropped_while_calls_go_on(server: Runtime) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    noise = random.Random(seed)
    with client_of(server) as peer:
        for number in range(1, 51):
            with socket.create_connection(("127.0.0.1", port_of(server)), timeout=DEADLINE_S) as stranger:
                stranger.sendall(b"?" + noise.randbytes(noise.randrange(11, 200)))
                assert received_all(stranger) == b""
            if number % 10 == 0:
                expect_works(peer)
        await_count(server, "malformed", 50)


def received_all(connection: socket.socket) -> bytes:
    words = b""
    try:
        while piece := connection.recv(65536):
            words += piece
    except ConnectionResetError:
        pass  # it had not read all that was sent
    return words


def test_what_was_heard_of_a_handshake_lets_no_peer_in(server: Runtime) -> None:
    with Tap(port_of(server)) as tap, Runtime("client", secret=SECRET) as runtime:
        expect_works(runtime.connect(("127.0.0.1", tap.port)))
        frames = tap.frames  # of the client: hello, proof, endpoint info
    assert len(frames) == 3
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=DEADLINE_S) as replayer:
        replayer.sendall(frames[0])
        replayer.recv(65536)
        replayer.sendall(frames[1])
        assert b"the secrets of the two ends differ" in received_all(replayer)
    await_count(server, "wrong_secret", 1)
    assert all(SECRET not in frame for frame in frames)


class Tap:
    """Relays the traffic between one client and a server, and keeps the client's frames."""

    def __init__(self, to_port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.frames: list[bytes] = []
        self._to_port = to_port
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Tap:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(("127.0.0.1", self._to_port)) as server:
            for _ in range(3):
                self.frames.append(client.recv(65536))
                server.sendall(self.frames[-1])
                client.sendall(server.recv(65536))


def test_secrets_are_demanded_where_an_address_does_not_hold_one(server: Runtime, monkeypatch) -> None:
    monkeypatch.delenv("AXON_SECRET", raising=False)
    with Runtime("nobody") as runtime:
        with pytest.raises(ValueError, match="has no secret"):
            runtime.listen()
        with pytest.raises(ValueError, match="has no secret"):
            runtime.connect(("127.0.0.1", port_of(server)))
    with (
        Runtime("careless", secret=b"short") as runtime,
        pytest.raises(ValueError, match="a secret of 5 bytes; allowed: 16 to 1024"),
    ):
        runtime.listen()


def test_an_address_lets_in_and_a_changed_one_does_not(server: Runtime) -> None:
    address = server.address
    with Runtime("client") as runtime:
        expect_works(runtime.connect(address))
        with pytest.raises(WrongSecretError, match="the secrets of the two ends differ"):
            runtime.connect(address[:-1] + bytes([address[-1] ^ 1]))
        for broken in (b"", address[:-1], address + b"x", b"x" + address[1:]):
            with pytest.raises(ValueError, match="address of a runtime"):
                runtime.connect(broken)


def test_an_address_is_of_loopback_alone(server: Runtime) -> None:
    port = port_of(server)
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


_LEAK = """
import sys
from torch_axon.runtime import Runtime
secret = sys.argv[1]
with Runtime("server", secret=secret) as server, Runtime("client", secret="not that one, but as long") as client:
    port = server.listen()
    print(server, client, server.counts())
    try:
        client.connect(("127.0.0.1", port))
    except ValueError as error:
        print(error)
    raise RuntimeError("a traceback, of a frame that has the runtimes")
"""


def test_secrets_are_not_in_what_is_printed() -> None:
    secret = "hush, this is not for everybody"
    ended = subprocess.run(
        [sys.executable, "-c", _LEAK, secret],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(AXON_LOG="debug"),
    )
    printed = ended.stdout + ended.stderr
    assert "the secrets of the two ends differ" in printed
    assert secret not in printed
    assert secret.encode().hex() not in printed


def test_the_bound_on_connections_is_told_to_late_clients() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Runtime("server", secret=SECRET, max_connections=2))
        first, second, client = (stack.enter_context(Runtime("client", secret=SECRET)) for _ in range(3))
        address = server.address
        kept = [first.connect(address), second.connect(address)]
        with pytest.raises(
            BufferError, match=r"refuses: the runtime 'server' has 2 connections, the limit \(max_connections"
        ):
            client.connect(address)
        assert all(peer.failure is None for peer in kept)


def test_more_than_a_message_may_hold_fails_that_call_alone() -> None:
    with Runtime("server", max_message_bytes=1 << 20) as server, Runtime("client") as client:
        server.register("size")(lambda tensor: tensor.numel())
        peer = client.connect(server.address)
        with pytest.raises(ConnectionError, match="the message exceeds max_message_num_bytes"):
            peer.invoke("size", torch.zeros(1 << 21, dtype=torch.uint8)).result(DEADLINE_S)
        assert peer.invoke("size", torch.zeros(1 << 19, dtype=torch.uint8)).result(DEADLINE_S) == 1 << 19


_CLIENTS = """
import sys
from contextlib import ExitStack
import torch
from torch_axon.runtime import Runtime
first, count = int(sys.argv[1]), int(sys.argv[2])
address = bytes.fromhex(sys.stdin.readline())
with ExitStack() as stack:
    runtimes = [stack.enter_context(Runtime(f"client {first + number}")) for number in range(count)]
    servers = [runtime.connect(address) for runtime in runtimes]
    for turn in range(3):
        futures = [server.invoke("sign", first + number, torch.full((1000 * turn,), first + number))
                   for number, server in enumerate(servers)]
        for number, future in enumerate(futures):
            own, content = future.result(60)
            assert own == first + number and torch.equal(content, torch.full((1000 * turn,), own))
"""


def test_a_hundred_clients_of_two_processes_are_told_apart() -> None:
    seen: set[int] = set()
    with Runtime("server") as server:

        @server.register
        def sign(client: int, content: torch.Tensor) -> list[object]:
            seen.add(client)
            return [client, content]

        clients = [
            subprocess.Popen(
                [sys.executable, "-c", _CLIENTS, str(first), "50"],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            for first in range(0, 100, 50)
        ]
        ended = [client.communicate(server.address.hex() + "\n", timeout=120)[1] for client in clients]
        assert [client.returncode for client in clients] == [0] * 2, ended
        await_count(server, "met", 100)
    assert seen == set(range(100))
