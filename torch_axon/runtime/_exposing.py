"""The methods of a runtime that expose memory, and take the notifications of peers."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from torch_axon import _native
from torch_axon.runtime import _one_sided, _wakeups
from torch_axon.runtime._one_sided import Region

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection, RuntimeCore
    from torch_axon.runtime._peer import Peer
    from torch_axon.runtime._runtime import Runtime


class Exposing(ABC):
    """What a runtime does for the one-sided transfers of its peers. `Runtime` sets the attributes."""

    _core: RuntimeCore
    _lock: threading.RLock
    _awaiting_notifications: list[Callable[[], None]]
    timeout: float

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _peer_of(self, connection: RuntimeConnection) -> Peer: ...

    @staticmethod
    def empty(
        *size: int | Sequence[int],
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
    ) -> torch.Tensor:
        """Allocates a tensor that peers of this host map when they open a region of it.

        They read and write it by plain copies then, without this process and without system calls: `Remote.path` is
        "shared memory". The memory begins as zeros, and is freed with its last tensor, region and mapping. A region
        is mappable if it lies within one such tensor, and at most 511 regions of one at a time are. Forked children
        share the memory with this process.

        Args:
            size: the shape, as for `torch.empty`: numbers, or one sequence of them
            dtype: the type of the elements; None: torch's default
            device: "cpu", or the GPU: "cuda:0"; None: "cpu". On a GPU the tensor is that of `torch.empty`: peers of
                this host map such memory in any case.

        Returns:
            A contiguous tensor, whose storage cannot be resized.

        Raises:
            TypeError, RuntimeError: as for `torch.empty`; RuntimeError, too, if there is no memory left
            ValueError: `device` is neither the CPU nor a GPU
        """
        return _one_sided.empty(size, dtype, device)

    def expose(
        self,
        memory: _one_sided.LocalMemory | Sequence[_one_sided.LocalMemory],
        access: str = "r",
        name: str | None = None,
    ) -> Region:
        """Exposes memory, so that peers with a handle can read or write it without a function of this process.

        The region keeps the memory until it is closed and no peer can touch it any more, even if nothing else refers to
        it. Each call makes a region of its own: regions may overlap, and are closed one by one. Do not resize the
        storage of an exposed tensor. For a tensor on CUDA, this waits for the work of the current stream.

        Args:
            memory: a contiguous tensor on the CPU or on CUDA, a NumPy array, or another object with the buffer
                protocol. A list or tuple of up to 2,048 of these, on one device, is one region, whose bytes are
                numbered one after the other.
            access: "r", "w" or "rw": what peers may do
            name: the name of the region in errors, up to 255 bytes of UTF-8

        Returns:
            The region. Pass its `handle()` to the peers.

        Raises:
            TypeError: an object has no memory of its own
            ValueError: `access` is unknown, the memory is not contiguous, on several devices or read-only, or `name`
                is too long
            RuntimeClosedError: the runtime is closed
            RuntimeError: the current stream is captured into a CUDA graph, or the GPU fails
        """
        self._check_open()
        return _one_sided.expose(cast("Runtime", self), memory, access, name)

    def expose_pointer(
        self,
        ptr: int,
        nbytes: int,
        device: str | torch.device = "cpu",
        *,
        access: str = "r",
        name: str | None = None,
        keepalive: object = None,
    ) -> Region:
        """Exposes memory at an address, as `expose` does.

        Args:
            ptr: the address. The memory must stay valid until `Region.close` returns True, or until `keepalive` is
                released.
            nbytes: its number of bytes
            device: "cpu", or the GPU: "cuda:0"
            access: as for `expose`
            name: as for `expose`
            keepalive: an object that the region keeps until no peer can touch the memory any more

        Returns:
            The region.

        Raises:
            TypeError: `ptr` or `nbytes` is not an int
            ValueError: an argument is out of range, or `device` is neither the CPU nor a GPU
            RuntimeClosedError: the runtime is closed
            RuntimeError: as for `expose`
        """
        self._check_open()
        return _one_sided.expose_pointer(cast("Runtime", self), (ptr, nbytes), device, access, name, keepalive)

    def notifications(self, peer: Peer | None = None, *, timeout: float = 0.0) -> list[tuple[Peer, bytes]]:
        """Takes the notifications that peers have sent, in the order of their arrival.

        At most 65,536 notifications, or 256 MiB of tags, wait for this; further ones fail at the peers. A peer that
        connects again is another peer.

        Args:
            peer: takes those of this peer only; None: all
            timeout: seconds to wait for the first one; 0: does not wait. The wait ends when the runtime is closed.

        Returns:
            Pairs of the peer and the tag, the earliest first; an empty list if none has arrived within `timeout`.

        Raises:
            ValueError: `timeout` is negative
            RuntimeClosedError: the runtime is closed, and no such notification is left
        """
        if not timeout >= 0:
            raise ValueError(f"notifications: timeout is {timeout}; allowed: 0 or more")
        native = _native.load()
        connection = None if peer is None else peer._connection
        deadline = time.monotonic() + timeout
        while not (taken := native.take_notifications(self._core, connection)):
            self._check_open()
            left = deadline - time.monotonic()
            if left <= 0:
                break
            native.await_notification(self._core, connection, left)  # another thread may take what has arrived
        return [(self._peer_of(connection), tag) for connection, tag in taken]

    async def notification(self) -> tuple[Peer, bytes]:
        """Takes the earliest notification, and waits for one if there is none, without blocking the event loop.

        If several tasks wait, each notification is returned to one of them. A task that is cancelled takes none. The
        runtime's thread tells the loop, after the function that it is running.

        Returns:
            The peer and the tag.

        Raises:
            RuntimeClosedError: the runtime is closed, and no notification is left
        """
        native = _native.load()
        while True:
            for connection, tag in native.take_first_notification(self._core):
                return self._peer_of(connection), tag
            loop = asyncio.get_running_loop()
            arrived = loop.create_future()
            wake = partial(_wakeups.tell, loop, arrived)
            with self._lock:
                self._check_open()
                self._awaiting_notifications.append(wake)
            try:
                if native.watch_notifications(self._core):
                    await arrived
            finally:
                with self._lock, suppress(ValueError):  # it is not there any more if it was called
                    self._awaiting_notifications.remove(wake)

    def _on_notified(self) -> None:
        with self._lock:
            awaiting, self._awaiting_notifications = self._awaiting_notifications, []
        for wake in awaiting:
            wake()
