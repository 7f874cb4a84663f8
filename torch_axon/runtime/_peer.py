"""The other end of a connection."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from torch_axon.runtime._future import Future
from torch_axon.runtime._generators import Answers
from torch_axon.runtime._mailboxes import PUT, SKIP

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection
    from torch_axon.runtime._runtime import Runtime


class Peer:
    """A runtime of another process, or of this one. Made by `Runtime.connect`; for any thread."""

    def __init__(self, runtime: Runtime, connection: RuntimeConnection) -> None:
        self._runtime = runtime
        self._connection = connection
        self._timeout = runtime.timeout
        self._lock = threading.Lock()  # guards the numbers
        self._num_sent: dict[str, int] = {}  # the latest message's, by tag
        self.name: str = connection.name
        self.incarnation: int = connection.incarnation

    def __repr__(self) -> str:
        return f"Peer({self.name!r}, incarnation={self.incarnation:#x})"

    def invoke(
        self,
        function: str,
        /,
        *args: Any,
        timeout: float | None = None,
        memory: str | torch.device | None = None,
        **kwargs: Any,
    ) -> Future:
        """Calls a function of the peer's; the future is done after `timeout` seconds at the latest.

        Arguments and answers: tensors, what speaks DLPack or the buffer protocol, None, bool, int, float, str, bytes,
        and lists, tuples and dicts of such; tuples arrive as lists. Tensors are read until the future is done: what is
        written into them before may be what arrives. `memory` is the device on which tensors of the answer arrive: by
        default the CPU, or CUDA where they were on CUDA at the peer and there is any here.
        """
        call = self._connection.invoke(function, args, kwargs, self._timeout if timeout is None else timeout, True)
        return Future(self, call, None if memory is None else torch.device(memory))

    def tell(self, function: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Future:
        """Calls a function without waiting for what becomes of it: done, with None, once the message has left.

        At most 1,024 messages of a connection are under way; others wait for those to be dealt with.
        """
        call = self._connection.invoke(function, args, kwargs, self._timeout if timeout is None else timeout, False)
        return Future(self, call, None)

    def iterate(
        self, function: str, /, *args: Any, ahead: int = 16, timeout: float | None = None, **kwargs: Any
    ) -> Answers:
        """The values of a generator function of the peer's, `ahead` of which are asked for before they are used.

        `timeout` is for each of them.
        """
        if ahead < 1:
            raise ValueError(f"iterate: ahead is {ahead}; allowed: 1 or more")
        return Answers(self, self.invoke(function, *args, timeout=timeout, **kwargs), ahead, timeout)

    def send(self, tag: str, value: Any, /, timeout: float | None = None) -> Future:
        """Sends a message to a mailbox of the peer's, in order with the others to this tag.

        The future is done once the mailbox has accepted it: while it is full, messages wait, and count as calls.
        """
        with self._lock:
            number = self._num_sent.get(tag, -1) + 1
            future = self.invoke(PUT, tag, number, value, timeout=timeout)
            self._num_sent[tag] = number  # not where the value cannot be sent: the next message would be waited behind

        def on_done(done: Future) -> None:
            if done.exception() is not None:  # it may not have left: those behind it are not to wait for it
                self.tell(SKIP, tag, number)

        future.add_done_callback(on_done)
        return future

    @property
    def failure(self) -> str | None:
        """Why the peer cannot be called any more; None while it can."""
        failure = self._connection.failure()
        return None if failure is None else failure[1]


def publish(peers: Iterable[Peer], function: str, /, *args: Any, **kwargs: Any) -> list[Future]:
    """Tells all of them, without waiting for any; the futures are in their order."""
    return [peer.tell(function, *args, **kwargs) for peer in peers]
