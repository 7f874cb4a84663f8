"""A process's end of calls with others."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import cache
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from torch_axon import _native
from torch_axon.runtime import _connecting, _errors, _kinds
from torch_axon.runtime._closable import Closable
from torch_axon.runtime._connecting import Target
from torch_axon.runtime._functions import InExecutor, LoopThread, OnLoop, check_executor
from torch_axon.runtime._generators import Generators
from torch_axon.runtime._mailboxes import PUT, SETTLED, Mailbox, Mailboxes
from torch_axon.runtime._memory import AnyMemory, policy_of, read_arguments, read_message
from torch_axon.runtime._names import EXPOSE, NEXT, OWN, STOP
from torch_axon.runtime._peer import Peer

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection, RuntimeInvocation

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# How long the runtime's thread looks for messages itself, after the last one, before it sleeps.
_PATIENCE_S = {"spin": 1e6, "adaptive": 0.004, "block": 0.0}
# How long threads of ours may take to end, of which one may be in a function.
_LONGEST_END_S = 2.0

_open: weakref.WeakSet[Runtime] = weakref.WeakSet()


class Runtime(Closable):
    """Registers functions, listens, connects. A context manager, also an asynchronous one; for any thread.

    name: what peers know it by
    timeout: seconds that a call may take, where it does not say otherwise
    progress: how its thread waits for messages: "spin" without end, "block" at once in the kernel, or "adaptive": for
        4 ms after the latest one, then in the kernel
    max_message_bytes: of all tensors of a message that comes
    max_waiting_calls: a connection; of ours, beyond the 1,023 that the peer has
    max_running_calls: of peers, that have not been answered: functions and coroutines that run or wait for their turn
    max_connections: in both directions
    secret: what peers who connect to (host, port) must know as well, 16 bytes at least; by default AXON_SECRET
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
        if progress not in _PATIENCE_S:
            raise ValueError(f"Runtime: progress is {progress!r}; allowed: {', '.join(_PATIENCE_S)}")
        if not timeout > 0:
            raise ValueError(f"Runtime: timeout is {timeout!r} s; allowed: more than 0")
        if secret is not None and not isinstance(secret, bytes | str):
            raise TypeError(f"Runtime: secret is of type {type(secret).__name__}; allowed: bytes, or text")
        self.name = name
        self.timeout = timeout
        self._secret = secret
        self._drives = _PATIENCE_S[progress] > 0  # where calls are awaited
        self._core = _native.load().RuntimeCore(
            name,
            weakref.ref(self),
            _weakly(self._on_cancelled),
            _weakly(self._on_lost),
            {
                "max_message_bytes": max_message_bytes,
                "max_waiting_calls": max_waiting_calls,
                "max_running_calls": max_running_calls,
                "max_connections": max_connections,
            },
        )
        self._generators = Generators()
        self._mailboxes = Mailboxes()
        for own, function in (
            (NEXT, self._generators.answer_next),
            (STOP, self._generators.stop),
            (SETTLED, self._mailboxes.settle),
            (EXPOSE, _expose),
        ):
            self._core.register(own, function, True, None, None, None)
        # One object for each connection, so that peers that are the same compare so.
        self._peers: weakref.WeakValueDictionary[RuntimeConnection, Peer] = weakref.WeakValueDictionary()
        self._loops: dict[asyncio.AbstractEventLoop, OnLoop] = {}
        self._own_loop: LoopThread | None = None
        self._loops_by_name: dict[str, OnLoop] = {}  # of functions that may decorate coroutines
        self._lock = threading.RLock()  # guards the loops, and who closes; finalizers and signal handlers may close
        self._closed = False
        self._pid = os.getpid()
        thread = threading.Thread(
            target=self._core.serve, args=(_PATIENCE_S[progress],), name=f"axon-runtime {name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the system starts no more threads
            self._core.close()
            raise
        self._thread = thread
        _open.add(self)
        _close_all_at_exit()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close(drain=False)

    def __repr__(self) -> str:
        return f"Runtime({self.name!r}{', closed' if self._closed else ''})"

    @property
    def incarnation(self) -> int:
        """A number that no other runtime has, of this name or any."""
        incarnation: int = self._core.incarnation
        return incarnation

    @property
    def address(self) -> bytes:
        """What `connect` takes at another process, and allows it to. Listens on this host, if it does not yet.

        It holds a key for this listener alone, from which the runtime's secret cannot be found. It stays the same while
        the secret, the host and the port do, over restarts as well; without a secret it ends with the runtime.
        """
        address: bytes = self._core.address()
        return address

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Lets peers connect who know the secret. Once a runtime.

        Args:
            host: a name or address of this host, through which peers reach it; "0.0.0.0" and "::" are all of them
            port: 0 for one that is free

        Returns:
            The port.

        Raises:
            UnknownHostError: the name of the host is not known
            ValueError: the runtime has no secret, the port is taken, or it listens already
        """
        host, port = _connecting.host_port_to_listen_at(host, port)
        listening: int = self._core.listen(host, port, self._known_secret())
        return listening

    def counts(self) -> dict[str, int]:
        """How many peers the listener has met, and has dropped for which reason. Empty while it does not listen."""
        counts: dict[str, int] = self._core.counts()
        return counts

    @property
    def num_connections(self) -> int:
        """Of both directions, that have not ended."""
        num_connections: int = self._core.num_connections()
        return num_connections

    def connect(self, to: Target, *, timeout: float | None = None, wait: float = 0.0) -> Peer:
        """Connects to a runtime, and blocks until that has answered: on a loop, use `aconnect`.

        Args:
            to: its address, or (host, port) or "host:port" of its `listen`, whose secret this runtime must have as well
            timeout: seconds that an attempt may take; by default the runtime's
            wait: seconds for which attempts begin while nobody answers there, as with a server that is about to start;
                0: one attempt. The last one may take `timeout` seconds more

        Raises:
            UnknownHostError: the name of the host is not known
            WrongSecretError: the secrets differ, or the address is of an earlier listener
            VersionMismatchError: another version of torch_axon runs there
            PeerLostError: the runtime there is closing
            ConnectionError: nobody listens there, or something else does. The classes above are kinds of this
            TimeoutError: it has not answered within `timeout`
            TypeError, ValueError: `to` is neither an address nor a place, or this runtime has no secret
        """
        limit = self.timeout if timeout is None else timeout
        return _connecting.keep_trying(self._attempt(to), limit, wait)

    async def aconnect(self, to: Target, *, timeout: float | None = None, wait: float = 0.0) -> Peer:
        """`connect`, which is awaited: other tasks of the loop go on meanwhile. Cancelling it gives up."""
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
        """The one object for it."""
        found = self._peers.get(connection)
        return self._peers.setdefault(connection, Peer(self, connection)) if found is None else found

    def meet(self, group: dist.ProcessGroup | None = None) -> list[Peer]:
        """The runtimes of a process group's ranks, in their order, this one among them. All ranks call it.

        Their listeners must be reachable: on several hosts, `listen` comes before.
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
        """A decorator: lets peers invoke the function, by its own name unless given another.

        Plain functions run on the runtime's thread, one after the other: the quickest way, for functions that are
        quick. With an executor they run there. Asynchronous functions run on the loop that is running where they are
        registered, or else on one of the runtime's own. Generator functions, of both kinds, answer `Peer.iterate`.
        Decorated ones are what they decorate. `memory` says where tensors arrive, see `Memory`.

        Within them `current_call()` tells for whom they run, and whether that is still wanted.

        Args:
            name: what peers call it by; by default its own name
            executor: one whose threads are this process's
            memory: where tensors of its arguments arrive, see `Memory`

        Raises:
            TypeError: it is not a function, or the executor runs functions elsewhere
            ValueError: the name is taken or not allowed, or a function that runs on a loop is given an executor
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
        kind = _kinds.kind_of(function)
        if name.startswith(OWN):
            raise ValueError(f"register: '{name}' begins with '{OWN}', as names of the runtime's own functions do")
        policy = policy_of(memory, read_arguments)
        if kind.is_async and executor is not None:
            raise ValueError(f"register: '{name}' is asynchronous, and runs on a loop, not in an executor")
        if executor is not None:
            check_executor(name, executor)
        for parameter in _kinds.hidden_parameters(function, kind.may_iterate):
            warnings.warn(
                f"register: '{name}' has a parameter '{parameter}', which calls take for an option of their own; "
                f"callers pass it by its position, or as peer.options().invoke('{name}', {parameter}=…)",
                RuntimeWarning,
                stacklevel=3,
            )
        on_loop = self._on_loop() if kind.may_be_async else None
        opener = self._generators.opener(function, executor, on_loop) if kind.may_iterate else None
        call, is_dispatched = function, True
        if kind.is_generator and opener is not None:
            call = opener
        elif kind.is_coroutine and on_loop is not None:
            call = on_loop.function(function)
        elif executor is not None:
            call = InExecutor(function, executor)
        else:
            is_dispatched = False
        self._core.register(name, call, is_dispatched, *policy, opener)
        if on_loop is not None:
            self._loops_by_name[name] = on_loop

    def _run_coroutine(self, invocation: RuntimeInvocation, coroutine: CoroutineType[Any, Any, Any]) -> None:
        """What a function has returned that is not known to make coroutines. Called by the extension as well."""
        on_loop = self._loops_by_name.get(invocation.name) or self._on_loop()
        on_loop.function(lambda: coroutine)(invocation, (), {})

    def mailbox(self, tag: str, capacity: int = 64, *, memory: AnyMemory = None) -> Mailbox:
        """Where messages arrive that peers send to this tag; once a tag. There before they send.

        `memory` says where their tensors arrive, see `Memory`.
        """
        mailbox = Mailbox(capacity)
        self._core.register(PUT + tag, mailbox.arrive, True, *policy_of(memory, read_message), None)
        self._mailboxes.add(tag, mailbox)
        return mailbox

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

    def _on_lost(self, connection: RuntimeConnection) -> None:
        self._generators.drop(connection)
        self._mailboxes.drop(connection)

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _known_secret(self) -> bytes:
        secret = self._secret if self._secret is not None else self._core.known_secret()
        if not secret:
            raise ValueError(
                f"the runtime '{self.name}' has no secret for peers at (host, port): give it one (secret=…) or set "
                "AXON_SECRET; or hand out its address, which holds one of its own"
            )
        return secret.encode() if isinstance(secret, str) else secret

    def close(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Takes no calls any more, and waits for those under way in both directions, for `timeout` seconds at most.

        What is left then, and without `drain` at once, ends with an error here and at the peers. Returns whether
        nothing was left. Closing again does nothing. An exception of a signal handler, as Ctrl-C raises, ends the
        waiting, and leaves the runtime closed.
        """
        if self._pid != os.getpid():  # a forked child: the lock may be held by a thread that it lacks
            return True
        with self._lock:
            if self._closed:
                return True
            self._closed = True
        try:
            return self._core.await_idle(self.timeout if timeout is None else timeout) if drain else True
        finally:
            self._end()

    def _end(self) -> None:
        """Again does nothing."""
        with ExitStack() as steps:  # from the last one on, each of them though another one is interrupted
            steps.callback(self._await_threads)
            steps.callback(self._core.stop)
            steps.callback(self._generators.close)
            steps.callback(self._mailboxes.close, _errors.RuntimeClosedError(f"the runtime '{self.name}' is closed"))
            steps.callback(self._core.close)

    def _await_threads(self) -> None:
        try:
            if not self._is_own_thread():
                self._thread.join(_LONGEST_END_S)
        finally:
            if not self._is_own_thread():
                self._core.end()
            if self._own_loop is not None:  # which a last call may have made
                self._own_loop.stop(_LONGEST_END_S)

    async def aclose(self, drain: bool = True, timeout: float | None = None) -> bool:
        """`close`, which is awaited. On a loop whose coroutines calls wait for, `close` would wait for itself."""
        return await asyncio.to_thread(self.close, drain, timeout)

    def _check_open(self) -> None:
        if self._closed:
            raise _errors.RuntimeClosedError(f"the runtime '{self.name}' is closed")


def _expose(invocation: RuntimeInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The peer reads what lies on these GPUs from now on: their UUIDs."""
    (uuids,) = args
    invocation.connection.expose_on(uuids)
    invocation.reply(None)


def _weakly(method: Callable[[T], None]) -> Callable[[T], None]:
    """The extension keeps it, and must not keep its runtime."""
    reference = weakref.WeakMethod(method)

    def call(news: T) -> None:
        found = reference()
        if found is not None:
            found(news)

    return call


@cache
def _close_all_at_exit() -> None:
    """Once the extension is loaded, so that its own handler comes after ours."""
    atexit.register(_close_all)


def _close_all() -> None:
    """Before the interpreter goes, whose lock their threads take. Whoever wants to drain does so before.

    Daemon threads that wait for something of a runtime do not hear of its end: they would go on while the interpreter
    is being taken down.
    """
    _native.load().note_end_of_runtimes()
    for runtime in list(_open):
        runtime._closed = True
        if runtime._pid == os.getpid():
            runtime._end()  # although a thread may be closing it, which stays where it waits
