"""Runtimes of other processes that tests call: python runtime_servers.py PROGRAM; it prints its address."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from support.holdings import memory_kib
from torch_axon.runtime import Mailbox, Peer, Pool, Runtime, RuntimeClosedError

GREETED: list[str] = []


class HouseError(Exception):
    """A class that callers cannot import."""


def functions(runtime: Runtime) -> None:
    quick_functions(runtime)
    slow_functions(runtime)
    counted_functions(runtime)
    streams(runtime)


def quick_functions(runtime: Runtime) -> None:
    @runtime.register("echo")
    def echo(*args: Any, **kwargs: Any) -> Any:
        return kwargs or (args[0] if len(args) == 1 else args)

    @runtime.register
    def scale(tensor: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return tensor * factor

    @runtime.register
    def fails(kind: str) -> None:
        if kind == "value":
            raise ValueError("not", 7)
        if kind == "house":
            raise HouseError("of this house")
        if kind == "exit":
            sys.exit(3)
        raise torch.OutOfMemoryError("of torch")

    @runtime.register
    def unsendable() -> object:
        return object()

    @runtime.register
    def greet(name: str) -> None:
        GREETED.append(name)

    @runtime.register
    def greeted() -> list[str]:
        return GREETED

    @runtime.register("held")
    def count_held() -> list[int]:
        descriptors, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        return [descriptors, threads, runtime.num_connections, *memory_kib("RssAnon")]

    @runtime.register
    def die() -> None:
        os.kill(os.getpid(), 9)

    kept: list[torch.Tensor] = []

    @runtime.register
    def keep(tensor: torch.Tensor) -> None:
        kept.append(tensor)

    @runtime.register
    def sums_of_kept() -> list[float]:
        sums = [float(tensor.sum(dtype=torch.float64)) for tensor in kept]
        kept.clear()
        return sums

    @runtime.register
    def keep_busy() -> None:
        """Keeps the GPU's current stream busy for about 0.1 s."""
        torch.cuda._sleep(200_000_000)

    @runtime.register
    def gpu_memory() -> int:
        return torch.cuda.memory_allocated()

    @runtime.register
    def filled_later(value: float, count: int) -> torch.Tensor:
        """Returns a GPU tensor that its stream fills about 0.1 s after the answer was sent."""
        torch.cuda._sleep(200_000_000)
        return torch.full((count,), value, device="cuda")


def slow_functions(runtime: Runtime) -> None:
    entered = threading.Event()
    cancelled = threading.Event()
    told = asyncio.Event()

    @runtime.register
    async def sleepy(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "awake"

    @runtime.register
    async def never() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @runtime.register(executor=ThreadPoolExecutor(4))
    def thread_name() -> str:
        return threading.current_thread().name

    @runtime.register
    async def wait_until_told() -> str:
        await told.wait()
        told.clear()
        return "heard"

    @runtime.register
    async def tell_waiters() -> None:
        told.set()

    @runtime.register(executor=ThreadPoolExecutor(1))
    def was_entered(seconds: float) -> bool:
        return entered.wait(seconds)

    @runtime.register(executor=ThreadPoolExecutor(1))
    def was_cancelled(seconds: float) -> bool:
        return cancelled.wait(seconds)


def counted_functions(runtime: Runtime) -> None:
    """Registers functions of each kind; each records that it ran."""
    ran: list[str] = []
    runtime.register("ran")(lambda: len(ran))

    @runtime.register("count on the runtime's thread")
    def count(tensor: torch.Tensor) -> None:
        ran.append("")

    runtime.register("count in an executor", executor=ThreadPoolExecutor(1))(count)

    @runtime.register("count on a loop")
    async def count_on_loop(tensor: torch.Tensor) -> None:
        count(tensor)


class Numbers:
    """Counts the values that it has made, and its close calls."""

    made = 0
    closed = 0


def streams(runtime: Runtime) -> None:
    @runtime.register
    def numbers(count: int) -> Iterator[torch.Tensor]:
        try:
            for i in range(count):
                Numbers.made += 1
                yield torch.full((i % 3 * 20_000,), i)
            if count == 3:
                raise ValueError("only three")
        finally:
            Numbers.closed += 1

    @runtime.register
    async def async_numbers(count: int) -> AsyncIterator[int]:
        for i in range(count):
            await asyncio.sleep(0)
            yield i

    runtime.register("executor_numbers", executor=ThreadPoolExecutor(4))(numbers)
    runtime.register("made")(lambda: [Numbers.made, Numbers.closed])
    mailbox = runtime.mailbox("news", capacity=4)
    runtime.register("probe")(mailbox.probe)
    runtime.register("read", executor=ThreadPoolExecutor(1))(lambda timeout: mailbox.get(timeout))
    runtime.register("receive")(mailbox.receive)


def serves() -> None:
    with Runtime("server") as runtime:
        functions(runtime)
        print(runtime.address.hex(), flush=True)
        sys.stdin.read()


def comes_and_goes() -> None:
    """Connects to the runtime that its input names, calls it, and closes the peer."""
    with Runtime("passing") as runtime, runtime.connect(bytes.fromhex(sys.stdin.readline())) as peer:
        assert peer.invoke("echo", torch.ones(20_000)).result().sum() == 20_000
    print("gone", flush=True)


def scheduled_ns() -> int:
    """Returns how long the threads of this process have run or waited for a core."""
    times = [Path(f"/proc/self/task/{thread}/schedstat").read_text() for thread in os.listdir("/proc/self/task")]
    return sum(int(time) for each in times for time in each.split()[:2])


def idles() -> None:
    """Prints the share of a core that it uses or waits for; its input names the progress mode and the peer."""
    progress, address = sys.stdin.readline().split()
    with Runtime("idle", progress=progress) as runtime:
        functions(runtime)
        peer = runtime.connect(bytes.fromhex(address))
        assert [peer.invoke("echo", number).result() for number in range(1000)] == list(range(1000))
        time.sleep(0.2)  # until it has been quiet for long enough
        began, taken, wanted = time.perf_counter(), time.process_time(), scheduled_ns()
        time.sleep(3)
        lasted = time.perf_counter() - began
        print((time.process_time() - taken) / lasted, (scheduled_ns() - wanted) / 1e9 / lasted)


def exposes() -> None:
    """Calls `take` of the runtime at the address in its input many times, with tensors that stay in this process."""
    with Runtime("exposer") as runtime:
        peer = runtime.connect(bytes.fromhex(sys.stdin.readline()))
        while peer._connection.gpus_read_by_peer == 0:
            peer.invoke("echo", torch.zeros(10_000, device="cuda")).result()
        calls = [peer.invoke("take", torch.zeros(1_000_000, device="cuda")) for _ in range(100)]
        print("exposed", flush=True)
        calls[-1].result()


def a_server_and_its_client() -> tuple[Runtime, Runtime, Peer]:
    """Returns a runtime with all functions, a second runtime, and the peer through which the second calls the first."""
    server = Runtime("other")
    functions(server)
    client = Runtime("runtime")
    return server, client, client.connect(server.address)


def is_ready(*kept: object) -> None:
    """Reports that the process may exit from here on; keeps these objects alive until then."""
    globals()["KEPT"] = kept
    print("ready", flush=True)


def ends_with_calls_in_flight() -> None:
    """The exit of this process must end calls that are in flight in every direction."""
    other, runtime, peer = a_server_and_its_client()
    kept = [peer.invoke("sleepy", 1000), peer.invoke("never"), peer.invoke("echo", torch.ones(1 << 20))]
    threading.Thread(target=kept[0].exception, daemon=True).start()
    is_ready(other, runtime, peer, kept)


def ends_in_a_function() -> None:
    """The runtime's thread is in a function that does not return on its own."""
    runtime = Runtime("runtime")
    entered = threading.Event()

    @runtime.register
    def naps() -> None:
        entered.set()
        time.sleep(1000)

    call = Runtime("other").connect(runtime.address).invoke("naps")
    entered.wait(30)
    is_ready(call)


def ends_in_a_busy_function() -> None:
    """The runtime's thread runs Python code when the interpreter takes the lock for the last time."""
    runtime = Runtime("runtime")
    entered = threading.Event()

    @runtime.register
    def computes() -> None:
        entered.set()
        while True:
            pass

    call = Runtime("other").connect(runtime.address).invoke("computes")
    entered.wait(30)
    is_ready(call)


def ends_with_daemon_threads_that_call() -> None:
    """Daemon threads are not told of the exit, and so must not print anything about it."""
    other, runtime, peer = a_server_and_its_client()
    mailbox = runtime.mailbox("empty")
    have_called = threading.Barrier(6)

    def calls(size: int) -> None:
        peer.invoke("echo", torch.ones(size)).result()
        have_called.wait()
        while True:
            peer.invoke("echo", torch.ones(size)).result()

    async def awaits() -> None:
        await peer.invoke("echo", 1)
        have_called.wait()
        while True:
            await asyncio.gather(*(peer.invoke("echo", number) for number in range(10)))

    def gets() -> None:
        have_called.wait()
        mailbox.get()

    for work in (lambda: calls(10), lambda: calls(2000), lambda: calls(20_000), lambda: asyncio.run(awaits()), gets):
        threading.Thread(target=work, daemon=True).start()
    have_called.wait()
    is_ready(other, runtime, peer, mailbox)


def ends_within_a_loop() -> None:
    runtime = Runtime("runtime")
    functions(runtime)
    peer = Runtime("other").connect(runtime.address)

    async def main() -> None:
        waiting = asyncio.ensure_future(peer.invoke("never"))
        assert await peer.invoke("echo", 5) == 5
        waiting.cancel()

    asyncio.run(main())
    is_ready()


def waits_for_a_message(mailbox: Mailbox) -> None:
    with suppress(RuntimeClosedError):
        mailbox.get()


def ends_amid_streams() -> None:
    """Generators are open, mailboxes are full and empty, and a thread waits for each."""
    other, runtime, peer = a_server_and_its_client()
    empty = runtime.mailbox("empty")
    streams = [peer.iterate(name, 1000) for name in ("numbers", "executor_numbers", "async_numbers")]
    values = [next(stream) for stream in streams]
    unbegun = peer.iterate("numbers", 1000)
    sent = [peer.send("news", number) for number in range(100)]
    sent[0].result()
    threading.Thread(target=waits_for_a_message, args=(empty,), daemon=True).start()
    threading.Thread(target=sent[-1].exception, daemon=True).start()
    is_ready(other, runtime, peer, streams, values, unbegun, sent)


class Slow:
    """Exits after two seconds."""

    def __del__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(2)


def ends_while_another_thread_waits() -> None:
    """A wait of this process ends while the interpreter exits."""
    silent = socket.create_server(("127.0.0.1", 0))
    runtime = Runtime("runtime", secret=bytes(16))
    waiting = threading.Thread(target=runtime.connect, args=[silent.getsockname()], kwargs={"timeout": 1}, daemon=True)
    waiting.start()
    is_ready(silent, Slow())


def ends_while_another_thread_drains() -> None:
    other, runtime, peer = a_server_and_its_client()
    call = peer.invoke("never")
    draining = threading.Thread(target=runtime.close, daemon=True)
    draining.start()
    draining.join(0.05)
    assert draining.is_alive()
    is_ready(other, runtime, call)


def ends_while_a_peer_drains() -> None:
    other, runtime, peer = a_server_and_its_client()
    call = peer.invoke("never")
    draining = threading.Thread(target=peer.close, daemon=True)
    draining.start()
    draining.join(0.05)
    assert draining.is_alive()
    is_ready(other, runtime, peer, call)


def ends_while_memory_is_found() -> None:
    """The runtime's thread is in a function that provides memory for an answer, and does not return."""
    other, runtime, peer = a_server_and_its_client()
    entered = threading.Event()

    def where(coming: object) -> list[torch.Tensor]:
        entered.set()
        time.sleep(1000)
        return []

    call = peer.invoke("echo", torch.ones(1 << 20), memory=where)
    call.add_done_callback(lambda done: done.exception())
    entered.wait(30)
    is_ready(other, runtime, call, Pool(1 << 20))


def keeps_tensors() -> None:
    """Received values outlive the connection and the runtime that received them."""
    with Runtime("other") as other, Runtime("runtime") as runtime:
        functions(other)
        small, large = runtime.connect(other.address).invoke("echo", torch.arange(5), torch.arange(1 << 20)).result()
    del other, runtime
    assert torch.equal(small, torch.arange(5))
    assert torch.equal(large, torch.arange(1 << 20))
    is_ready(small, large)


def forks() -> None:
    """A forked child's calls fail at once, and its parent's calls still work."""
    *_kept, peer = a_server_and_its_client()
    child = os.fork()
    if child == 0:
        peer.close()
        try:
            peer.invoke("echo", 1).result()
        except ConnectionError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert peer.invoke("echo", 1).result() == 1
    is_ready()


def forks_when_closed() -> None:
    """A child of a process that has closed its runtimes opens its own, and so do its child and its parent."""

    def call() -> None:
        with Runtime("other") as other, Runtime("runtime") as runtime:
            functions(other)
            peer = runtime.connect(other.address)
            assert peer.invoke("echo", 1).result() == 1

            async def wait() -> object:
                return await peer.invoke("echo", 2)

            assert asyncio.run(wait()) == 2
            assert torch.equal(peer.invoke("echo", torch.arange(1 << 20)).result(), torch.arange(1 << 20))

    def fork_and_call(depth: int) -> None:
        call()
        if depth == 0:
            return
        child = os.fork()
        if child == 0:
            fork_and_call(depth - 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        call()

    fork_and_call(2)
    is_ready()


PROGRAMS: list[Callable[[], None]] = [
    serves,
    comes_and_goes,
    idles,
    exposes,
    ends_with_calls_in_flight,
    ends_in_a_function,
    ends_in_a_busy_function,
    ends_with_daemon_threads_that_call,
    ends_within_a_loop,
    ends_amid_streams,
    ends_while_another_thread_waits,
    ends_while_another_thread_drains,
    ends_while_a_peer_drains,
    ends_while_memory_is_found,
    keeps_tensors,
    forks,
    forks_when_closed,
]

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
