"""Functions that answer more than once: generators, whose values callers ask for a few ahead of their use.

A caller opens a generator, which gets a number, and keeps some calls for its next values under way: no more values are
made than that, so a caller that is slow holds the generator back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from torch_axon.runtime._functions import InExecutor, OnLoop

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection, RuntimeInvocation
    from torch_axon.runtime._future import Future
    from torch_axon.runtime._peer import Peer

Step = Callable[["RuntimeInvocation", tuple[Any, ...], dict[str, Any]], None]

NEXT = "axon.next"
STOP = "axon.stop"
_MOST_OPEN = 1024


class _Open:
    """A generator that has been called and not ended. Answers `[count, value]`, and None once it is through."""

    def __init__(
        self, connection: RuntimeConnection, values: Generator[Any, None, None] | AsyncGenerator[Any, None]
    ) -> None:
        self.connection = connection
        self.values = values
        self.elsewhere: Step | None = None  # how it goes on where that is not the runtime's thread
        self._count = 0
        self._turn = threading.Lock()  # executors and free threads may ask twice at a time
        self._async_turn: asyncio.Lock | None = None

    def next(self) -> list[Any] | None:
        assert isinstance(self.values, Generator)
        with self._turn:
            try:
                value = next(self.values)
            except StopIteration:
                return None
            return self._counted(value)

    async def anext(self) -> list[Any] | None:
        assert isinstance(self.values, AsyncGenerator)
        self._async_turn = self._async_turn or asyncio.Lock()
        async with self._async_turn:
            try:
                value = await anext(self.values)
            except StopAsyncIteration:
                return None
            return self._counted(value)

    def _counted(self, value: Any) -> list[Any]:
        self._count += 1
        return [self._count - 1, value]

    def answer(self, invocation: RuntimeInvocation) -> None:
        if self.elsewhere is not None:
            return self.elsewhere(invocation, (), {})
        try:
            answer = self.next()
        except BaseException as exception:
            invocation.fail(exception)
        else:
            invocation.reply(answer)


class Generators:
    """Those of a runtime that are open, by number."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._num_opened = 0
        self._lock = threading.Lock()

    def opener(self, function: Callable[..., Any], executor: Executor | None, loop: OnLoop | None) -> Step:
        """What is called with an invocation of a generator function: answers with the generator's number."""

        def open_generator(invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            try:
                opened = _Open(invocation.connection, function(*args, **kwargs))
                if executor is not None:
                    opened.elsewhere = InExecutor(opened.next, executor)
                elif loop is not None:
                    opened.elsewhere = loop.function(opened.anext)
                number = self._add(opened)
            except BaseException as exception:
                invocation.fail(exception)
            else:
                invocation.reply(number)

        return open_generator

    def answer_next(self, invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        opened = self._open.get(args[0])
        if opened is None:
            invocation.fail(LookupError(f"there is no open generator {args[0]!r}"))
        else:
            opened.answer(invocation)

    def stop(self, number: int) -> None:
        opened = self._open.pop(number, None)
        if opened is not None:
            opened.elsewhere = None  # which refers to it: now it goes, and is closed, as soon as nobody is within it

    def _add(self, opened: _Open) -> int:
        with self._lock:
            for number, other in list(self._open.items()):
                if other.connection.failure() is not None:
                    self.stop(number)
            if len(self._open) >= _MOST_OPEN:
                raise BufferError(f"{_MOST_OPEN} generators are open already, as many as may")
            self._num_opened += 1
            self._open[self._num_opened] = opened
            return self._num_opened


class Answers:
    """The values of a generator function at a peer, in order: an iterator, and an asynchronous one.

    Ends by itself with the generator; `close()`, or leaving its `with` block, ends it before.
    """

    def __init__(self, peer: Peer, opening: Future, ahead: int, timeout: float | None) -> None:
        self._peer = peer
        self._opening = opening
        self._ahead = ahead
        self._timeout = timeout
        self._number: int | None = None
        self._asked: deque[Future] = deque()
        self._here: dict[int, Any] = {}  # what has come before its turn
        self._count = 0
        self._ended = False

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Answers:
        return self

    def __aiter__(self) -> Answers:
        return self

    def __next__(self) -> Any:
        if self._number is None:
            self._begin(self._opening.result())
        while self._count not in self._here:
            if not self._asked:
                raise StopIteration
            self._take(self._asked.popleft().result())
        return self._hand_out()

    async def __anext__(self) -> Any:
        if self._number is None:
            self._begin(await self._opening)
        while self._count not in self._here:
            if not self._asked:
                raise StopAsyncIteration
            self._take(await self._asked.popleft())
        return self._hand_out()

    def close(self) -> None:
        """The generator makes no more values, and these end."""
        if self._number is not None and not self._ended:
            self._peer.tell(STOP, self._number)
        self._ended = True
        self._asked.clear()

    def __del__(self) -> None:
        self.close()

    def _begin(self, number: int) -> None:
        self._number = number
        for _ in range(0 if self._ended else self._ahead):
            self._ask()

    def _ask(self) -> None:
        self._asked.append(self._peer.invoke(NEXT, self._number, timeout=self._timeout))

    def _take(self, answer: list[Any] | None) -> None:
        if answer is None:
            if not self._ended:
                self._peer.tell(STOP, self._number)
            self._ended = True
            return
        count, value = answer
        self._here[count] = value
        if not self._ended:
            self._ask()

    def _hand_out(self) -> Any:
        self._count += 1
        return self._here.pop(self._count - 1)
