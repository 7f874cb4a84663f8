"""Which call a function is running for."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch_axon import _native
from torch_axon.runtime._errors import RuntimeClosedError

if TYPE_CHECKING:
    from torch_axon._C import RuntimeInvocation
    from torch_axon.runtime._peer import Peer
    from torch_axon.runtime._runtime import Runtime

# Of coroutines, generators and functions in executors. Plain functions on the runtime's thread are known to the
# extension, which spares them a variable that few of them read.
invocation_here: ContextVar[RuntimeInvocation | None] = ContextVar("torch_axon.invocation", default=None)


class CurrentCall:
    """The call that a function is running for. For any thread, and for as long as it is kept."""

    __slots__ = ("_invocation",)

    def __init__(self, invocation: RuntimeInvocation) -> None:
        self._invocation = invocation

    def __repr__(self) -> str:
        return f"CurrentCall({self._invocation.name!r} for {self._invocation.caller!r})"

    @property
    def peer(self) -> Peer:
        """The caller. It can be called back, under the rules for functions that call others.

        Raises:
            RuntimeClosedError: the runtime that the function is registered at is gone
        """
        runtime: Runtime | None = self._invocation.runtime
        if runtime is None:
            raise RuntimeClosedError(f"the runtime that '{self._invocation.caller}' has called is gone")
        return runtime._peer_of(self._invocation.connection)

    @property
    def wants_answer(self) -> bool:
        """Whether the caller waits for an answer: `invoke` and `iterate`, but not `tell` and `publish`."""
        return self._invocation.wants_answer

    @property
    def is_wanted(self) -> bool:
        """Whether there is a reason to go on.

        False once the call has been answered, its caller has cancelled it, its deadline has passed or its caller is
        gone. What was only told is wanted until it has been done.
        """
        return not self._invocation.is_cancelled

    @property
    def caller_is_gone(self) -> bool:
        """Whether the caller's process has ended, or the connection to it."""
        return self._invocation.connection.failure() is not None


def current_call() -> CurrentCall | None:
    """The call that this code runs for; None where it does not run for one.

    Known to functions of all kinds, to the coroutines and tasks that they await or make, and to what they hand to
    `asyncio.to_thread`. A thread or an executor of the function's own starts without it: hand it the object.
    """
    invocation = invocation_here.get()
    if invocation is None:
        invocation = _native.load().current_invocation()
    return None if invocation is None else CurrentCall(invocation)
