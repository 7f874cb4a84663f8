"""Windows: tensors of a group's ranks into which the other ranks put data, without a call of the owner.

    window = torch_axon.new_window(tensor)    # on all ranks
    window.put(data, 1)                       # into the tensor of rank 1
    window.signal(1)                          # tells rank 1 that all of this rank's puts are there
    window.wait_signal(0)                     # on rank 1; then it may read its tensor

From torch 2.14 on, `torch.distributed._new_window` and `ProcessGroup.new_window` return the same as a `c10d::Window`.
A window is a client of `torch_axon.Runtime`: it has one of its own, and connects to a rank when it first needs it.
"""

from __future__ import annotations

import pickle
import secrets
import struct
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from torch_axon import _native
from torch_axon.elastic import _backend_of, _resolve
from torch_axon.runtime import Runtime, RuntimeClosedError
from torch_axon.runtime._hosts import own_host
from torch_axon.runtime._reaching import connect_to_any, left_until, listen
from torch_axon.runtime._runtime import weakly

if TYPE_CHECKING:
    from torch import Tensor

    from torch_axon._C import AxonBackend, TransferWork
    from torch_axon.runtime import Peer, Region, Remote, Transfer

_SIGNAL = struct.Struct("<I")  # the tag of a signal: its sender's rank
_POLL_S = 0.5  # how often the thread that takes signals looks for deadlines and for the end of its window
_FAILURES = (ConnectionError, TimeoutError, BufferError, PermissionError)  # of the runtime; DistBackendErrors here
_POLL_OF_WAIT_S = 0.1  # how often a thread that waits for a signal sees that its rank is gone


def new_window(tensor: Tensor | None = None, group: dist.ProcessGroup | None = None) -> Window:
    """Makes a window of a group. This is a collective: all ranks call it, in the same order.

    Args:
        tensor: this rank's tensor, which is registered as by `Window.tensor_register`; None: that is called later
        group: a group of the backend axon; None means the default one

    Returns:
        The window.

    Raises:
        TypeError, ValueError: `tensor` cannot be registered, or the group has other backends
        torch.distributed.DistBackendError: the ranks could not tell each other their addresses
    """
    return Window(_backend_of(_resolve(group), "new_window"), tensor)


@dataclass(frozen=True)
class _Registered:
    """A rank's tensor, as the others see it."""

    handle: bytes
    shape: torch.Size
    dtype: torch.dtype


@dataclass(eq=False)
class _Waiter:
    rank: int
    deadline: float
    work: TransferWork
    has_ended: bool = False
    failure: str = ""


class Window:
    """Memory of all ranks into which each may put data. Thread-safe, but for collectives.

    Calls take effect in the order of the current stream, where their tensor is on a GPU, and return when the data are
    in the other tensor. With `async_op` they return at once, and the Work's wait() blocks the host. A CUDA graph cannot
    hold them.
    """

    def __init__(self, backend: AxonBackend, tensor: Tensor | None = None) -> None:
        self._backend = backend
        self._rank, self._size = backend.rank(), backend.size()
        offers = _gather(backend, (secrets.token_bytes(32), own_host()))
        self._runtime = Runtime(f"window of rank {self._rank}", secret=offers[0][0])
        is_one_host = len({host for _, host in offers}) == 1
        self._addresses = _gather(backend, listen(self._runtime, within_host=is_one_host))
        self._connecting = [threading.Lock() for _ in range(self._size)]  # each guards a rank's entries of these two
        self._peers: dict[int, Peer] = {}
        self._remotes: dict[int, Remote] = {}
        self._lock = threading.Lock()  # guards the members below; nothing blocks with it, and no code of others runs
        self._region: Region | None = None
        self._tensor: Tensor | None = None
        self._registered: list[_Registered] = []
        self._unsettled: defaultdict[int, list[Transfer]] = defaultdict(list)  # puts, until a signal has followed them
        self._signals: Counter[int] = Counter()  # that have arrived, by the sender's rank
        self._waiters: list[_Waiter] = []
        self._watched: set[int] = set()  # ranks whose end is noticed, or soon will be
        self._lost: dict[int, str] = {}
        self._runtime.on_peer_lost(weakly(self._on_peer_lost))
        threading.Thread(
            target=_listen, args=(self._runtime, weakref.ref(self)), name="axon-window", daemon=True
        ).start()
        if tensor is not None:
            self.tensor_register(tensor)

    def __del__(self) -> None:
        if not hasattr(self, "_runtime"):
            return
        self._runtime.close(drain=False)
        for waiter in getattr(self, "_waiters", []):
            waiter.work.complete(self._failure(f"wait for a signal of rank {waiter.rank}", "the window is gone"))

    # ---- Registering

    def tensor_register(self, tensor: Tensor, owning: bool = True) -> None:
        """Makes this rank's tensor the memory into which others put. A collective.

        Args:
            tensor: contiguous, on the CPU or a GPU; the ranks' sizes and types may differ. The window keeps its memory
                until `tensor_deregister`.
            owning: has no effect; it exists for the sake of c10d

        Raises:
            TypeError: `tensor` is no tensor
            ValueError: the window has a tensor, or this one cannot be exposed
            torch.distributed.DistBackendError: a rank is gone, or has not called this in time
        """
        del owning
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensor_register: tensor is of type {type(tensor).__name__}; allowed: torch.Tensor")
        if self._region is not None:
            raise ValueError("tensor_register: the window has a tensor; allowed: tensor_deregister() before")
        region = self._runtime.expose(tensor, "rw", name=f"the window of rank {self._rank}")
        own = _Registered(region.handle(), tensor.shape, tensor.dtype)
        with self._lock:
            self._region, self._tensor = region, tensor
        self._registered = _gather(self._backend, own)

    def tensor_deregister(self) -> None:
        """Ends the registration once all ranks have called this. Puts that are in flight then fail. A collective.

        Raises:
            ValueError: the window has no tensor
            torch.distributed.DistBackendError: a rank is gone, or has not called this in time
        """
        region = self._region
        if region is None:
            raise ValueError("tensor_deregister: the window has no tensor; allowed: after tensor_register()")
        cast("Any", self._backend).barrier().wait()
        if not region.close(self._limit(None)) and (holders := region.holders):
            text = f"{', '.join(holders)} can still touch the tensor"
            raise dist.DistBackendError(self._failure("tensor_deregister", text))
        self._remotes.clear()
        with self._lock:
            self._region = self._tensor = None
            self._registered = []

    def map_remote_tensor(self, rank: int) -> Tensor:
        """Returns the registered tensor of a rank of this host, in the memory of that rank.

        What one rank writes, the other one reads. `tensor_deregister` waits until such tensors are freed.

        Args:
            rank: the rank in the group: this one, or one whose tensor `Runtime.empty` has made

        Raises:
            ValueError: the window has no tensor, there is no such rank, or its tensor cannot be mapped
            torch.distributed.DistBackendError: the rank is gone
        """
        what = f"map_remote_tensor of rank {rank}"
        target = self._target(what, rank)
        if rank == self._rank and self._tensor is not None:
            return self._tensor
        try:
            _, remote = self._remote(rank, time.monotonic() + self._limit(None))
            return remote.tensor(target.dtype, target.shape)
        except ValueError as error:
            allowed = "tensors of Runtime.empty, of ranks of this host"
            raise ValueError(f"{what}: its tensor cannot be mapped ({error}); allowed: {allowed}") from error
        except _FAILURES as error:
            raise dist.DistBackendError(self._failure(what, error)) from error

    # ---- Calls

    def put(
        self,
        tensor: Tensor,
        dst_rank: int,
        target_offset_nelems: int = 0,
        async_op: bool = False,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Writes a tensor into that of another rank, or of this one. That rank makes no call.

        Args:
            tensor: contiguous, of the type of the other rank's tensor; unchanged until the put has ended
            dst_rank: the rank in the group
            target_offset_nelems: the first element there that is written
            async_op: returns before the data are there
            timeout: of this call; None: the group's timeout

        Returns:
            A Work that ends when the data are in the other tensor.

        Raises:
            TypeError, ValueError: an argument is not allowed, and nothing is written
            torch.distributed.DistBackendError: the put has failed, and may have written some of the data
        """
        what = f"put to rank {dst_rank}"
        target = self._target(what, dst_rank)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what}: tensor is of type {type(tensor).__name__}; allowed: torch.Tensor")
        if tensor.dtype != target.dtype:
            raise ValueError(f"{what}: tensor is of {tensor.dtype}; allowed: {target.dtype}, as the tensor there")
        end, most = target_offset_nelems + tensor.numel(), target.shape.numel()
        if not 0 <= target_offset_nelems <= end <= most:
            raise ValueError(
                f"{what}: elements {target_offset_nelems} to {end}; allowed: within the {most} elements there"
            )
        size = tensor.element_size()
        deadline = time.monotonic() + self._limit(timeout)

        def start() -> Transfer:
            peer, remote = self._remote(dst_rank, deadline)
            part = remote[target_offset_nelems * size : end * size]
            transfer = peer.write(part, tensor, timeout=left_until(deadline))
            with self._lock:
                unsettled = [put for put in self._unsettled[dst_rank] if not (put.done() and put.exception() is None)]
                self._unsettled[dst_rank] = [*unsettled, transfer]
            return transfer

        return self._perform(what, start, async_op)

    def signal(self, peer_rank: int, async_op: bool = False, timeout: timedelta | None = None) -> dist.Work:
        """Sends a signal to a rank, which arrives after all that this rank has put there before.

        Args:
            peer_rank: the rank in the group
            async_op: returns before the signal has arrived
            timeout: of this call; None: the group's timeout

        Returns:
            A Work that ends when the signal has arrived.

        Raises:
            ValueError: there is no such rank
            torch.distributed.DistBackendError: it has failed, or a put before it has, and the signal is not sent
        """
        self._check_rank("signal", peer_rank)
        what = f"signal to rank {peer_rank}"
        deadline = time.monotonic() + self._limit(timeout)
        with self._lock:
            puts = list(self._unsettled[peer_rank])

        def start() -> Transfer:
            failures = [failure for put in puts if (failure := put.exception()) is not None]
            with self._lock:  # a failure is reported by one signal
                self._unsettled[peer_rank] = [put for put in self._unsettled[peer_rank] if put not in puts]
            if failures:
                raise failures[0]
            return self._peer(peer_rank, deadline).notify(_SIGNAL.pack(self._rank), timeout=left_until(deadline))

        if not async_op or all(put.done() for put in puts):
            return self._perform(what, start, async_op)
        work = _new_work()
        thread = threading.Thread(target=self._follow, args=(what, start, work), name="axon-window", daemon=True)
        thread.start()
        return work

    def wait_signal(self, peer_rank: int, async_op: bool = False, timeout: timedelta | None = None) -> dist.Work:
        """Waits for a signal of a rank, and takes it: each call takes one, those that came earlier first.

        Args:
            peer_rank: the rank in the group
            async_op: returns at once
            timeout: of this call; None: the group's timeout

        Returns:
            A Work that ends when the signal has arrived.

        Raises:
            ValueError: there is no such rank
            torch.distributed.DistBackendError: the rank is gone, or sent no signal in time
        """
        self._check_rank("wait_signal", peer_rank)
        deadline = time.monotonic() + self._limit(timeout)
        waiter = _Waiter(peer_rank, deadline, _new_work())
        with self._lock:
            self._waiters.append(waiter)
            is_watched = peer_rank in self._watched
            self._watched.add(peer_rank)
        if not is_watched:
            threading.Thread(target=self._watch, args=(peer_rank, deadline), name="axon-window", daemon=True).start()
        self._take_signals()
        if async_op:
            return waiter.work
        try:
            while not waiter.has_ended:
                _native.load().await_notification(self._runtime._core, None, _POLL_OF_WAIT_S)
                self._take_signals()
        except BaseException:
            self._give_up(waiter)
            raise
        if waiter.failure:
            raise dist.DistBackendError(waiter.failure)
        return waiter.work

    # ---- Peers

    def _target(self, what: str, rank: int) -> _Registered:
        self._check_rank(what, rank)
        if not self._registered:
            raise ValueError(f"{what}: the window has no tensor; allowed: after tensor_register()")
        return self._registered[rank]

    def _check_rank(self, call: str, rank: int) -> None:
        if not isinstance(rank, int) or not 0 <= rank < self._size:
            raise ValueError(f"{call}: rank is {rank!r}; allowed: 0 to {self._size - 1}, its number in the group")

    def _limit(self, timeout: timedelta | None) -> float:
        limit = (self._backend.options._timeout if timeout is None else timeout).total_seconds()
        if limit <= 0:
            raise ValueError(f"window: timeout is {timeout}; allowed: more than 0")
        return limit

    def _peer(self, rank: int, deadline: float) -> Peer:
        with self._connecting[rank]:
            return self._connected(rank, deadline)

    def _connected(self, rank: int, deadline: float) -> Peer:
        peer = self._peers.get(rank)
        if peer is None:
            peer = self._peers[rank] = connect_to_any(self._runtime, self._addresses[rank], deadline)
        return peer

    def _remote(self, rank: int, deadline: float) -> tuple[Peer, Remote]:
        with self._connecting[rank]:
            peer = self._connected(rank, deadline)
            remote = self._remotes.get(rank)
            if remote is None:
                remote = self._remotes[rank] = peer.open(self._registered[rank].handle, left_until(deadline))
            return peer, remote

    def _watch(self, rank: int, deadline: float) -> None:
        """Connects to a rank, since its end is noticed over the connection. A signal of it may arrive before."""
        try:
            self._peer(rank, deadline)
        except RuntimeClosedError:
            return
        except ConnectionError as error:
            self._note_loss(rank, error)
        except (TimeoutError, BufferError):  # the wait ends by its deadline, and a later one tries again
            with self._lock:
                self._watched.discard(rank)

    # ---- Ends

    def _failure(self, what: str, error: BaseException | str) -> str:
        return f"[rank {self._rank}] {what}, of a window: {error}"

    def _perform(self, what: str, start: Callable[[], Transfer], async_op: bool) -> dist.Work:
        work = _new_work()
        try:
            transfer = start()
            if not async_op:
                transfer.result()
                work.complete("")
                return work
        except _FAILURES as error:
            raise dist.DistBackendError(self._failure(what, error)) from error
        transfer.add_done_callback(lambda done: self._complete(work, what, done.exception()))
        return work

    def _complete(self, work: TransferWork, what: str, error: BaseException | None) -> None:
        work.complete("" if error is None else self._failure(what, error))

    def _follow(self, what: str, start: Callable[[], Transfer], work: TransferWork) -> None:
        """Sends a signal after puts that have not ended, on a thread of its own."""
        try:
            start().result()
        except BaseException as error:
            work.complete(self._failure(what, error))
        else:
            work.complete("")

    # ---- Signals

    def _take_signals(self) -> bool:
        """Counts the signals that have arrived, and ends waits. Returns False once the runtime is closed."""
        is_open = True
        with self._lock:  # what is taken is counted before another thread finds that the sender is gone
            try:
                for _, tag in self._runtime.notifications():
                    self._signals[_SIGNAL.unpack(tag)[0]] += 1
            except RuntimeClosedError:
                is_open = False
            ended = self._take_ended()
        for waiter in ended:  # without the lock, since this calls functions that wait for the Work
            waiter.work.complete(waiter.failure)
            waiter.has_ended = True
        return is_open

    def _take_ended(self) -> list[_Waiter]:
        """Returns the waits that have their signal, and those that cannot get one any more. With the lock."""
        ended, left = [], []
        for waiter in self._waiters:
            if self._signals[waiter.rank] > 0:
                self._signals[waiter.rank] -= 1
            elif waiter.rank in self._lost:
                waiter.failure = self._lost[waiter.rank]
            elif time.monotonic() > waiter.deadline:
                waiter.failure = "no signal has arrived in time"
            else:
                left.append(waiter)
                continue
            if waiter.failure:
                waiter.failure = self._failure(f"wait for a signal of rank {waiter.rank}", waiter.failure)
            ended.append(waiter)
        self._waiters = left
        return ended

    def _give_up(self, waiter: _Waiter) -> None:
        """The wait was interrupted: it takes no signal, or gives back the one that it has taken."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.failure:
                self._signals[waiter.rank] += 1

    def _on_peer_lost(self, peer: Peer, error: Exception) -> None:
        self._note_loss(int(peer.name.rpartition(" ")[2]), error)

    def _note_loss(self, rank: int, error: Exception) -> None:
        with self._lock:
            self._lost[rank] = str(error)
        self._take_signals()


def _new_work() -> TransferWork:
    work: TransferWork = _native.load().TransferWork()
    return work


def _listen(runtime: Runtime, reference: weakref.ref[Window]) -> None:
    """Takes the signals of a window, on a thread that does not keep the window."""
    native = _native.load()
    while reference() is not None:
        try:
            native.await_notification(runtime._core, None, _POLL_S)
        except RuntimeClosedError:
            return
        window = reference()
        if window is not None and not window._take_signals():
            return
        del window


def _gather(backend: AxonBackend, own: Any) -> list[Any]:
    """Returns what each rank has given."""
    data = pickle.dumps(own)
    size = backend.size()
    all_gather = cast("Any", backend).allgather
    lengths = [torch.empty(1, dtype=torch.int64, device="cpu") for _ in range(size)]
    all_gather([lengths], [torch.tensor([len(data)], device="cpu")]).wait()
    longest = max(int(length) for length in lengths)
    padded = torch.tensor(list(data.ljust(longest, b"\0")), dtype=torch.uint8, device="cpu")
    texts = [torch.empty(longest, dtype=torch.uint8, device="cpu") for _ in range(size)]
    all_gather([texts], [padded]).wait()
    return [pickle.loads(bytes(text.tolist())) for text in texts]
