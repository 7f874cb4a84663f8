"""Kinds of functions, what they can learn about their calls, and which arguments reach them."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from torch_axon.runtime import Coming, CurrentCall, Future, Mailbox, Peer, Runtime, current_call, publish

DEADLINE_S = 60


@pytest.fixture
def server() -> Iterator[Runtime]:
    with Runtime("server") as runtime:
        yield runtime


@pytest.fixture
def client() -> Iterator[Runtime]:
    with Runtime("client") as runtime:
        yield runtime


@pytest.fixture
def peer(server: Runtime, client: Runtime) -> Peer:
    return client.connect(server.address)


def caller() -> str:
    call = current_call()
    assert call is not None
    assert call.is_wanted
    assert call.wants_answer
    assert not call.caller_is_gone
    return call.peer.name


def test_functions_of_all_kinds_know_their_caller(server: Runtime, peer: Peer) -> None:
    async def coroutine() -> list[str]:
        await asyncio.sleep(0)
        return [caller(), await asyncio.to_thread(caller), await asyncio.create_task(nested())]

    async def nested() -> str:
        return caller()

    def generator() -> Iterator[str]:
        yield caller()
        yield caller()

    async def asynchronous_generator() -> AsyncIterator[str]:
        yield caller()

    with ThreadPoolExecutor(1) as executor:
        server.register("plain")(caller)
        server.register("executor", executor=executor)(caller)
        server.register("coroutine")(coroutine)
        server.register("generator")(generator)
        server.register("in threads", executor=executor)(generator)
        server.register("asynchronous")(asynchronous_generator)
        assert current_call() is None
        assert [peer.invoke(name).result(DEADLINE_S) for name in ("plain", "executor")] == ["client"] * 2
        assert peer.invoke("coroutine").result(DEADLINE_S) == ["client"] * 3
        for name in ("generator", "in threads", "asynchronous"):
            assert set(peer.iterate(name)) == {"client"}
        assert executor.submit(current_call).result(DEADLINE_S) is None


def test_a_connection_has_one_peer_though_a_finalizer_asks_while_it_is_made(
    client: Runtime, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = peer._connection
    client._peers.clear()
    made: list[Peer] = []

    def make(*arguments: Any) -> Peer:
        if not made:  # as a finalizer or signal handler on this thread would
            made.append(Peer(*arguments))
            made.append(client._peer_of(connection))
        return Peer(*arguments)

    monkeypatch.setattr("torch_axon.runtime._runtime.Peer", make)
    assert client._peer_of(connection) is made[1]


def test_a_function_can_call_its_caller(server: Runtime, client: Runtime, peer: Peer) -> None:
    news: Mailbox = client.mailbox("news")
    peers: list[Peer] = []

    @server.register
    async def back(text: str) -> Any:
        call = current_call()
        assert call is not None
        peers.append(call.peer)
        await call.peer.send("news", text)
        return await call.peer.invoke("echo", text)

    @server.register
    def values() -> Iterator[int]:
        yield from range(3)

    client.register("echo")(lambda value: value)
    client.register("values")(values)
    assert [peer.invoke("back", text).result(DEADLINE_S) for text in "ab"] == ["a", "b"]
    assert [news.get(DEADLINE_S) for _ in range(2)] == ["a", "b"]
    assert peers[0] is peers[1]
    both = zip(peers[0].iterate("values"), peer.iterate("values"), strict=True)  # one connection, both ways
    assert list(both) == [(0, 0), (1, 1), (2, 2)]
    peers.clear()
    assert peer.invoke("back", "c").result(DEADLINE_S) == "c"  # the mailbox's order goes on without the object
    assert news.get(DEADLINE_S) == "c"


@pytest.mark.parametrize("where", ["plain", "executor"])
def test_a_function_learns_that_no_caller_waits_for_it_any_more(server: Runtime, peer: Peer, where: str) -> None:
    entered, ended = threading.Event(), threading.Event()
    seen: list[CurrentCall] = []

    def work() -> None:
        call = current_call()
        assert call is not None
        seen.append(call)
        entered.set()
        pause = threading.Event()
        while call.is_wanted:
            pause.wait(0.001)
        ended.set()

    with ThreadPoolExecutor(1) as executor:
        server.register("work", executor=executor if where == "executor" else None)(work)
        call = peer.invoke("work")
        assert entered.wait(DEADLINE_S)
        assert seen[0].is_wanted
        call.cancel()
        assert ended.wait(DEADLINE_S)
        assert not seen[0].caller_is_gone


def test_a_function_learns_that_its_caller_is_gone(server: Runtime) -> None:
    entered = threading.Event()
    seen: list[CurrentCall] = []

    @server.register
    async def work() -> None:
        call = current_call()
        assert call is not None
        seen.append(call)
        entered.set()
        await asyncio.Event().wait()

    with Runtime("leaving") as leaving:
        leaving.connect(server.address).invoke("work")
        assert entered.wait(DEADLINE_S)
        leaving.close(drain=False)
    pause = threading.Event()
    while not seen[0].caller_is_gone or seen[0].is_wanted:
        pause.wait(0.001)
    assert "client" not in repr(seen[0])
    assert seen[0].peer.name == "leaving"


def test_what_is_told_is_wanted(server: Runtime, peer: Peer) -> None:
    seen: list[tuple[bool, bool]] = []
    told = threading.Event()

    @server.register
    def note() -> None:
        call = current_call()
        assert call is not None
        seen.append((call.is_wanted, call.wants_answer))
        told.set()

    peer.tell("note")
    assert told.wait(DEADLINE_S)
    assert seen == [(True, False)]


def test_a_call_that_is_kept_is_not_wanted_once_it_is_answered(server: Runtime, peer: Peer) -> None:
    kept: list[CurrentCall] = []

    @server.register
    def keep() -> int:
        call = current_call()
        assert call is not None
        kept.append(call)
        return 1

    assert peer.invoke("keep").result(DEADLINE_S) == 1
    assert not kept[0].is_wanted
    assert kept[0].peer.name == "client"


def test_options_leave_all_named_arguments_to_the_function(server: Runtime, peer: Peer) -> None:
    def echo(**named: Any) -> dict[str, Any]:
        return named

    def values(timeout: float, ahead: int) -> Iterator[float]:
        yield from [timeout, ahead]

    heard: list[dict[str, Any]] = []
    told = threading.Event()

    @server.register
    def note(**named: Any) -> None:
        heard.append(named)
        told.set()

    server.register("echo")(echo)
    with pytest.warns(RuntimeWarning) as warned:
        server.register("values")(values)
    assert [warning.filename for warning in warned] == [__file__] * 2
    for warning, name in zip(warned, ("timeout", "ahead"), strict=True):
        assert f"'values' has a parameter '{name}', which is also an option of calls" in str(warning.message)
    named = {"timeout": 3, "memory": "cuda:7", "ahead": 0, "function": "f", "self": 1}
    assert peer.options().invoke("echo", **named).result(DEADLINE_S) == named
    assert list(peer.options(ahead=1).iterate("values", timeout=1.5, ahead=3)) == [1.5, 3]
    peer.options(timeout=DEADLINE_S).tell("note", timeout=1)
    assert told.wait(DEADLINE_S)
    told.clear()
    publish([peer.options()], "note", timeout=2)
    assert told.wait(DEADLINE_S)
    assert heard == [{"timeout": 1}, {"timeout": 2}]
    hasty = peer.options(timeout=0.01)
    server.register("never")(never)
    with pytest.raises(TimeoutError):
        hasty.invoke("never").result(DEADLINE_S)
    with pytest.raises(ValueError, match="ahead is 0; allowed: 1 or more"):
        peer.options(ahead=0)


async def never() -> None:
    await asyncio.Event().wait()


def test_functions_that_hide_nothing_draw_no_warning(server: Runtime) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        server.register("positional")(lambda seconds: seconds)
        server.register("ahead")(lambda ahead: ahead)  # invoke() has no such option
        server.register("built in")(len)


def test_arguments_that_cannot_be_are_named(peer: Peer) -> None:
    for call in (peer.invoke, peer.tell, peer.options().invoke, peer.options().tell):
        with pytest.raises(TypeError, match="function is 3; allowed: the name of a function"):
            call(3)  # type: ignore[operator]
    for late in (peer.invoke, peer.tell):
        with pytest.raises(TypeError, match="timeout is '3'; allowed: a number of seconds"):
            late("echo", timeout="3")  # type: ignore[operator]


def through(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that is not asynchronous itself, as most are."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


def count(end: int) -> Iterator[int]:
    yield from range(end)


async def count_async(end: int) -> AsyncIterator[int]:
    for i in range(end):
        yield i


class Doubles:
    async def __call__(self, value: int) -> int:
        return await double(value)


class Counts:
    def __call__(self, end: int) -> Iterator[int]:
        yield from range(end)


def test_decorated_coroutines_run(server: Runtime, peer: Peer) -> None:
    with ThreadPoolExecutor(1) as executor:
        server.register("partial")(functools.partial(double))
        server.register("wrapped")(through(double))
        server.register("object")(Doubles())
        server.register("bare")(lambda value: double(value))
        server.register("in a thread", executor=executor)(through(double))
        for name in ("partial", "wrapped", "object", "bare", "in a thread"):
            assert peer.invoke(name, 4).result(DEADLINE_S) == 8, name


def test_decorated_coroutines_run_on_the_loop_where_they_are_registered(server: Runtime, client: Runtime) -> None:
    async def here() -> int:
        return threading.get_ident()

    async def main() -> None:
        server.register("here")(through(here))
        assert await client.connect(server.address).invoke("here") == threading.get_ident()

    asyncio.run(main())


def test_iterations_are_left_by_both_kinds_of_blocks(server: Runtime, client: Runtime) -> None:
    closed = threading.Semaphore(0)

    @server.register
    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.release()

    async def main() -> None:
        async with client.connect(server.address).iterate("endless") as values:
            assert await anext(values) == 1

    with client.connect(server.address).iterate("endless") as values:
        assert next(values) == 1
    assert closed.acquire(timeout=DEADLINE_S)
    asyncio.run(main())
    assert closed.acquire(timeout=DEADLINE_S)


def test_decorated_generators_are_iterated_over(server: Runtime, peer: Peer) -> None:
    server.register("partial")(functools.partial(count, 3))
    server.register("wrapped")(through(count))
    server.register("wrapped twice")(through(through(count)))
    server.register("asynchronous")(through(count_async))
    server.register("object")(Counts())
    assert list(peer.iterate("partial")) == [0, 1, 2]
    for name in ("wrapped", "wrapped twice", "asynchronous", "object"):
        assert list(peer.iterate(name, 3)) == [0, 1, 2], name


def test_a_decorator_may_make_something_else_of_a_generator(server: Runtime, peer: Peer) -> None:
    @functools.wraps(count)
    def collect(end: int) -> list[int]:
        return list(count(end))

    server.register("collect")(collect)
    assert peer.invoke("collect", 3).result(DEADLINE_S) == [0, 1, 2]
    with pytest.raises(TypeError, match="iterate: 'collect' returned a list; allowed: a generator"):
        list(peer.iterate("collect", 3))


@pytest.mark.parametrize("where", ["plain", "executor", "coroutine"])
def test_iterating_over_a_function_that_is_no_generator_says_so(server: Runtime, peer: Peer, where: str) -> None:
    called: list[object] = []

    def function(**named: object) -> None:
        called.append(named)

    async def coroutine(**named: object) -> None:
        called.append(named)

    with ThreadPoolExecutor(1) as executor:
        server.register("f", executor=executor if where == "executor" else None)(
            coroutine if where == "coroutine" else function
        )
        with pytest.raises(TypeError, match=r"'f' is not a generator function; use invoke\(\)"):
            list(peer.iterate("f"))
        server.register("values")(count)
        with pytest.raises(TypeError, match=r"'values' is a generator function; call it with Peer\.iterate"):
            peer.invoke("values", 3).result(DEADLINE_S)
    assert not called


def test_what_is_no_function_is_refused(server: Runtime) -> None:
    for refused, text in (
        (3, "register: name is 3; allowed: text, or a function"),
        (Doubles(), "has no name; give it one"),
    ):
        with pytest.raises(TypeError, match=text):
            server.register(refused)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="register: 3 cannot be called"):
        server.register("three")(3)
    server.register(functools.partial(double))
    with pytest.raises(ValueError, match="function 'double' already exists"):
        server.register(double)


TELLS = """
import torch_axon.runtime as runtime
with runtime.Runtime("server") as server, runtime.Runtime("client") as client:
    @server.register
    def fails():
        raise ValueError("why")
    peer = client.connect(server.address)
    for _ in range(30):
        peer.tell("absent").result(60)
    peer.tell("fails").result(60)
"""


def test_what_is_told_and_fails_is_logged_at_the_receiver() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TELLS], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    line = (
        "runtime 'server': one-way call of 'client' to 'absent' failed: LookupError: "
        "the runtime 'server' has no function 'absent'"
    )
    assert line in ended.stderr
    assert 0 < ended.stderr.count("one-way call of") <= 11  # fewer than the calls


def test_memory_is_chosen_by_the_plain_values_of_a_call(server: Runtime, client: Runtime, peer: Peer) -> None:
    cache = {"a": torch.zeros(2, 30_000), "b": torch.zeros(2, 30_000)}
    asked: list[object] = []

    def place(coming: Coming) -> list[torch.Tensor]:
        asked.append((coming.args, coming.kwargs))
        request, _, layer = coming.args
        return [cache[request][layer]]

    @server.register(memory=place)
    def push(request: str, part: torch.Tensor, layer: int, *, last: bool = False) -> None:
        assert part.data_ptr() == cache[request][layer].data_ptr()

    part = torch.arange(30_000.0)
    peer.invoke("push", "b", part, 1, last=True).result(DEADLINE_S)
    assert torch.equal(cache["b"][1], part)
    assert not cache["a"].any()
    args, kwargs = asked[0]  # type: ignore[misc]
    assert args[0] == "b"
    assert args[1].shape == part.shape  # the tensor's placeholder
    assert kwargs == {"last": True}


def test_memory_is_chosen_by_the_plain_values_of_answers_and_messages(server: Runtime, peer: Peer) -> None:
    seen: list[Any] = []

    def place(coming: Coming) -> list[torch.Tensor]:
        seen.append(coming.value)
        return [torch.empty(each.shape, dtype=each.dtype) for each in coming]

    def pages() -> Iterator[tuple[int, torch.Tensor]]:
        for i in range(2):
            yield i, torch.full((30_000,), i)

    server.register("page")(lambda number: {"number": number, "page": torch.ones(30_000)})
    server.register("pages", memory=place)(pages)
    mailbox = server.mailbox("inbox", memory=place)
    peer.invoke("page", 7, memory=place).result(DEADLINE_S)
    assert seen.pop()["number"] == 7
    assert sorted(value[0] for value in peer.iterate("pages", memory=place)) == [0, 1]
    assert sorted(value[0] for value in seen) == [0, 1]
    seen.clear()
    sent: Future = peer.send("inbox", {"request": 9, "kv": torch.ones(30_000)})
    assert mailbox.get(DEADLINE_S)["request"] == 9
    sent.result(DEADLINE_S)
    assert seen[0]["request"] == 9
