"""Generator functions: a caller requests their values a few at a time, ahead of their use.

A caller opens a generator under a number that the caller chooses, and keeps a few requests for its next values in
flight. The generator produces no more values than were requested, so a slow caller holds it back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, Executor
from typing import TYPE_CHECKING, Any

from torch_axon.runtime._functions import InExecutor, OnLoop
from torch_axon.runtime._memory import BY_DEFAULT, AnyMemory, policy_of, read_step
from torch_axon.runtime._names import NEXT, NUMBER, STOP

if TYPE_CHECKING:
    from torch_axon._C import RuntimeCore, RuntimeInvocation
    from torch_axon.runtime._future import Future
    from torch_axon.runtime._peer import Peer

Step = Callable[["RuntimeInvocation", tuple[Any, ...], dict[str, Any]], None]


class _Open:
    """An open generator. It answers each request with `[count, value]`, and with None after the last value."""

    def __init__(self, values: Iterator[Any] | AsyncIterator[Any]) -> None:
        self.values: Iterator[Any] | AsyncIterator[Any] | None = values
        self._count = 0
        self._turn = threading.Lock()  # several threads of an executor may request values at once
        self._async_turn: asyncio.Lock | None = None

    def next(self) -> list[Any] | None:
        with self._turn:
            if self.values is None:
                return None
            assert isinstance(self.values, Iterator)
            try:
                return self._counted(next(self.values))
            except StopIteration:
                self.close()
                return None
            except BaseException:
                self.close()
                raise

    async def anext(self) -> list[Any] | None:
        self._async_turn = self._async_turn or asyncio.Lock()
        async with self._async_turn:
            if self.values is None:
                return None
            assert isinstance(self.values, AsyncIterator)
            try:
                return self._counted(await anext(self.values))
            except StopAsyncIteration:
                self.close()
                return None
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Drops the generator, which Python closes as soon as no thread is executing it."""
        self.values = None

    def _counted(self, value: Any) -> list[Any]:
        self._count += 1
        return [self._count - 1, value]


def opener(core: RuntimeCore, function: Callable[..., Any], executor: Executor | None, loop: OnLoop | None) -> Step:
    """Returns what the runtime calls to open a generator. It answers with the number of the generator."""

    def open_generator(invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            number = kwargs.pop(NUMBER, None)
            if not isinstance(number, int):
                raise TypeError(f"'{invocation.name}' is a generator function; call it with Peer.iterate")
            opened = _Open(_checked(function(*args, **kwargs), invocation.name))
            elsewhere = _elsewhere(opened, invocation.name, executor, loop)
            core.open_generator(invocation, number, elsewhere or opened.next, elsewhere is not None, opened.close)
        except BaseException as exception:
            invocation.fail(exception)

    return open_generator


def _elsewhere(opened: _Open, name: str, executor: Executor | None, loop: OnLoop | None) -> Step | None:
    """Returns how the generator continues; None: on the runtime's thread."""
    if isinstance(opened.values, AsyncIterator):
        if loop is None:
            raise TypeError(
                f"'{name}' returned an asynchronous generator, but its decorator hides that; use functools.wraps"
            )
        return loop.function(opened.anext)
    return None if executor is None else InExecutor(opened.next, executor)


def _checked(made: object, name: str) -> Iterator[Any] | AsyncIterator[Any]:
    if isinstance(made, Iterator | AsyncIterator):
        return made
    raise TypeError(f"iterate: '{name}' returned a {type(made).__qualname__}; allowed: a generator")


class Answers:
    """The values of a peer's generator function, in order, as `Peer.iterate` returns them.

    This is an iterator and an asynchronous iterator. It ends with the generator, or with the first exception, which it
    raises. `close()`, or leaving a `with` or `async with` block, ends it earlier. Use it from one thread at a time.
    """

    def __init__(
        self, peer: Peer, opening: Future, number: int, ahead: int, timeout: float | None, memory: AnyMemory
    ) -> None:
        self._peer = peer
        self._opening = opening
        self._number = number
        self._ahead = ahead
        self._timeout = timeout
        self._policy = BY_DEFAULT if memory is None else policy_of(memory, read_step)
        self._begun = False
        self._asked: deque[Future] = deque()
        self._here: dict[int, Any] = {}  # values that arrived out of order
        self._count = 0
        self._ended = False

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Answers:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Answers:
        return self

    def __aiter__(self) -> Answers:
        return self

    def __next__(self) -> Any:
        """Returns the next value.

        Raises:
            StopIteration: there are no more values
            Exception: what the generator raised, or what `Future.wait` raises
        """
        try:
            if not self._begun:
                self._begin(None if self._ended else self._opening.result())
            while self._count not in self._here and self._asked:
                self._take(self._asked.popleft().result())
        except BaseException:
            self._break_off()
            raise
        if self._count not in self._here:
            raise StopIteration
        return self._hand_out()

    async def __anext__(self) -> Any:
        """Awaits and returns the next value.

        Raises:
            StopAsyncIteration: there are no more values
            Exception: what the generator raised, or what `Future.wait` raises
        """
        try:
            if not self._begun:
                self._begin(None if self._ended else await self._opening)
            while self._count not in self._here and self._asked:
                self._take(await self._asked.popleft())
        except BaseException:
            self._break_off()
            raise
        if self._count not in self._here:
            raise StopAsyncIteration
        return self._hand_out()

    def close(self) -> None:
        """Stops the peer's generator and ends the iteration. Closing again does nothing."""
        if not self._ended and self._may_be_open():
            self._peer.tell(STOP, self._number)
        self._ended = True
        self._asked.clear()

    async def aclose(self) -> None:
        """Does what `close` does, for `contextlib.aclosing`."""
        self.close()

    def __del__(self) -> None:
        self.close()

    def _may_be_open(self) -> bool:
        if not self._opening.done():
            return True
        failure = self._opening.exception()
        return failure is None or isinstance(failure, TimeoutError | CancelledError)

    def _break_off(self) -> None:
        """Ends the iteration after an exception, since a value is missing from here on."""
        self.close()
        self._here.clear()

    def _begin(self, number: object) -> None:
        self._begun = True
        if self._ended:
            return
        if number != self._number:
            raise TypeError(f"iterate: the function at '{self._peer.name}' is not a generator function; use invoke")
        for _ in range(self._ahead):
            self._ask()

    def _ask(self) -> None:
        self._asked.append(self._peer._start(NEXT, (self._number,), {}, self._timeout, self._policy))

    def _take(self, answer: list[Any] | None) -> None:
        if answer is None:  # values before the last one may still be in flight
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
