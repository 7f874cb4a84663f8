"""Errors of a function reach its caller, whatever they are and wherever the function runs."""

from __future__ import annotations

import asyncio
import builtins
import copy
import json
import pickle
import sys
import threading
import traceback
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from torch_axon.runtime import Peer, RemoteError, Runtime

DEADLINE_S = 60


class FormatsError(Exception):
    """Makes its message from an argument: a rebuild by its constructor would repeat it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no model {name}")


class QuotaError(Exception):
    def __init__(self, message: str, *, response: object) -> None:
        super().__init__(message)
        self.response = response


class Outer:
    class NestedError(Exception):
        pass


class SlotsError(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int
    reason: str | None = None


class BadTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BadAttributesError(Exception):
    def __getattr__(self, name: str) -> object:
        raise KeyError(name)


def missing_file() -> None:
    Path("no_such_file.bin").read_bytes()


def missing_file_of_odd_name() -> None:
    Path("no_such_\udcff.bin").read_bytes()


def broken_json() -> None:
    json.loads("{bad")


def broken_text() -> None:
    b"\xff".decode()


def raises(exception: BaseException) -> Callable[[], NoReturn]:
    def function() -> NoReturn:
        raise exception

    return function


# A function, the class that its caller catches, and its text.
SAME_CLASS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "arguments": (raises(ValueError("not", 7)), ValueError, "('not', 7)"),
    "no arguments": (raises(ValueError()), ValueError, ""),
    "key": (raises(KeyError("layer.3")), KeyError, "'layer.3'"),
    "tuple": (raises(KeyError(("layer", 3))), KeyError, "('layer', 3)"),
    "unsendable key": (raises(KeyError(torch.float32)), KeyError, "torch.float32"),
    "unsendable argument": (raises(ValueError("held", CancelledError)), ValueError, f"('held', {CancelledError!r})"),
    "a tensor": (raises(ValueError("shape", torch.ones(2))), ValueError, "('shape', tensor([1., 1.]))"),
    "large integer": (raises(ValueError(1 << 80)), ValueError, str(1 << 80)),
    "surrogates": (raises(ValueError("bad name: \udcff.bin")), ValueError, "bad name: \udcff.bin"),
    "surrogate key": (raises(KeyError("\udcff")), KeyError, "'\\udcff'"),
    "says it once": (raises(FormatsError("llama")), FormatsError, "there is no model llama"),
    "keyword only": (raises(QuotaError("used up", response=threading.Lock())), QuotaError, "used up"),
    "nested class": (raises(Outer.NestedError("within")), Outer.NestedError, "within"),
    "slots": (raises(SlotsError(7)), SlotsError, "code 7"),
    "frozen": (raises(FrozenError(3, "why")), FrozenError, "(3, 'why')"),
    "http": (
        raises(urllib.error.HTTPError("http://models", 503, "busy", None, None)),  # type: ignore[arg-type]
        urllib.error.HTTPError,
        "HTTP Error 503: busy",
    ),
    "missing file": (missing_file, FileNotFoundError, "[Errno 2] No such file or directory: 'no_such_file.bin'"),
    "odd file": (
        missing_file_of_odd_name,
        FileNotFoundError,
        "[Errno 2] No such file or directory: 'no_such_\\udcff.bin'",
    ),
    "rename": (raises(OSError(17, "exists", "a", None, "b")), FileExistsError, "[Errno 17] exists: 'a' -> 'b'"),
    "json": (
        broken_json,
        json.JSONDecodeError,
        "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    "unicode": (
        broken_text,
        UnicodeDecodeError,
        "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    "import": (raises(ImportError("no such", name="here", path="there")), ImportError, "no such"),
}
OTHER_CLASS: dict[str, tuple[Callable[[], object], str]] = {
    "exit": (raises(SystemExit(3)), "SystemExit: 3"),
    "interrupt": (raises(KeyboardInterrupt("here")), "KeyboardInterrupt: here"),
    "stop": (raises(StopIteration(1)), "StopIteration: 1"),
    "cancelled": (raises(CancelledError("by hand")), "concurrent.futures._base.CancelledError: by hand"),
    "bad text": (
        raises(BadTextError()),
        f"{__name__}.BadTextError: no text: __str__ raised RuntimeError",
    ),
    "bad attributes": (raises(BadAttributesError("odd")), f"{__name__}.BadAttributesError: odd"),
}
WHERE = ["plain", "executor", "coroutine"]


class Site:
    """A server with the functions above, and a client of it."""

    def __init__(self, server: Runtime, client: Runtime, executor: Executor) -> None:
        self.server = server
        self.executor = executor
        self.peer: Peer = client.connect(server.address)
        self._count = 0

    def error_of(self, function: Callable[[], object], where: str) -> BaseException:
        self._count += 1
        name = f"{self._count}"

        async def coroutine() -> object:
            return function()

        if where == "coroutine":
            self.server.register(name)(coroutine)
        else:
            self.server.register(name, executor=self.executor if where == "executor" else None)(function)
        error = self.peer.invoke(name).exception(DEADLINE_S)
        assert error is not None
        return error


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ThreadPoolExecutor(1) as executor, Runtime("server") as server, Runtime("client") as client:
        yield Site(server, client, executor)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("case", SAME_CLASS)
def test_an_exception_arrives_with_its_class_and_text(site: Site, case: str, where: str) -> None:
    function, cls, text = SAME_CLASS[case]
    error = site.error_of(function, where)
    assert type(error) is cls
    assert str(error) == text
    assert cls.__name__ in str(error.__cause__)
    assert traceback.format_exception(error)  # whatever the class is made of


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("case", OTHER_CLASS)
def test_what_cannot_be_of_its_class_says_of_which_it_was(site: Site, case: str, where: str) -> None:
    function, text = OTHER_CLASS[case]
    error = site.error_of(function, where)
    assert isinstance(error, RemoteError)
    assert str(error) == text
    assert error.class_name == text.split(":")[0]


@pytest.mark.parametrize("where", WHERE)
def test_a_coroutines_own_cancellation_says_why(site: Site, where: str) -> None:
    assert "by hand" in str(site.error_of(raises(asyncio.CancelledError("by hand")), where))


def test_an_error_can_be_handed_on(site: Site) -> None:
    """Sends the error by pickle, as from a worker process, and by another runtime."""
    for error in (site.error_of(raises(SystemExit(3)), "plain"), site.error_of(missing_file, "plain")):
        for handed_on in (
            pickle.loads(pickle.dumps(error)),
            copy.copy(error),
            site.error_of(raises(error), "executor"),
        ):
            assert (type(handed_on), str(handed_on)) == (type(error), str(error))


def test_attributes_arrive(site: Site) -> None:
    quota = site.error_of(raises(QuotaError("used up", response={"code": 429, "headers": [("a", None)]})), "plain")
    assert isinstance(quota, QuotaError)
    assert quota.response == {"code": 429, "headers": [("a", None)]}
    unsendable = site.error_of(raises(QuotaError("used up", response=threading)), "plain")
    assert isinstance(unsendable, QuotaError)
    assert repr(unsendable.response) == repr(threading)
    missing = site.error_of(missing_file, "plain")
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.filename) == (2, "no_such_file.bin")
    frozen = site.error_of(raises(FrozenError(3)), "plain")
    assert isinstance(frozen, FrozenError)
    assert frozen == FrozenError(3)
    key = site.error_of(raises(ImportError("no such", name="here", path="there")), "plain")
    assert isinstance(key, ImportError)
    assert (key.name, key.path) == ("here", "there")


def test_notes_and_chains_arrive(site: Site) -> None:
    def chained() -> None:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            error = ValueError("outer")
            error.__notes__ = ["with a note"]
            raise error from inner

    error = site.error_of(chained, "plain")
    assert getattr(error, "__notes__", None) == ["with a note"]
    told = str(error.__cause__)
    assert "KeyError: 'inner'" in told
    assert "direct cause" in told
    assert "ValueError: outer" in told


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups before")
def test_exception_groups_arrive_with_their_members(site: Site) -> None:
    group_class: Any = builtins.ExceptionGroup  # type: ignore[attr-defined,unused-ignore]
    base_class: Any = builtins.BaseExceptionGroup  # type: ignore[attr-defined,unused-ignore]
    inner = group_class("inner", [KeyError("second"), FormatsError("llama")])
    error: Any = site.error_of(raises(group_class("two went wrong", [ValueError("first"), inner])), "coroutine")
    assert type(error) is group_class
    first, nested = error.exceptions
    assert (type(first), str(first)) == (ValueError, "first")
    assert [type(each) for each in nested.exceptions] == [KeyError, FormatsError]
    error = site.error_of(raises(base_class("stopped", [SystemExit(3), ValueError("first")])), "plain")
    assert type(error) is group_class
    assert str(error.exceptions[0]) == "SystemExit: 3"


@pytest.mark.parametrize("where", WHERE)
def test_long_texts_and_deep_stacks_arrive_shortened(site: Site, where: str) -> None:
    def recursion() -> object:
        return recursion()

    error = site.error_of(raises(ValueError("x" * (8 << 20))), where)
    assert type(error) is ValueError
    assert "(8388608 characters)" in str(error)
    assert len(str(error)) <= 1 << 20
    assert type(site.error_of(recursion, where)) is RecursionError


def test_what_refers_to_itself_arrives(site: Site) -> None:
    error = ValueError("round")
    error.args = ("round", error)
    assert "round" in str(site.error_of(raises(error), "plain"))
    values: list[object] = []
    values.append(values)
    assert "[...]" in str(site.error_of(raises(ValueError(values)), "plain"))


@pytest.mark.parametrize("where", WHERE)
def test_an_answer_that_cannot_be_sent_is_named(site: Site, where: str) -> None:
    error = site.error_of(object, where) if where != "coroutine" else site.error_of(lambda: object(), where)
    assert isinstance(error, TypeError)
    assert "a value of type object cannot be sent" in str(error)


def test_an_executor_that_cannot_run_functions_is_refused() -> None:
    with Runtime("server") as server, ProcessPoolExecutor(1) as processes:
        with pytest.raises(TypeError, match="executor of 'f' is a ProcessPoolExecutor; allowed: executors that run"):
            server.register("f", executor=processes)(len)
        with pytest.raises(TypeError, match="executor of 'f' is 3; allowed: a concurrent"):
            server.register("f", executor=3)(len)  # type: ignore[arg-type]


class Never(Executor):
    """An executor that runs nothing; the test decides what happens to each call."""

    def __init__(self) -> None:
        self.given: list[Future[Any]] = []
        self.is_given = threading.Event()

    def submit(self, *_: object, **__: object) -> Future[Any]:  # type: ignore[override]
        self.given.append(Future())
        self.is_given.set()
        return self.given[-1]


def test_an_executor_that_does_not_run_a_function_says_so(site: Site) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    site.server.register("after its end", executor=executor)(len)
    with pytest.raises(RuntimeError, match="executor of 'after its end' refused the call: cannot schedule new futures"):
        site.peer.invoke("after its end", []).result(DEADLINE_S)
    never = Never()
    site.server.register("never", executor=never)(len)
    dropped, broken = site.peer.invoke("never", []), site.peer.invoke("never", [])
    while len(never.given) < 2:
        assert never.is_given.wait(DEADLINE_S)
    never.given[0].cancel()
    never.given[1].set_exception(TypeError("cannot pickle it"))
    with pytest.raises(RuntimeError, match="the executor of 'never' was shut down before the call ran"):
        dropped.result(DEADLINE_S)
    with pytest.raises(RuntimeError, match=r"executor of 'never' cannot run the call: TypeError\('cannot pickle it'\)"):
        broken.result(DEADLINE_S)


def test_a_peers_words_load_nothing_and_run_no_constructor(site: Site) -> None:
    made: list[object] = []

    class CountsError(Exception):
        def __init__(self, value: object) -> None:
            super().__init__(value)
            made.append(value)

    CountsError.__qualname__ = "CountsError"
    globals()["CountsError"] = CountsError
    error = site.error_of(raises(CountsError(1)), "plain")
    assert type(error) is CountsError
    assert made == [1]  # at the function
