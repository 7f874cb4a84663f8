"""The receiver chooses where payloads are written, for answers, arguments, values and messages."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from torch_axon.runtime import Incoming, Memory, Peer, Pool, Runtime

DEADLINE_S = 60
SIZES = [0, 10, 5_000, 300_000]  # nothing, in the header frame, by itself, fetched from its sender


class Destinations:
    """Provides new tensors, and remembers them."""

    def __init__(self) -> None:
        self.handed_out: list[torch.Tensor] = []
        self.asked: list[list[Incoming]] = []

    def __call__(self, coming: list[Incoming]) -> list[torch.Tensor]:
        self.asked.append(coming)
        tensors = [torch.full(each.shape, 77, dtype=each.dtype) for each in coming]
        self.handed_out += tensors
        return tensors


@contextmanager
def pair() -> Iterator[tuple[Runtime, Peer]]:
    """A server that echoes, and a client's peer for it."""
    with Runtime("server") as server, Runtime("client") as client:
        server.register("echo")(lambda *values: list(values))
        yield server, client.connect(server.address)


@pytest.mark.parametrize("size", SIZES)
def test_the_very_tensors_that_were_handed_out_come_as_the_answer(size: int) -> None:
    destinations = Destinations()
    sent = [torch.arange(size), torch.arange(size, dtype=torch.float16).reshape(-1, 5)]
    with pair() as (_, peer):
        came = peer.invoke("echo", *sent, memory=destinations).result(DEADLINE_S)
        assert [id(tensor) for tensor in came] == [id(tensor) for tensor in destinations.handed_out]
        assert all(torch.equal(a, b) for a, b in zip(came, sent, strict=True))
        assert destinations.asked == [[Incoming(each.dtype, each.shape, False) for each in sent]]


class _DLPackAlone:
    """An object that is neither a tensor nor a buffer."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__dlpack__ = tensor.__dlpack__
        self.__dlpack_device__ = tensor.__dlpack_device__


@pytest.mark.parametrize("size", SIZES)
def test_what_speaks_dlpack_alone_is_sent(size: int) -> None:
    tensor = torch.arange(2 * size, dtype=torch.float16)[::2]
    with pair() as (_, peer):
        [came] = peer.invoke("echo", _DLPackAlone(tensor)).result(DEADLINE_S)
        assert torch.equal(came, tensor)


def test_payloads_beyond_the_threshold_are_fetched_straight_into_them() -> None:
    where = torch.empty(1 << 20, dtype=torch.uint8)
    seen: list[int] = []
    with pair() as (server, peer):
        server.register("pointer", memory=lambda coming: [where])(lambda tensor: seen.append(tensor.data_ptr()))
        peer.invoke("pointer", torch.ones(1 << 20, dtype=torch.uint8)).result(DEADLINE_S)
    assert seen == [where.data_ptr()]
    assert where.sum() == 1 << 20


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["plain", "executor", "async"])
def test_arguments_land_where_the_function_was_registered_with(kind: str, size: int) -> None:
    destinations = Destinations()
    seen: list[int] = []
    with pair() as (server, peer):
        executor = ThreadPoolExecutor(1) if kind == "executor" else None

        def note(tensor: torch.Tensor) -> torch.Tensor:
            seen.append(id(tensor))
            return tensor

        async def note_later(tensor: torch.Tensor) -> torch.Tensor:
            return note(tensor)

        function = note_later if kind == "async" else note
        server.register("note", executor=executor, memory=destinations)(function)
        sent = torch.arange(size)
        assert torch.equal(peer.invoke("note", sent).result(DEADLINE_S), sent)
    assert seen == [id(tensor) for tensor in destinations.handed_out]
    assert len(seen) == 1


@pytest.mark.parametrize("size", SIZES)
def test_values_of_generators_and_messages_land_likewise(size: int) -> None:
    values, messages = Destinations(), Destinations()
    with pair() as (server, peer):

        @server.register
        def numbers(count: int) -> Iterator[torch.Tensor]:
            for i in range(count):
                yield torch.full((size,), i)

        came = list(peer.iterate("numbers", 5, memory=values))
        assert [int(tensor.sum()) for tensor in came] == [i * size for i in range(5)]
        assert {id(tensor) for tensor in came} == {id(tensor) for tensor in values.handed_out}
        inbox = server.mailbox("news", memory=messages)
        peer.send("news", {"tensor": torch.full((size,), 3)}).result(DEADLINE_S)
        (taken,) = inbox.get(DEADLINE_S).values()
        assert taken is messages.handed_out[0]
        assert int(taken.sum()) == 3 * size


def test_values_without_tensors_ask_for_no_memory() -> None:
    destinations = Destinations()
    with pair() as (_, peer):
        assert peer.invoke("echo", 1, memory=destinations).result(DEADLINE_S) == [1]
    assert destinations.asked == []


def test_awaited_answers_land_likewise() -> None:
    destinations = Destinations()

    async def main(peer: Peer) -> None:
        came = await asyncio.gather(*(peer.invoke("echo", torch.arange(i), memory=destinations) for i in range(200)))
        assert all(torch.equal(tensor, torch.arange(i)) for i, (tensor,) in enumerate(came))

    with pair() as (_, peer):
        asyncio.run(main(peer))
    assert len(destinations.handed_out) == 200


def overlapping(coming: list[Incoming]) -> list[torch.Tensor]:
    base = torch.empty(sum(each.shape.numel() for each in coming), dtype=torch.int64)
    return [base[: each.shape.numel()] for each in coming]


BAD: list[tuple[Callable[[list[Incoming]], list[object]], type[Exception], str]] = [
    (
        lambda coming: [torch.empty(4, 5)] * 2,
        ValueError,
        r"the function's tensor 0 is of torch.float32; allowed: torch.int64",
    ),
    (lambda coming: [torch.empty(21, dtype=torch.int64)] * 2, ValueError, r"has shape \[21\]; allowed: \[20\]"),
    (lambda coming: [torch.empty(40, dtype=torch.int64)[::2]] * 2, ValueError, "tensor 0 is not contiguous"),
    (lambda coming: [torch.empty(20, dtype=torch.int64, device="meta")] * 2, ValueError, "tensor 0 is on meta"),
    (lambda coming: [bytearray(160)] * 2, TypeError, "returned a bytearray for tensor 0"),
    (lambda coming: [torch.empty(20, dtype=torch.int64)], ValueError, "the function returned 1 tensors; allowed: 2"),
    (overlapping, ValueError, "the function returned tensors that overlap"),
    (lambda coming: [None, None], BufferError, r"no memory for tensor 0, torch.int64 of \[20\]"),
    (lambda coming: {}["absent"], KeyError, "absent"),
    (lambda coming: None, TypeError, "NoneType"),
]  # type: ignore[list-item]


@pytest.mark.parametrize(("hand_out", "error", "text"), BAD, ids=[text[:30] for _, _, text in BAD])
def test_bad_memory_is_named(hand_out: Callable[..., list[torch.Tensor]], error: type[Exception], text: str) -> None:
    tensors = torch.arange(20), torch.arange(20)
    with pair() as (server, peer):
        server.register("bad", memory=hand_out)(lambda *tensors: None)
        for call in (lambda: peer.invoke("echo", *tensors, memory=hand_out), lambda: peer.invoke("bad", *tensors)):
            with pytest.raises(error, match=text):
                call().result(DEADLINE_S)
        assert len(peer.invoke("echo", *tensors).result(DEADLINE_S)) == 2


def test_what_is_no_memory_is_refused_at_once() -> None:
    with pair() as (server, peer):
        with pytest.raises(TypeError, match="memory is 7; allowed: a device, a function, a Pool"):
            peer.invoke("echo", memory=7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="memory is 7"):
            server.register("other", memory=7)(print)  # type: ignore[arg-type]


def test_memory_that_is_not_there_falls_back_to_the_host_where_that_is_allowed() -> None:
    sent = torch.arange(100_000)
    with pair() as (server, peer):
        server.register("placed", memory=Memory("cuda:99", strict=False))(lambda tensor: [tensor])
        for call in (
            peer.invoke("placed", sent),
            peer.invoke("echo", sent, memory=Memory("cuda:99", strict=False)),
            peer.invoke("echo", sent, memory=Memory(lambda coming: [None], strict=False)),
        ):
            (came,) = call.result(DEADLINE_S)
            assert came.device == torch.device("cpu")
            assert torch.equal(came, sent)
        with pytest.raises(Exception, match=r"(?i)cuda|device|nvidia"):
            peer.invoke("echo", sent, memory=Memory("cuda:99")).result(DEADLINE_S)


def test_pools_use_their_memory_again() -> None:
    pool = Pool(1 << 20)
    pointers = set()
    with pair() as (_, peer):
        for i in range(20):
            (came,) = peer.invoke("echo", torch.full((50_000,), i), memory=pool).result(DEADLINE_S)
            assert came.eq(i).all()
            pointers.add(came.data_ptr())
            del came
        assert len(pointers) <= 2
        assert pool.num_bytes <= 2 * 50_000 * 8 + 2 * 4096


def test_a_pool_keeps_what_is_in_use_and_says_when_it_is_all() -> None:
    pool = Pool(1 << 20)
    sent = torch.arange(100_000)  # 800 kB
    with pair() as (_, peer):
        (first,) = peer.invoke("echo", sent, memory=pool).result(DEADLINE_S)
        view = first[50_000:]
        del first
        with pytest.raises(BufferError, match=r"memory: no memory for tensor 0, torch.int64 of \[100000\]"):
            peer.invoke("echo", sent, memory=pool).result(DEADLINE_S)
        (other,) = peer.invoke("echo", -sent, memory=Memory(pool, strict=False)).result(DEADLINE_S)
        assert torch.equal(other, -sent)
        assert torch.equal(view, sent[50_000:])
        pointer = view.data_ptr() - 50_000 * 8
        del view
        (again,) = peer.invoke("echo", sent, memory=pool).result(DEADLINE_S)
        assert again.data_ptr() == pointer
        small = peer.invoke("echo", torch.arange(10), memory=pool).result(DEADLINE_S)
        assert pool.num_bytes <= 1 << 20
        del again, small
        peer.invoke("echo", torch.arange(120_000), memory=pool).result(DEADLINE_S)  # in place of smaller ones
        assert pool.num_bytes <= 1 << 20
    with pytest.raises(ValueError, match="max_bytes is 0; allowed: 1 or more"):
        Pool(0)


def test_tensors_of_pools_outlive_them_and_their_runtime() -> None:
    pool = Pool(1 << 20)
    with pair() as (_, peer):
        (came,) = peer.invoke("echo", torch.arange(50_000), memory=pool).result(DEADLINE_S)
    del pool
    assert torch.equal(came, torch.arange(50_000))


def test_closing_waits_for_an_answer_whose_memory_is_being_found() -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def hesitate(coming: list[Incoming]) -> list[torch.Tensor]:
        asked.set()
        goes_on.wait(DEADLINE_S)
        return [torch.empty(each.shape, dtype=each.dtype) for each in coming]

    server = Runtime("server")
    server.register("echo")(lambda value: value)
    with Runtime("client") as client:
        sent = torch.arange(300_000)
        call = client.connect(server.address).invoke("echo", sent, memory=hesitate)
        assert asked.wait(DEADLINE_S)
        closed: list[bool] = []
        closing = threading.Thread(target=lambda: closed.append(server.close()))
        closing.start()
        closing.join(0.1)
        assert closing.is_alive()  # the caller has not fetched its answer
        goes_on.set()
        closing.join(DEADLINE_S)
        assert closed == [True]
        assert torch.equal(call.result(DEADLINE_S), sent)


def test_a_thread_that_would_wait_for_itself_is_told() -> None:
    destinations = Destinations()
    with Runtime("server") as server, Runtime("client") as client:
        server.register("echo")(lambda value: value)
        peer = client.connect(server.address)
        back = server.connect(client.address)

        @client.register
        def waits() -> None:
            peer.invoke("echo", torch.arange(10), memory=destinations).result(DEADLINE_S)

        with pytest.raises(RuntimeError, match="register the waiting function with an executor, or make it async"):
            back.invoke("waits").result(DEADLINE_S)


def test_calls_without_a_waiter_let_go_of_their_memory() -> None:
    class Where:
        def __call__(self, coming: list[Incoming]) -> list[torch.Tensor]:
            return [torch.empty(each.shape, dtype=each.dtype) for each in coming]

    where = Where()
    gone = weakref.ref(where)
    with pair() as (_, peer):
        for _ in range(50):
            peer.invoke("echo", torch.arange(100_000), memory=where)
        del where
        deadline = time.monotonic() + DEADLINE_S
        while gone() is not None and time.monotonic() < deadline:
            peer.invoke("echo", 1).result(DEADLINE_S)
        assert gone() is None


def test_a_call_may_end_while_its_memory_is_being_found() -> None:
    goes_on = threading.Event()

    def hesitate(coming: list[Incoming]) -> list[torch.Tensor]:
        goes_on.wait(DEADLINE_S)
        return [torch.zeros(each.shape, dtype=each.dtype) for each in coming]

    with pair() as (_, peer):
        sent = torch.arange(300_000)
        late = peer.invoke("echo", sent, memory=hesitate, timeout=0.1)
        with pytest.raises(TimeoutError, match="'server' has not answered 'echo' within 100 ms"):
            late.result(DEADLINE_S)
        goes_on.set()
        (came,) = peer.invoke("echo", sent, memory=hesitate).result(DEADLINE_S)
        assert torch.equal(came, sent)
