"""Tells a function which call it is running for."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch_axon import _native
from torch_axon.runtime._errors import RuntimeClosedError

if TYPE_CHECKING:
    from torch_axon._C import RuntimeInvocation
    from torch_axon.runtime._peer import Peer
    from torch_axon.runtime._runtime import Runtime

# Set for coroutines, and for functions and generators in executors. The extension itself knows the call of what runs on
# the runtime's thread, which saves setting a variable that few functions read.
invocation_here: ContextVar[RuntimeInvocation | None] = ContextVar("torch_axon.invocation", default=None)


class CurrentCall:
    """The call that a function is running for. It may be used on any thread and kept for any time."""

    __slots__ = ("_invocation",)

    def __init__(self, invocation: RuntimeInvocation) -> None:
        self._invocation = invocation

    def __repr__(self) -> str:
        return f"CurrentCall({self._invocation.name!r} for {self._invocation.caller!r})"

    @property
    def peer(self) -> Peer:
        """The caller. The function can call it back, under the rules for functions that call others.

        Raises:
            RuntimeClosedError: the runtime at which the function is registered no longer exists
        """
        runtime: Runtime | None = self._invocation.runtime
        if runtime is None:
            raise RuntimeClosedError(f"the runtime that '{self._invocation.caller}' called no longer exists")
        return runtime._peer_of(self._invocation.connection)

    @property
    def wants_answer(self) -> bool:
        """Whether the caller waits for an answer: true for `invoke` and `iterate`, false for `tell` and `publish`."""
        return self._invocation.wants_answer

    @property
    def is_wanted(self) -> bool:
        """Whether there is a reason to continue.

        It becomes false when the call is answered, its caller cancels it, its deadline passes or its caller's process
        ends. A one-way call (`tell`, `publish`) stays wanted until it has run.
        """
        return not self._invocation.is_cancelled

    @property
    def caller_is_gone(self) -> bool:
        """Whether the caller's process or the connection to it has ended."""
        return self._invocation.connection.failure() is not None


def current_call() -> CurrentCall | None:
    """Returns the call that this code runs for, or None if it does not run for a call.

    Functions of all kinds have it. So do the coroutines that they await, the tasks that they create and the functions
    that they pass to `asyncio.to_thread`. A thread or an executor that the function itself uses does not have it: pass
    the object to it.

    Returns:
        The call, or None.
    """
    invocation = invocation_here.get()
    if invocation is None:
        invocation = _native.load().current_invocation()
    return None if invocation is None else CurrentCall(invocation)
