"""Calls between processes: values arrive, failures are reported, and no call hangs."""

from __future__ import annotations

import array
import asyncio
import gc
import pickle
import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch
import torch.distributed as dist

from support.pool import RankPool
from support.runtime_clients import Server, check_that_it_ends
from torch_axon import Runtime
from torch_axon.runtime import Future, Peer, PeerLostError, RemoteError, RuntimeClosedError, WrongSecretError


def test_plain_values_come_back(peer: Peer) -> None:
    values = [None, True, -1, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, "ü" * 300, b"\0\xff" * 300, {"a": [1, {}]}, {1: "b"}]
    assert peer.invoke("echo", values).result() == values
    assert peer.invoke("echo", 1, "two").result() == [1, "two"]
    assert peer.invoke("echo", first=1, second=[2]).result() == {"first": 1, "second": [2]}
    assert peer.invoke("echo", "x" * 1_000_000).result() == "x" * 1_000_000


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_type_come_back(peer: Peer, dtype: torch.dtype) -> None:
    for shape in [(), (0,), (3, 0, 2), (7,), (2, 3, 4), (70_000,)]:
        raw = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
        sent = raw.view(dtype).reshape(shape)
        (came,) = peer.invoke("echo", [sent]).result()
        assert came.dtype == dtype
        assert came.shape == sent.shape
        assert torch.equal(came.contiguous().view(-1).view(torch.uint8), sent.contiguous().view(-1).view(torch.uint8))


def test_tensors_of_many_sizes_in_one_message(peer: Peer) -> None:
    sizes = [0, 1, 511, 513, 8_000, 100_000, 3_000_000, 5]
    sent = {str(size): torch.arange(size) for size in sizes}
    came = peer.invoke("echo", sent).result()
    assert all(torch.equal(came[name], tensor) for name, tensor in sent.items())


def test_views_that_are_not_contiguous(peer: Peer) -> None:
    base = torch.arange(10_000.0).reshape(100, 100)
    for view in (
        base.t(),
        base[::3, 5:],
        base[:, 1],
        base.expand(2, 100, 100),
        torch.randn(5, dtype=torch.cfloat).conj(),
    ):
        assert torch.equal(peer.invoke("echo", view).result(), view)


def test_what_is_like_a_tensor(peer: Peer) -> None:
    arrays = [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        bytearray(b"abc"),
        array.array("d", [1, 2]),
        memoryview(b"xy"),
    ]
    came = peer.invoke("echo", arrays).result()
    assert [tensor.tolist() for tensor in came] == [[[0, 1, 2], [3, 4, 5]], [97, 98, 99], [1.0, 2.0], [120, 121]]
    read_only = np.arange(4)
    read_only.flags.writeable = False
    assert peer.invoke("echo", read_only).result().tolist() == [0, 1, 2, 3]


def test_what_cannot_be_sent_says_so(peer: Peer) -> None:
    with pytest.raises(TypeError, match="a value of type object cannot be sent; allowed: None, bool"):
        peer.invoke("echo", object())
    with pytest.raises(TypeError, match="a value of type object cannot be sent"):
        peer.invoke("unsendable").result()
    with pytest.raises(TypeError, match="layout Sparse cannot be sent"):
        peer.invoke("echo", torch.eye(3).to_sparse())
    with pytest.raises(OverflowError):
        peer.invoke("echo", 2**64)
    nested: list[object] = []
    nested.append(nested)
    with pytest.raises(ValueError, match="nested deeper than 64 levels"):
        peer.invoke("echo", nested)
    with pytest.raises(ValueError, match="name is 0 bytes long; allowed: 1 to 255"):
        peer.invoke("")


def test_exceptions_arrive_as_what_they_were(peer: Peer) -> None:
    with pytest.raises(ValueError, match="not") as caught:
        peer.invoke("fails", "value").result()
    assert caught.value.args == ("not", 7)
    assert 'raise ValueError("not", 7)' in str(caught.value.__cause__)
    with pytest.raises(torch.OutOfMemoryError, match="of torch"):
        peer.invoke("fails", "torch").result()
    with pytest.raises(RemoteError, match="HouseError: of this house"):
        peer.invoke("fails", "house").result()
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        peer.invoke("fails", "exit").result()
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        peer.invoke("scale").result()


def test_unknown_functions_are_named(peer: Peer) -> None:
    with pytest.raises(LookupError, match="the runtime 'server' has no function 'absent'"):
        peer.invoke("absent", torch.ones(100_000)).result()


def test_many_in_flight_are_answered_out_of_order(peer: Peer) -> None:
    slow = peer.invoke("wait_until_told")
    calls = [peer.invoke("echo", i, torch.full((i,), i)) for i in range(3000)]
    for i, call in enumerate(calls):
        number, tensor = call.result()
        assert number == i
        assert tensor.tolist() == [i] * i
    assert not slow.done()
    peer.invoke("tell_waiters").result()
    assert slow.result() == "heard"


def test_threads_share_a_peer(peer: Peer) -> None:
    wrong: list[object] = []

    def run(seed: int) -> None:
        for i in range(200):
            came = peer.invoke("scale", torch.full((i,), seed), factor=3).result()
            if came.tolist() != [3 * seed] * i:
                wrong.append((seed, i, came))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong


def test_functions_run_where_they_were_told_to(peer: Peer) -> None:
    assert peer.invoke("thread_name").result().startswith("ThreadPoolExecutor")


def test_deadlines_end_calls(peer: Peer) -> None:
    with pytest.raises(TimeoutError, match="'server' has not answered 'sleepy' within 50 ms"):
        peer.invoke("sleepy", 1000, timeout=0.05).result()
    slow = peer.invoke("sleepy", 0.3)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s of waiting"):
        slow.result(timeout=0.01)
    assert slow.result() == "awake"  # only the wait was given up


def test_cancelled_calls_end_at_both_ends(peer: Peer) -> None:
    call = peer.invoke("never")
    assert peer.invoke("was_entered", 30).result()
    assert call.cancel()
    assert call.cancelled()
    with pytest.raises(CancelledError):
        call.result()
    assert not call.cancel()
    assert peer.invoke("was_cancelled", 30).result()
    done = peer.invoke("echo", 1)
    done.result()
    assert not done.cancel()


def test_told_functions_run(peer: Peer) -> None:
    told = [peer.tell("greet", f"number {i}") for i in range(2000)]
    assert [call.result() for call in told] == [None] * 2000
    seen: list[str] = []
    while len(seen) < 2000:
        seen = peer.invoke("greeted").result()
    assert sorted(seen) == sorted(f"number {i}" for i in range(2000))
    assert peer.tell("absent").result() is None  # without a receiver


def test_callbacks_and_torch_futures(peer: Peer) -> None:
    called = threading.Event()
    results: list[object] = []

    def note(future: Future) -> None:
        results.append(future.result())
        called.set()

    peer.invoke("sleepy", 0.05).add_done_callback(note)
    assert called.wait(30)
    assert results == ["awake"]
    doubled = peer.invoke("scale", torch.ones(3)).torch_future().then(lambda done: done.value() * 5)
    assert doubled.wait().tolist() == [10.0, 10.0, 10.0]
    with pytest.raises(Exception, match="not"):
        peer.invoke("fails", "value").torch_future().wait()


def test_awaiting(peer: Peer) -> None:
    async def main() -> None:
        assert await peer.invoke("echo", 1) == 1
        calls = [peer.invoke("echo", i) for i in range(500)]
        assert await asyncio.gather(*calls) == list(range(500))
        with pytest.raises(ValueError, match="not"):
            await peer.invoke("fails", "value")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(peer.invoke("sleepy", 1000), 0.05)
        both = peer.invoke("sleepy", 0.05)
        assert await asyncio.gather(both, both) == ["awake", "awake"]

    asyncio.run(main())
    asyncio.run(main())  # another loop


def test_two_loops_await_one_call(peer: Peer) -> None:
    call = peer.invoke("sleepy", 0.1)
    results: list[str] = []

    async def main() -> None:
        results.append(await call)

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == ["awake"] * 3


def test_calls_in_both_directions_within_one_process() -> None:
    with Runtime("left") as left, Runtime("right") as right:
        left.register("name")(lambda: "left")
        right.register("name")(lambda: "right")
        assert left.connect(right.address).invoke("name").result() == "right"
        assert right.connect(left.address).invoke("name").result() == "left"


def test_addresses_can_be_pickled(server: Server, runtime: Runtime) -> None:
    peer = runtime.connect(pickle.loads(pickle.dumps(server.address)))
    assert peer.name == "server"
    assert peer.incarnation != runtime.incarnation
    assert peer.failure is None


def test_host_and_port_need_a_secret() -> None:
    secret = b"of sixteen bytes"
    with Runtime("listening", secret=secret) as listening, Runtime("knowing", secret=secret) as knowing:
        port = listening.listen()
        listening.register("yes")(lambda: True)
        assert knowing.connect(("127.0.0.1", port)).invoke("yes").result()
        guessing = Runtime("guessing", secret=b"another sixteen bytes")
        with guessing, pytest.raises(WrongSecretError, match="secret"):
            guessing.connect(("127.0.0.1", port))
        with Runtime("without") as without, pytest.raises(ValueError, match="has no secret for peers"):
            without.connect(("127.0.0.1", port))
        assert listening.counts()["wrong_secret"] == 1
        with pytest.raises(ValueError, match="listens on port"):
            listening.listen()


def test_no_process_listens(runtime: Runtime) -> None:
    other = Runtime("short-lived")
    address = other.address
    other.close()
    with pytest.raises(ConnectionError):
        runtime.connect(address)


def test_closed_runtimes_say_so(server: Server) -> None:
    runtime = Runtime("closing")
    peer = runtime.connect(server.address)
    assert runtime.close()
    assert runtime.close()
    with pytest.raises(RuntimeClosedError, match="the runtime 'closing' is closed"):
        peer.invoke("echo", 1).result()
    with pytest.raises(RuntimeClosedError):
        runtime.connect(server.address)
    with pytest.raises(RuntimeClosedError):
        _ = runtime.address


def test_closing_waits_for_what_is_under_way(server: Server) -> None:
    runtime = Runtime("draining")
    call = runtime.connect(server.address).invoke("sleepy", 0.2)
    assert runtime.close()
    assert call.result() == "awake"


def test_closing_ends_what_is_left(server: Server) -> None:
    runtime = Runtime("closing")
    call = runtime.connect(server.address).invoke("never")
    assert not runtime.close(timeout=0.05)
    with pytest.raises(RuntimeClosedError):
        call.result()


def test_peers_that_close_are_missed() -> None:
    with Runtime("waiting") as waiting:
        closing = Runtime("closing")
        entered = threading.Event()

        @closing.register
        async def never() -> None:
            entered.set()
            await asyncio.Event().wait()

        peer = waiting.connect(closing.address)
        call = peer.invoke("never")
        assert entered.wait(30)
        closing.close(drain=False)
        with pytest.raises(PeerLostError, match="'closing' has closed the connection"):
            call.result()
        assert peer.failure is not None


def test_peers_that_die_are_missed_and_come_back_as_others(runtime: Runtime) -> None:
    server = Server()
    peer = runtime.connect(server.address)
    waiting = peer.invoke("never")
    with pytest.raises(PeerLostError, match="'server' is gone: its process"):
        peer.invoke("die").result()
    with pytest.raises(PeerLostError):
        waiting.result()
    with pytest.raises(PeerLostError):
        peer.invoke("echo", 1).result()
    server.process.communicate()
    again = Server()
    restarted = runtime.connect(again.address)
    assert restarted.name == peer.name
    assert restarted.incarnation != peer.incarnation
    assert restarted.invoke("echo", 1).result() == 1
    again.close()


def test_runtimes_without_references_go(server: Server) -> None:
    before = threading.active_count()
    for _ in range(3):
        with Runtime("passing") as runtime:
            assert runtime.connect(server.address).invoke("echo", 1).result() == 1
        del runtime
    gc.collect()
    assert threading.active_count() == before


def test_a_hundred_clients(server: Server) -> None:
    runtimes = [Runtime(f"client {i}") for i in range(100)]
    peers = [runtime.connect(server.address) for runtime in runtimes]
    calls = [peer.invoke("echo", i) for _ in range(10) for i, peer in enumerate(peers)]
    assert [call.result() for call in calls] == [i for _ in range(10) for i in range(100)]
    for runtime in runtimes:
        runtime.close()


@pytest.mark.parametrize("progress", ["spin", "block", "adaptive"])
def test_every_way_of_waiting(server: Server, progress: str) -> None:
    with Runtime("waiting", progress=progress) as runtime:
        runtime.register("yes")(lambda: True)
        with Runtime("caller", progress=progress) as caller:
            assert all(caller.connect(runtime.address).invoke("yes").result() for _ in range(3))


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="progress is 'fast'; allowed: spin, adaptive, block"):
        Runtime("odd", progress="fast")
    with pytest.raises(ValueError, match="timeout is 0 s; allowed: more than 0"):
        Runtime("odd", timeout=0)
    with Runtime("odd") as runtime:
        runtime.register("there")(print)
        with pytest.raises(ValueError, match="function 'there' already exists"):
            runtime.register("there")(print)
    with pytest.raises(ValueError, match="name is 0 bytes long"):
        Runtime("")


@pytest.mark.parametrize(
    "program",
    [
        "ends_with_calls_in_flight",
        "ends_in_a_function",
        "ends_within_a_loop",
        "ends_amid_streams",
        "ends_while_another_thread_waits",
        "ends_while_another_thread_drains",
        "ends_while_a_peer_drains",
        "ends_while_memory_is_found",
        "keeps_tensors",
        "forks",
    ],
)
def test_processes_end_whatever_is_under_way(program: str) -> None:
    check_that_it_ends(program)


def meets_and_calls() -> None:
    """Runs on each rank of a group."""
    with Runtime(f"rank {dist.get_rank()}") as runtime:
        runtime.register("rank")(dist.get_rank)
        peers = runtime.meet()
        dist.barrier()
        assert [peer.name for peer in peers] == [f"rank {rank}" for rank in range(dist.get_world_size())]
        assert [peer.invoke("rank").result() for peer in peers] == list(range(dist.get_world_size()))
        dist.barrier()


def test_ranks_of_a_group_meet(two_ranks: RankPool) -> None:
    two_ranks.run(meets_and_calls)


def test_what_cannot_be_placed_or_sent_is_told_and_nothing_stops() -> None:
    with Runtime("server") as server, Runtime("client") as client:
        server.register("echo")(lambda value: value)
        server.register("placed", memory="cuda:99")(lambda value: value)
        inbox = server.mailbox("tag")
        peer = client.connect(server.address)
        with pytest.raises(Exception, match=r"(?i)cuda|device|nvidia"):
            peer.invoke("placed", torch.ones(3)).result(60)
        wrong = peer.invoke("echo", torch.ones(3), memory="cuda:99")
        for _ in range(2):  # the message is emptied once
            with pytest.raises(Exception, match=r"(?i)cuda|device|nvidia"):
                wrong.result(60)
        with pytest.raises(TypeError):
            peer.send("tag", object())
        peer.send("tag", "after what could not be sent").result(60)
        assert inbox.get(60) == "after what could not be sent"
        with pytest.raises(ValueError, match="timeout is nan"):
            peer.invoke("echo", 1, timeout=float("nan"))
        assert peer.invoke("echo", 1, timeout=float("inf")).result(60) == 1


def test_a_callback_that_raises_does_not_keep_the_others_from_hearing() -> None:
    with Runtime("server") as server, Runtime("client") as client:
        goes_on = threading.Event()
        server.register("wait")(lambda: goes_on.wait(60))
        future = client.connect(server.address).invoke("wait")
        told = threading.Event()
        future.add_done_callback(lambda done: 1 / 0)
        future.add_done_callback(lambda done: told.set())
        goes_on.set()
        assert future.result(60)
        assert told.wait(60)


def test_closing_ends_waits_for_messages() -> None:
    runtime = Runtime("server")
    inbox = runtime.mailbox("tag")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            inbox.get()
        except RuntimeClosedError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    runtime.close()
    waiting.join(60)
    assert len(errors) == 1
    with pytest.raises(RuntimeClosedError):
        inbox.get()


def test_an_address_of_every_interface_is_refused() -> None:
    with Runtime("server", secret="a secret of some length") as server:
        server.listen("0.0.0.0")
        with pytest.raises(ValueError, match=r"0\.0\.0\.0"):
            _ = server.address


def test_a_message_is_kept_though_its_waiter_is_cancelled() -> None:
    with Runtime("server") as server, Runtime("client") as client:
        inbox = server.mailbox("tag")
        peer = client.connect(server.address)

        async def give_up() -> None:
            waiting = asyncio.create_task(inbox.receive())
            await asyncio.sleep(0)
            peer.send("tag", "kept").result(60)  # given to the waiter, which the loop has not yet been told
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(give_up())
        assert inbox.get(60) == "kept"
