"""Runs functions outside the runtime's own thread: coroutines on an event loop, others in an executor."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from torch_axon import _native
from torch_axon.runtime import _loops
from torch_axon.runtime._current import invocation_here
from torch_axon.runtime._descriptions import clean

if TYPE_CHECKING:
    from torch_axon._C import RuntimeInvocation

Arguments = tuple[Any, ...]

_cancelled: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # each task is added by its loop's thread only

# How long a coroutine may take to end after its runtime has cancelled it, for the first and for the second time.
_LONGEST_CANCELLATION_S = 1.0
_LONGEST_SECOND_CANCELLATION_S = 0.5


def _cancel_once(task: asyncio.Task[Any]) -> None:
    """Cancels a task, unless that was done before: a second time would interrupt its handling of the first."""
    if task not in _cancelled:
        _cancelled.add(task)
        task.cancel()


class InExecutor:
    """Runs a function in an executor. The runtime's thread calls this, and a thread of the executor answers."""

    def __init__(self, function: Callable[..., Any], executor: Executor) -> None:
        self._function = function
        self._executor = executor

    def __call__(self, invocation: RuntimeInvocation, args: Arguments, kwargs: dict[str, Any]) -> None:
        try:
            submitted = self._executor.submit(self._run, invocation, args, kwargs)
        except RuntimeError as error:  # the executor is shut down or cannot start threads
            raise RuntimeError(f"the executor of '{invocation.name}' refused the call: {error}") from error
        submitted.add_done_callback(partial(_fail_unless_run, invocation))

    def _run(self, invocation: RuntimeInvocation, args: Arguments, kwargs: dict[str, Any]) -> None:
        if invocation.is_cancelled:
            return invocation.fail_as_given_up()
        before = invocation_here.set(invocation)
        try:
            result = self._function(*args, **kwargs)
        except BaseException as exception:
            invocation.fail(exception)
        else:
            if isinstance(result, CoroutineType):  # from a decorated `async def`
                invocation.runtime._run_coroutine(invocation, result)
            else:
                invocation.reply(result)
        finally:
            invocation_here.reset(before)


def _fail_unless_run(invocation: RuntimeInvocation, submitted: Future[None]) -> None:
    """Fails an invocation that the executor did not run. If it ran, it has answered, and this has no effect."""
    if submitted.cancelled():
        invocation.fail(RuntimeError(f"the executor of '{invocation.name}' was shut down before the call ran"))
        return
    error = submitted.exception()
    if error is not None:
        invocation.fail(RuntimeError(f"the executor of '{invocation.name}' cannot run the call: {error!r}"))


def check_executor(name: str, executor: Executor) -> None:
    """Refuses executors that run functions in other processes, where arguments and caller cannot be reached.

    Raises:
        TypeError: the executor does so, or is no executor
    """
    for module, cls in (
        ("concurrent.futures.process", "ProcessPoolExecutor"),
        ("concurrent.futures.interpreter", "InterpreterPoolExecutor"),
    ):
        if module in sys.modules and isinstance(executor, getattr(sys.modules[module], cls)):
            raise TypeError(
                f"register: the executor of '{name}' is a {cls}; allowed: executors that run functions in threads of "
                "this process, such as ThreadPoolExecutor. For other processes, submit from within the function"
            )
    if not callable(getattr(executor, "submit", None)):
        raise TypeError(f"register: the executor of '{name}' is {executor!r}; allowed: a concurrent.futures.Executor")


Step = Callable[..., Coroutine[Any, Any, Any]]


def _closed(invocation: RuntimeInvocation) -> RuntimeError:
    return RuntimeError(f"the loop on which '{invocation.name}' runs is closed")


class OnLoop:
    """Starts coroutines on a loop and cancels those whose callers have given up.

    One wake-up of the loop starts all coroutines that are queued. A stopped loop may run again, so its calls wait until
    their deadlines. The calls of a closed loop fail at once, whether they have begun or not.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queued: deque[tuple[Step, RuntimeInvocation, Arguments, dict[str, Any]]] = deque()
        self._woken = False
        self._running: dict[int, tuple[asyncio.Task[None], RuntimeInvocation]] = {}  # by the invocation's serial
        if asyncio._get_running_loop() is loop:  # the runtime's own loop ends its coroutines itself
            _loops.watch(loop, self)

    def function(self, function: Step) -> Callable[[RuntimeInvocation, Arguments, dict[str, Any]], None]:
        def start(invocation: RuntimeInvocation, args: Arguments, kwargs: dict[str, Any]) -> None:
            self._queued.append((function, invocation, args, kwargs))
            if not self._woken:
                self._wake()

        return start

    def _wake(self) -> None:
        self._woken = True
        if not _loops.call_soon(self._loop, self._start_all):
            self.loop_closed()

    def loop_closed(self) -> None:
        self._woken = False  # before the check: a call that is queued after it finds the loop closed by itself
        for invocation in self._take_all():
            invocation.fail(_closed(invocation))

    def _take_all(self) -> Iterator[RuntimeInvocation]:
        """Removes and yields all invocations of a closed loop. Several threads may do so at the same time."""
        with suppress(IndexError):
            while True:
                yield self._queued.popleft()[1]
        with suppress(KeyError):
            while True:
                yield self._running.popitem()[1][1]

    def cancel(self, serial: int) -> None:
        _loops.call_soon(self._loop, self._cancel, serial)

    def _cancel(self, serial: int) -> None:
        if serial in self._running:
            _cancel_once(self._running[serial][0])

    def _start_all(self) -> None:
        self._woken = False  # before the check: a call that is queued after it wakes the loop again
        while self._queued:
            function, invocation, args, kwargs = self._queued.popleft()
            if invocation.is_cancelled:
                invocation.fail_as_given_up()
                continue
            serial = invocation.serial
            task = self._loop.create_task(self._run(serial, function, invocation, args, kwargs))
            self._running[serial] = task, invocation
            task.add_done_callback(partial(self._end, serial))

    async def _run(
        self, serial: int, function: Step, invocation: RuntimeInvocation, args: Arguments, kwargs: dict[str, Any]
    ) -> None:
        invocation_here.set(invocation)  # in the task's own context
        try:
            invocation.reply(await function(*args, **kwargs))
        except asyncio.CancelledError as cancelled:
            invocation.fail_as_given_up(clean(str(cancelled)))
        except GeneratorExit:  # the task was destroyed after its loop was closed, and before loop_closed() took it
            invocation.fail(_closed(invocation))
            raise
        except BaseException as exception:
            invocation.fail(exception)
        finally:
            self._running.pop(serial, None)

    def _end(self, serial: int, _: asyncio.Task[None]) -> None:
        """Fails the invocation of a task that never ran `_run`.

        `asyncio.run` does that at its end: it cancels tasks before their first step.
        """
        ended = self._running.pop(serial, None)
        if ended is not None:
            ended[1].fail_as_given_up()


class LoopThread:
    """The runtime's own loop, for coroutine functions that were registered without a running loop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system starts no more threads
            self.loop.close()
            raise

    def _run(self) -> None:
        _native.load().note_thread_of_runtime()
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            _cancel_once(task)
        tasks = self._await_ends(tasks, _LONGEST_CANCELLATION_S)
        for task in tasks:  # one that continued after the first cancellation
            task.cancel()
        self._await_ends(tasks, _LONGEST_SECOND_CANCELLATION_S)
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _await_ends(self, tasks: set[asyncio.Task[Any]], timeout: float) -> set[asyncio.Task[Any]]:
        """Waits until the tasks end, so that each answers that it was cancelled. Returns those that have not ended."""
        return self.loop.run_until_complete(asyncio.wait(tasks, timeout=timeout))[1] if tasks else tasks

    def stop(self, timeout: float) -> None:
        _loops.call_soon(self.loop, self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
