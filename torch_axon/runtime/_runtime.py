"""The runtime: one process's end of calls to and from other processes."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from torch_axon import _native
from torch_axon.runtime import _at_exit, _connecting, _errors, _kinds
from torch_axon.runtime._closable import Closable
from torch_axon.runtime._connecting import Target
from torch_axon.runtime._exposing import Exposing
from torch_axon.runtime._functions import InExecutor, LoopThread, OnLoop, check_executor
from torch_axon.runtime._generators import opener
from torch_axon.runtime._mailboxes import Mailbox
from torch_axon.runtime._memory import AnyMemory, policy_of, read_arguments, read_message
from torch_axon.runtime._names import EXPOSE, OWN
from torch_axon.runtime._peer import Peer
from torch_axon.runtime._peer_callbacks import CallbackHandle, PeerCallbacks

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection, RuntimeInvocation

F = TypeVar("F", bound=Callable[..., Any])

# How long the runtime's thread polls for messages after the last one before it sleeps.
_SPIN_BUDGET_S = {"spin": 1e6, "adaptive": 0.004, "block": 0.0}
# How long our threads may take to end, since one of them may be executing a user's function.
_LONGEST_END_S = 2.0


class Runtime(Exposing, PeerCallbacks, Closable):
    """Registers functions for peers, listens for peers and connects to them.

    All methods may be called on any thread. A runtime is a context manager, also an asynchronous one, that closes it.

    Args:
        name: the name by which peers know this runtime, 1 to 255 bytes
        timeout: seconds until a call fails, unless the call says otherwise; more than 0
        progress: how the runtime's thread waits for messages: "spin" polls without end, "block" sleeps in the kernel,
            "adaptive" polls for 4 ms after the last message and then sleeps
        secret: the secret that peers need to connect to (host, port), of at least 16 bytes; by default AXON_SECRET
        max_message_bytes: the most bytes of all tensors of one received message
        max_waiting_calls: the most calls to one peer that are queued here beyond the 1,023 in flight
        max_running_calls: the most calls of peers that have not been answered, whether they run or are queued
        max_connections: the most connections in both directions

    Attributes:
        name: the name by which peers know this runtime
        timeout: the default timeout of calls, in seconds

    Raises:
        ValueError: an argument is out of range
        TypeError: `secret` is neither bytes nor text
        ImportError: the extension was built for another version of torch
        RuntimeError: the system cannot start another thread
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: float = 30.0,
        progress: str = "adaptive",
        secret: bytes | str | None = None,
        max_message_bytes: int = 16 << 30,
        max_waiting_calls: int = 65_536,
        max_running_calls: int = 65_536,
        max_connections: int = 1024,
    ) -> None:
        if progress not in _SPIN_BUDGET_S:
            raise ValueError(f"Runtime: progress is {progress!r}; allowed: {', '.join(_SPIN_BUDGET_S)}")
        if not timeout > 0:
            raise ValueError(f"Runtime: timeout is {timeout!r} s; allowed: more than 0")
        if secret is not None and not isinstance(secret, bytes | str):
            raise TypeError(f"Runtime: secret is of type {type(secret).__name__}; allowed: bytes or text")
        self.name = name
        self.timeout = timeout
        self._secret = secret
        self._drives = _SPIN_BUDGET_S[progress] > 0  # whether loops drive the engine while they await calls
        self._core = _native.load().RuntimeCore(
            name,
            weakref.ref(self),
            weakly(self._on_cancelled),
            weakly(self._on_notified),
            {
                "max_message_bytes": max_message_bytes,
                "max_waiting_calls": max_waiting_calls,
                "max_running_calls": max_running_calls,
                "max_connections": max_connections,
            },
        )
        self._core.register(EXPOSE, _expose, True, None, None, None)
        # One Peer per connection, so that equal peers compare equal.
        self._peers: weakref.WeakValueDictionary[RuntimeConnection, Peer] = weakref.WeakValueDictionary()
        self._connected_callbacks: list[CallbackHandle] = []
        self._lost_callbacks: list[CallbackHandle] = []
        self._awaiting_notifications: list[Callable[[], None]] = []  # wake the tasks of loops
        self._loops: dict[asyncio.AbstractEventLoop, OnLoop] = {}
        self._own_loop: LoopThread | None = None
        self._loops_by_name: dict[str, OnLoop] = {}  # the loop of each function that may return coroutines
        # Guards the loops, the peers and _closed. It is reentrant, since finalizers and signal handlers may close the
        # runtime.
        self._lock = threading.RLock()
        self._closed = False
        self._pid = os.getpid()
        thread = threading.Thread(
            target=self._core.serve, args=(_SPIN_BUDGET_S[progress],), name=f"axon-runtime {name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the system starts no more threads
            self._core.close()
            raise
        self._thread = thread
        _at_exit.close(self)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close(drain=False)

    def __repr__(self) -> str:
        return f"Runtime({self.name!r}{', closed' if self._closed else ''})"

    @property
    def incarnation(self) -> int:
        """A number that identifies this runtime; no other runtime has it, of this name or another."""
        incarnation: int = self._core.incarnation
        return incarnation

    @property
    def address(self) -> bytes:
        """The address with which other processes can connect. Listens on loopback if the runtime does not listen yet.

        The address contains a key for this listener only, from which the runtime's secret cannot be derived. It stays
        the same, also after a restart, as long as secret, host and port do. Without a secret it is valid until the
        runtime is closed.
        """
        address: bytes = self._core.address("")
        return address

    def address_at(self, host: str) -> bytes:
        """The address for processes that reach this host by another name than that of `listen`.

        Args:
            host: a name or address of this host. A runtime that listens on "0.0.0.0" has no address without one.

        Returns:
            The address, as `address` does.

        Raises:
            TypeError: `host` is not text
            ValueError: `host` is empty or too long, or the runtime is closed
        """
        host, _ = _connecting.listening_address(host, 0)
        address: bytes = self._core.address(host)
        return address

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Lets peers that have the secret connect. A runtime can listen once.

        Args:
            host: a name or address of this host at which peers reach it; "0.0.0.0" and "::" listen on all addresses
            port: the TCP port; 0 selects a free one

        Returns:
            The port.

        Raises:
            UnknownHostError: the name of the host cannot be resolved
            ValueError: the runtime has no secret, the port is in use or out of range, or the runtime already listens
            TypeError: `host` or `port` has a wrong type
        """
        host, port = _connecting.listening_address(host, port)
        listening: int = self._core.listen(host, port, self._known_secret())
        return listening

    def counts(self) -> dict[str, int]:
        """Returns how many peers have connected to the listener, and how many it refused for each reason.

        Returns:
            Counts by name: `met`, and the reasons such as `wrong_secret`. Empty if the runtime does not listen.
        """
        counts: dict[str, int] = self._core.counts()
        return counts

    @property
    def num_connections(self) -> int:
        """The number of open connections in both directions."""
        num_connections: int = self._core.num_connections()
        return num_connections

    def connect(self, to: Target, *, timeout: float | None = None, wait: float = 0.0) -> Peer:
        """Connects to a runtime and blocks until it answers. On an event loop, use `aconnect`.

        If this runtime has connected to that one before, and the connection still lives, this returns the same peer.

        Args:
            to: its address; or the (host, port) or "host:port" at which it listens, if both runtimes have one secret
            timeout: seconds that one attempt may take; None: the runtime's timeout
            wait: seconds during which failed attempts are repeated, for a server that is about to start. The last
                attempt may take `timeout` seconds more. 0: one attempt.

        Returns:
            The peer. All that connect to it share it, and closing it closes it for all of them.

        Raises:
            UnknownHostError: the name of the host cannot be resolved
            WrongSecretError: the secrets differ, or the address belongs to an earlier listener
            VersionMismatchError: the peer runs another version of torch_axon
            PeerLostError: the peer's runtime is closing
            RuntimeClosedError: this runtime is closed
            ConnectionError: no runtime listens there. The classes above are derived from this one.
            TimeoutError: no answer within `timeout`
            BufferError: a limit was reached, such as `max_connections` or the file descriptors
            TypeError: `to` is neither an address nor a host and port
            ValueError: `to` has no valid port, `wait` is negative, or this runtime has no secret for (host, port)
        """
        limit = self.timeout if timeout is None else timeout
        return _connecting.keep_trying(self._attempt(to), limit, wait)

    async def aconnect(self, to: Target, *, timeout: float | None = None, wait: float = 0.0) -> Peer:
        """Connects as `connect` does, without blocking the event loop. Cancelling the task stops the attempts.

        Args:
            to: as for `connect`
            timeout: as for `connect`
            wait: as for `connect`

        Returns:
            The peer.

        Raises:
            ConnectionError, TimeoutError, BufferError, TypeError, ValueError: as for `connect`
        """
        attempt = self._attempt(to)
        limit = self.timeout if timeout is None else timeout
        name = f"axon-connect {self.name}"
        return await _connecting.in_thread(lambda pause: _connecting.keep_trying(attempt, limit, wait, pause), name)

    def _attempt(self, to: Target) -> Callable[[float], Peer]:
        target = _connecting.target_of(to)
        secret = b"" if isinstance(target, bytes) else self._known_secret()

        def attempt(limit: float) -> Peer:
            self._check_open()
            if isinstance(target, bytes):
                return self._peer_of(self._core.connect_address(target, limit))
            return self._peer_of(self._core.connect_host(*target, secret, limit))

        return attempt

    def _peer_of(self, connection: RuntimeConnection) -> Peer:
        """Returns the one Peer of a connection."""
        with self._lock:
            found = self._peers.get(connection)
            if found is not None:
                return found
            # While this Peer is made, a finalizer or signal handler on this thread may insert one, and that one stays.
            return self._peers.setdefault(connection, Peer(self, connection))

    def meet(self, group: dist.ProcessGroup | None = None) -> list[Peer]:
        """Connects to the runtimes of all ranks of a process group. This is a collective: all ranks call it.

        Ranks on several hosts must first call `listen` with an address that the others can reach.

        Args:
            group: the process group; by default the default group

        Returns:
            One peer per rank, in the order of the ranks, this process included.

        Raises:
            ConnectionError, TimeoutError, BufferError: a runtime cannot be reached, see `connect`
        """
        addresses: list[bytes] = [b""] * dist.get_world_size(group)
        dist.all_gather_object(addresses, self.address, group=group)
        return [self.connect(address) for address in addresses]

    def register(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        executor: Executor | None = None,
        memory: AnyMemory = None,
    ) -> Any:
        """Registers a function that peers can invoke; a decorator.

        Plain functions run one after the other on the runtime's thread, which is the fastest way for short functions.
        With an executor they run there. Coroutine functions run on the event loop that is running at registration, or
        else on a loop of the runtime. Generator functions, asynchronous or not, answer `Peer.iterate`. A decorated
        function counts as what it wraps. In the function, `current_call()` returns the call.

        Args:
            name: the name for peers, 1 to 255 bytes; by default the function's own name
            executor: an executor that runs functions in threads of this process
            memory: where tensors of the arguments arrive, see `Memory`

        Returns:
            The function itself, or a decorator that returns it.

        Raises:
            TypeError: the object is not callable or has no name, or the executor runs functions in other processes
            ValueError: the name is taken or not allowed, or a coroutine function is given an executor
            RuntimeClosedError: the runtime is closed
        """

        if name is not None and not isinstance(name, str) and not callable(name):
            raise TypeError(f"register: name is {name!r}; allowed: text, or a function")

        if callable(name):
            self._register(_kinds.name_of(name), name, executor, memory)
            return name

        def decorate(function: F) -> F:
            self._register(_kinds.name_of(function) if name is None else name, function, executor, memory)
            return function

        return decorate

    def _register(self, name: str, function: Callable[..., Any], executor: Executor | None, memory: AnyMemory) -> None:
        self._check_open()  # a closed one would never let go of the function
        kind = _kinds.kind_of(function)
        if name.startswith(OWN):
            raise ValueError(f"register: '{name}' begins with '{OWN}', which is reserved for the runtime")
        policy = policy_of(memory, read_arguments)
        if kind.is_async and executor is not None:
            raise ValueError(f"register: '{name}' is asynchronous and runs on a loop; allowed: no executor")
        if executor is not None:
            check_executor(name, executor)
        for parameter in _kinds.hidden_parameters(function, kind.may_iterate):
            warnings.warn(
                f"register: '{name}' has a parameter '{parameter}', which is also an option of calls; "
                f"callers must pass it by position, or as peer.options().invoke('{name}', {parameter}=…)",
                RuntimeWarning,
                stacklevel=3,
            )
        on_loop = self._on_loop() if kind.may_be_async else None
        iterate = opener(self._core, function, executor, on_loop) if kind.may_iterate else None
        call, is_dispatched = function, True
        if kind.is_generator and iterate is not None:
            call = iterate
        elif kind.is_coroutine and on_loop is not None:
            call = on_loop.function(function)
        elif executor is not None:
            call = InExecutor(function, executor)
        else:
            is_dispatched = False
        self._core.register(name, call, is_dispatched, *policy, iterate)
        if on_loop is not None:
            self._loops_by_name[name] = on_loop

    def _run_coroutine(self, invocation: RuntimeInvocation, coroutine: CoroutineType[Any, Any, Any]) -> None:
        """Runs a coroutine that a plain function returned. The extension calls this as well."""
        on_loop = self._loops_by_name.get(invocation.name) or self._on_loop()
        on_loop.function(lambda: coroutine)(invocation, (), {})

    def mailbox(self, tag: str, capacity: int = 64, *, memory: AnyMemory = None) -> Mailbox:
        """Creates the mailbox for a tag. It must exist before peers send to the tag.

        Args:
            tag: the tag to which peers send, unique in this runtime
            capacity: how many messages are accepted before they are taken; at least 1
            memory: where tensors of the messages arrive, see `Memory`

        Returns:
            The mailbox.

        Raises:
            ValueError: the tag is taken or too long, or `capacity` is less than 1
            TypeError: `memory` is neither a device nor a function nor a `Memory`
        """
        if capacity < 1:
            raise ValueError(f"mailbox: capacity is {capacity}; allowed: 1 or more")
        return Mailbox(self._core.mailbox(tag, capacity, *policy_of(memory, read_message)))

    def _on_loop(self) -> OnLoop:
        loop = asyncio._get_running_loop()
        with self._lock:
            if loop is None:
                if self._own_loop is None:
                    self._own_loop = LoopThread(f"axon-loop {self.name}")
                loop = self._own_loop.loop
            for each in [each for each in self._loops if each.is_closed()]:
                del self._loops[each]
            return self._loops.setdefault(loop, OnLoop(loop))

    def _on_cancelled(self, serial: int) -> None:
        for on_loop in list(self._loops.values()):
            on_loop.cancel(serial)

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _known_secret(self) -> bytes:
        secret = self._secret if self._secret is not None else self._core.known_secret()
        if not secret:
            raise ValueError(
                f"the runtime '{self.name}' has no secret for peers at (host, port): pass secret=… or set AXON_SECRET, "
                "or connect by the runtime's address, which contains a key of its own"
            )
        return secret.encode() if isinstance(secret, str) else secret

    def close(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Refuses new calls, waits for calls in flight in both directions, and closes the runtime.

        Calls that are still in flight after `timeout`, or without `drain` at once, fail here and at the peers. Closing
        again does nothing. An exception from a signal handler, such as KeyboardInterrupt, ends the wait and leaves the
        runtime closed.

        Args:
            drain: whether to wait for calls in flight
            timeout: seconds to wait for them; None: the runtime's timeout

        Returns:
            Whether no call was left in flight.
        """
        if self._pid != os.getpid():  # in a forked child, a thread that no longer exists may hold the lock
            return True
        with self._lock:
            if self._closed:
                return True
            self._closed = True
        self._on_notified()  # so that tasks that await a notification find it closed
        try:
            return self._core.await_idle(self.timeout if timeout is None else timeout) if drain else True
        finally:
            self._end()

    def _end(self) -> None:
        """Ends everything that belongs to the runtime. Ending again does nothing."""
        with ExitStack() as steps:  # in reverse order; every step runs even if another one is interrupted
            steps.callback(self._await_threads)
            steps.callback(self._on_notified)
            steps.callback(self._core.stop)
            steps.callback(self._core.close)

    def _await_threads(self) -> None:
        try:
            if not self._is_own_thread():
                self._thread.join(_LONGEST_END_S)
        finally:
            if not self._is_own_thread():
                self._core.end()
            if self._own_loop is not None:  # a last call may have created it
                self._own_loop.stop(_LONGEST_END_S)

    async def aclose(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Closes the runtime as `close` does, without blocking the event loop.

        Use this on a loop that runs coroutines of the runtime: there `close` would wait for its own loop.

        Args:
            drain: whether to wait for calls in flight
            timeout: seconds to wait for them; None: the runtime's timeout

        Returns:
            Whether no call was left in flight.
        """
        return await asyncio.to_thread(self.close, drain, timeout)

    def _check_open(self) -> None:
        if self._closed:
            raise _errors.RuntimeClosedError(f"the runtime '{self.name}' is closed")


def _expose(invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Notes that the peer can read tensors directly on these GPUs, given by their UUIDs."""
    (uuids,) = args
    invocation.connection.expose_on(uuids)
    invocation.reply(None)


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Wraps a method for what keeps the function, and must not keep the method's object alive."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        found = reference()
        if found is not None:
            found(*arguments)

    return call
