"""The transport "axon" of `torch.distributed._transport`, which torch has since 2.15.

    from torch.distributed._transport import new_transport

    with new_transport("axon", "cpu") as transport:
        url = transport.bind()                       # to the peer, which does the same
        transport.connect(url_of_peer)
        memory = transport.register_memory(tensor)
        transport.write(memory.to_view(), remote)    # `remote` is the peer's memory.to_remote_buffer()

torch's `Transport` says what is promised. Each endpoint is a `torch_axon.Runtime` with one peer.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch.distributed import _transport as interface  # type: ignore[attr-defined]  # since torch 2.15

from torch_axon import _native
from torch_axon.runtime import Runtime
from torch_axon.runtime._reaching import connect_to_any, listen

if TYPE_CHECKING:
    from torch_axon._C import TransferWork
    from torch_axon.runtime import Peer, Region, Remote, Transfer

_MAGIC = b"axon transport 1"
_HANDLE_BYTES = 64
_LENGTH = struct.Struct("<H")
_MOST_OPEN = 4096  # descriptors of the peer's memory that are kept open
_TRANSFER_LIMIT_S = 24 * 3600.0  # of a transfer itself: timeouts bound only the caller's wait
_DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class AxonRemoteBuffer:
    """The peer's memory: the handle of a region."""

    handle: bytes

    def serialize(self) -> bytes:
        """Returns the bytes for `deserialize`. Any peer that has them can use the memory."""
        return _MAGIC + self.handle

    @classmethod
    def deserialize(cls, data: bytes) -> AxonRemoteBuffer:
        """Returns the buffer that was serialized.

        Raises:
            TypeError: `data` is not bytes
            ValueError: `data` is no such buffer
        """
        if type(data) is not bytes:
            raise TypeError(f"deserialize: data is of type {type(data).__name__}; allowed: bytes")
        if len(data) != len(_MAGIC) + _HANDLE_BYTES or not data.startswith(_MAGIC):
            raise ValueError(f"deserialize: {len(data)} bytes are not a remote buffer of this version")
        return cls(data[len(_MAGIC) :])


class AxonView:
    """A part of registered memory, in bytes."""

    def __init__(self, memory: AxonMemory, offset: int | None, length: int | None) -> None:
        begin = 0 if offset is None else offset
        whole = memory.tensor.nbytes
        end = whole if length is None else begin + length
        if not 0 <= begin <= end <= whole:
            raise ValueError(f"view: bytes {begin} to {end}; allowed: within the {whole} bytes of the memory")
        self.memory = memory
        self.bytes = memory.tensor.view(-1).view(torch.uint8)[begin:end] if whole else memory.tensor

    def size(self) -> int:
        """Returns the number of bytes."""
        return self.bytes.nbytes


class AxonMutableView(AxonView):
    """A part of registered memory that transfers may write to."""

    @property
    def writable(self) -> Literal[True]:
        """Always True: transfers may write to it."""
        return True


class AxonMemory:
    """A registered tensor."""

    def __init__(self, transport: AxonTransport, tensor: torch.Tensor, region: Region) -> None:
        self.transport = transport
        self.tensor = tensor
        self.region = region
        self.is_registered = True

    def to_view(self, offset: int | None = None, length: int | None = None) -> AxonView:
        """Returns bytes `offset` to `offset` + `length` for transfers that read them; by default all."""
        return AxonView(self, offset, length)

    def to_mutable_view(self, offset: int | None = None, length: int | None = None) -> AxonMutableView:
        """Returns bytes `offset` to `offset` + `length` for transfers that write to them; by default all."""
        return AxonMutableView(self, offset, length)

    def to_remote_buffer(self, *, timeout: float | None = None) -> AxonRemoteBuffer:
        """Returns what the peer needs to read and write this memory."""
        interface._work._validate_timeout(timeout)
        self.transport._check_memory(self)
        return AxonRemoteBuffer(self.region.handle())


class AxonTransport(interface.Transport):  # type: ignore[misc]
    """An endpoint with one peer. Thread-safe."""

    def __init__(self, device: torch.device | str | None = None, *, timeout: float = _DEFAULT_TIMEOUT_S) -> None:
        """Makes an endpoint.

        Args:
            device: the only device of its tensors; None: any
            timeout: seconds that calls wait which name no timeout

        Raises:
            ValueError: `timeout` is not a finite number of seconds, at least 0
        """
        super().__init__(device)
        interface._work._validate_timeout(timeout)
        self._default_timeout = timeout
        self._runtime = Runtime("torch transport", secret=secrets.token_bytes(32))
        self._connecting = threading.RLock()  # guards these three
        self._url: bytes | None = None
        self._peer: Peer | None = None
        self._remotes: dict[bytes, Remote] = {}
        self._lock = threading.Lock()  # guards the members below; nothing blocks with it
        self._pending: set[Transfer] = set()
        self._is_closed = False

    @staticmethod
    def supported() -> bool:
        """Returns whether the extension fits this torch."""
        return _native.mismatch() is None

    def bind(self, *, timeout: float | None = None) -> bytes:
        """Listens on all IPv4 addresses of this host.

        Returns:
            The URL for the peer's `connect`. Any process that has it can connect.
        """
        interface._work._validate_timeout(timeout)
        self._check_open()
        with self._connecting:
            if self._url is None:
                addresses = listen(self._runtime)
                self._url = _MAGIC + b"".join(_LENGTH.pack(len(each)) + each for each in addresses)
            return self._url

    def connect(self, peer_url: bytes, *, timeout: float | None = None) -> int:
        """Connects to a bound peer, and returns 0.

        Raises:
            ValueError: `peer_url` is no URL of this transport, or this endpoint has a peer
            ConnectionError, TimeoutError: the peer cannot be reached
        """
        self._check_open()
        addresses = _addresses_in(bytes(peer_url))
        with self._connecting:
            if self._peer is not None:
                raise ValueError("connect: the endpoint has a peer; allowed: one connect()")
            self._peer = connect_to_any(self._runtime, addresses, time.monotonic() + self._limit(timeout))
        return 0

    def connected(self) -> bool:
        """Returns whether there is a peer whose connection has not ended."""
        peer = self._peer
        return not self._is_closed and peer is not None and peer._connection.failure() is None

    def register_memory(self, tensor: torch.Tensor, *, timeout: float | None = None) -> AxonMemory:
        """Exposes a contiguous tensor to the peer.

        Raises:
            ValueError: the tensor is not contiguous, or on another device than that of this endpoint
        """
        interface._work._validate_timeout(timeout)
        self._check_open()
        self._check_device(tensor.device)
        return AxonMemory(self, tensor, self._runtime.expose(tensor, "rw"))

    def unregister_memory(self, memory: AxonMemory, *, timeout: float | None = None) -> None:
        """Denies further access to the memory, and waits until the peer cannot touch it.

        Raises:
            ValueError: the memory is that of another endpoint
            TimeoutError: the peer can still touch it. The memory is kept until it cannot.
        """
        self._check_open()
        if not isinstance(memory, AxonMemory):
            raise TypeError(f"unregister_memory: memory is of type {type(memory).__name__}; allowed: AxonMemory")
        if memory.transport is not self:
            raise ValueError("unregister_memory: the memory was registered with another endpoint")
        memory.is_registered = False
        if not memory.region.close(self._limit(timeout)):
            raise TimeoutError(f"unregister_memory: {', '.join(memory.region.holders)} can still touch the memory")

    def write(
        self,
        local_buffer: AxonView,
        remote_buffer: AxonRemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | TransferWork:
        """Writes a view to the beginning of the peer's memory. See torch's `Transport`."""
        return self._transfer("write", local_buffer, remote_buffer, async_op, timeout)

    def read(
        self,
        local_buffer: AxonMutableView,
        remote_buffer: AxonRemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | TransferWork:
        """Fills a view from the beginning of the peer's memory. See torch's `Transport`."""
        return self._transfer("read", local_buffer, remote_buffer, async_op, timeout)

    async def write_async(self, local_buffer: Any, remote_buffer: Any, *, timeout: float | None = None) -> None:
        """See torch's `Transport`."""
        await self._open_first(local_buffer, remote_buffer, False, timeout)
        await super().write_async(local_buffer, remote_buffer, timeout=timeout)

    async def read_async(self, local_buffer: Any, remote_buffer: Any, *, timeout: float | None = None) -> None:
        """See torch's `Transport`."""
        await self._open_first(local_buffer, remote_buffer, True, timeout)
        await super().read_async(local_buffer, remote_buffer, timeout=timeout)

    def write_stream(self, *_arguments: Any, **_options: Any) -> None:
        """Is not offered: torch's version waits for itself on the default stream.

        Raises:
            NotImplementedError: always
        """
        raise NotImplementedError("write_stream: the transport axon has no transfers in stream order; allowed: write()")

    def read_stream(self, *_arguments: Any, **_options: Any) -> None:
        """Is not offered, as `write_stream`.

        Raises:
            NotImplementedError: always
        """
        raise NotImplementedError("read_stream: the transport axon has no transfers in stream order; allowed: read()")

    def close(self, *, timeout: float | None = None) -> None:
        """Waits for the transfers that are under way, and closes the connection. Closing again does nothing.

        Raises:
            TimeoutError: transfers are still under way. Close again once they have ended.
        """
        with self._lock:
            self._is_closed = True
            pending = list(self._pending)
        deadline = time.monotonic() + self._limit(timeout)
        for transfer in pending:
            if not transfer._call.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"close: {len(self._pending)} transfers are under way; allowed: to close again")
        self._runtime.close(drain=False)

    async def close_async(self, *, timeout: float | None = None) -> None:
        """Closes as `close` does, without blocking the event loop."""
        await asyncio.to_thread(partial(self.close, timeout=timeout))

    # ---- Transfers

    def _check_transfer(self, local_buffer: Any, remote_buffer: Any, *, mutable: bool) -> None:
        self._check_open()
        kind = AxonMutableView if mutable else AxonView
        if not isinstance(local_buffer, kind):
            raise TypeError(f"local_buffer is of type {type(local_buffer).__name__}; allowed: {kind.__name__}")
        if not isinstance(remote_buffer, AxonRemoteBuffer):
            raise TypeError(f"remote_buffer is of type {type(remote_buffer).__name__}; allowed: AxonRemoteBuffer")
        self._check_memory(local_buffer.memory)

    def _transfer(
        self, verb: str, view: AxonView, remote_buffer: AxonRemoteBuffer, async_op: bool, timeout: float | None
    ) -> int | TransferWork:
        self._check_transfer(view, remote_buffer, mutable=verb == "read")
        limit = self._limit(timeout)
        deadline = time.monotonic() + limit
        peer, remote = self._remote(remote_buffer, limit)
        if view.size() > remote.nbytes:
            raise ValueError(
                f"{verb}: the view has {view.size()} bytes; allowed: the {remote.nbytes} bytes of the peer's"
            )
        post = peer.write if verb == "write" else peer.read
        transfer = post(remote[: view.size()], view.bytes, timeout=_TRANSFER_LIMIT_S)
        with self._lock:
            self._pending.add(transfer)
        work = cast("TransferWork", _native.load().TransferWork(timedelta(seconds=max(limit, 0.001))))
        transfer.add_done_callback(partial(self._complete, work))
        if async_op:
            return work
        transfer.result(max(0.0, deadline - time.monotonic()))
        return 0

    def _complete(self, work: TransferWork, transfer: Any) -> None:
        with self._lock:
            self._pending.discard(transfer)
        error = transfer.exception()
        work.complete("" if error is None else str(error) or repr(error))

    def _remote(self, buffer: AxonRemoteBuffer, limit: float) -> tuple[Peer, Remote]:
        with self._connecting:
            peer = self._connected_peer()
            remote = self._remotes.get(buffer.handle)
            return peer, self._keep(buffer, peer.open(buffer.handle, limit) if remote is None else remote)

    async def _open_first(self, view: Any, buffer: Any, mutable: bool, timeout: float | None) -> None:
        """Opens the peer's memory without blocking the event loop."""
        self._check_transfer(view, buffer, mutable=mutable)
        if buffer.handle not in self._remotes:
            remote = await self._connected_peer().aopen(buffer.handle, self._limit(timeout))
            self._keep(buffer, remote)

    def _connected_peer(self) -> Peer:
        if self._peer is None:
            raise RuntimeError("the endpoint has no peer; allowed: connect() before")
        return self._peer

    def _keep(self, buffer: AxonRemoteBuffer, remote: Remote) -> Remote:
        """Those that have been used last are kept."""
        with self._lock:
            self._remotes.pop(buffer.handle, None)
            self._remotes[buffer.handle] = remote
            if len(self._remotes) > _MOST_OPEN:
                del self._remotes[next(iter(self._remotes))]
        return remote

    # ---- Checks

    def _limit(self, timeout: float | None) -> float:
        interface._work._validate_timeout(timeout)
        return self._default_timeout if timeout is None else timeout

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the transport is closed")

    def _check_memory(self, memory: AxonMemory) -> None:
        if memory.transport is not self:
            raise ValueError("the memory was registered with another endpoint")
        if not memory.is_registered:
            raise ValueError("the memory is not registered any more; allowed: register_memory() again")


def _addresses_in(url: bytes) -> list[bytes]:
    addresses: list[bytes] = []
    rest = url.removeprefix(_MAGIC)
    is_sound = len(rest) < len(url)
    while is_sound and rest:
        length = _LENGTH.unpack_from(rest)[0] if len(rest) >= _LENGTH.size else 0
        address, rest = rest[_LENGTH.size : _LENGTH.size + length], rest[_LENGTH.size + length :]
        is_sound = 0 < length == len(address)
        addresses.append(address)
    if not is_sound or not addresses:
        raise ValueError(
            f"connect: these {len(url)} bytes are no URL of an endpoint; allowed: what bind() returned there"
        )
    return addresses
