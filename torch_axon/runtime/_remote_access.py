"""The methods of a peer that read and write memory that it exposes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from torch_axon import _native
from torch_axon.runtime import _one_sided
from torch_axon.runtime._one_sided import Remote, Transfer
from torch_axon.runtime._plans import Blocks, BlockTable, Plan, make_plan

if TYPE_CHECKING:
    from torch_axon._C import RuntimeConnection
    from torch_axon.runtime._peer import Peer

_READ, _WRITE = "read", "write"


class RemoteAccess:
    """One-sided transfers with a peer. `Peer` sets the attributes."""

    _connection: RuntimeConnection
    _timeout: float

    def open(self, handle: bytes, timeout: float | None = None) -> Remote:
        """Opens memory that the peer exposes, and blocks until the peer answers. On an event loop, use `aopen`.

        Args:
            handle: the 64 bytes that `Region.handle` returned at the peer
            timeout: seconds until it fails; None: the runtime's timeout

        Returns:
            The remote memory, for `read` and `write` of this peer.

        Raises:
            TypeError: `handle` is not bytes
            ValueError: these bytes are no handle
            AccessDenied: the handle is forged, of another runtime or for another peer, or its region is closed
            TimeoutError: no answer within `timeout`
            PeerLostError: the peer's process or the connection ended
            RuntimeClosedError: this process has closed its runtime or the peer
            BufferError: 65,536 handles are open on this connection
        """
        opening = self._opening(handle, timeout)
        opening.result()
        return _one_sided.remote_of(opening, _native.load().current_gpu())

    def open_all(self, handles: Sequence[bytes], timeout: float | None = None) -> list[Remote]:
        """Opens several handles as `open` does, all at the same time.

        Args:
            handles: what `Region.handle` returned at the peer
            timeout: as for `open`

        Returns:
            The remote memories, in the same order.

        Raises:
            TypeError, ValueError, AccessDenied, TimeoutError, ConnectionError, BufferError: as for `open`, for the
                first handle that cannot be opened
        """
        openings = [self._opening(handle, timeout) for handle in handles]
        for opening in openings:
            opening.result()
        gpu = _native.load().current_gpu()
        return [_one_sided.remote_of(opening, gpu) for opening in openings]

    async def aopen(self, handle: bytes, timeout: float | None = None) -> Remote:
        """Opens memory as `open` does, without blocking the event loop.

        Args:
            handle: as for `open`
            timeout: as for `open`

        Returns:
            The remote memory.

        Raises:
            TypeError, ValueError, AccessDenied, TimeoutError, ConnectionError, BufferError: as for `open`
        """
        opening = self._opening(handle, timeout)
        await opening
        gpu = _native.load().current_gpu()
        return await asyncio.to_thread(_one_sided.remote_of, opening, gpu)  # mapping takes milliseconds

    def _opening(self, handle: bytes, timeout: float | None) -> Transfer:
        if not isinstance(handle, bytes | bytearray | memoryview):
            raise TypeError(f"open: handle is of type {type(handle).__name__}; allowed: bytes, see Region.handle")
        limit = self._timeout if timeout is None else timeout
        return Transfer(cast("Peer", self), _native.load().open_handle(self._connection, bytes(handle), limit))

    def read(
        self,
        remote: Remote,
        into: _one_sided.LocalMemory,
        *,
        notify: bytes | None = None,
        timeout: float | None = None,
        stream: torch.cuda.Stream | None = None,
        compress: str | torch.dtype = "auto",
    ) -> Transfer:
        """Reads memory of the peer. No Python code of the peer takes part.

        Args:
            remote: what to read, see `open`; any number of bytes, also of a slice
            into: contiguous memory of as many bytes, of any shape and type: a tensor on the CPU or on CUDA, a NumPy
                array, or another object with the buffer protocol. Do not use it until the transfer is done.
            notify: a tag of up to 65,536 bytes that the peer receives once the data are here
            timeout: seconds until the transfer fails; None: the runtime's timeout
            stream: for local memory on CUDA: the transfer begins after the work that this stream holds now; None: the
                current stream. It must not be captured into a CUDA graph.
            compress: "auto": a slow link between hosts compresses tensors of bfloat16, or of float32, without loss, if
                `AXON_COMPRESS` lets it. A type: the bytes are of this type, whatever that of the local memory. "never":
                no link compresses.

        Returns:
            The transfer. It is done when all bytes are in `into`, and raises the errors that `Transfer` lists.

        Raises:
            TypeError: `into` is no memory, `remote` no Remote, or `compress` neither a str nor a type
            ValueError: the sizes differ, `into` cannot be written or is not contiguous, or `notify` is too long. Or
                `remote` was opened with another peer, `stream` is of another GPU, or `compress` has another value.
            RuntimeError: `stream` is captured into a CUDA graph, or the GPU fails
        """
        options = self._options(notify, timeout, stream, compress)
        return _one_sided.post_block(cast("Peer", self), _READ, _native.load().read_block, remote, into, options)

    def write(
        self,
        remote: Remote,
        source: _one_sided.LocalMemory,
        *,
        notify: bytes | None = None,
        timeout: float | None = None,
        stream: torch.cuda.Stream | None = None,
        compress: str | torch.dtype = "auto",
    ) -> Transfer:
        """Writes memory of the peer. No Python code of the peer takes part.

        A transfer that fails may have written some of the bytes.

        Args:
            remote: what to write
            source: contiguous memory of as many bytes, which must not change until the transfer is done
            notify: a tag of up to 65,536 bytes that the peer receives after the data, and not if they failed
            timeout: as for `read`
            stream: as for `read`
            compress: as for `read`

        Returns:
            The transfer. It is done when all bytes are in the memory of the peer.

        Raises:
            TypeError, ValueError, RuntimeError: as for `read`
        """
        options = self._options(notify, timeout, stream, compress)
        return _one_sided.post_block(cast("Peer", self), _WRITE, _native.load().write_block, remote, source, options)

    def readv(
        self,
        remotes: Sequence[Remote],
        into: Sequence[_one_sided.LocalMemory],
        *,
        notify: bytes | None = None,
        timeout: float | None = None,
        stream: torch.cuda.Stream | None = None,
        compress: str | torch.dtype = "auto",
    ) -> Transfer:
        """Reads several blocks as one transfer. Nothing is read if an argument is refused.

        Args:
            remotes: what to read
            into: as many blocks of memory, see `read`; on the CPU and on GPUs, as you like
            notify: as for `read`
            timeout: as for `read`
            stream: as for `read`
            compress: as for `read`

        Returns:
            The transfer of all blocks. If it fails, some of them may have been read.

        Raises:
            TypeError, ValueError, RuntimeError: as for `read`; or the numbers of blocks differ
        """
        options = self._options(notify, timeout, stream, compress)
        return _one_sided.post(cast("Peer", self), _READ, remotes, into, options)

    def writev(
        self,
        remotes: Sequence[Remote],
        sources: Sequence[_one_sided.LocalMemory],
        *,
        notify: bytes | None = None,
        timeout: float | None = None,
        stream: torch.cuda.Stream | None = None,
        compress: str | torch.dtype = "auto",
    ) -> Transfer:
        """Writes several blocks as one transfer. Nothing is written if an argument is refused.

        Args:
            remotes: what to write; blocks that overlap are written in any order
            sources: as many blocks of memory, see `write`; on the CPU and on GPUs, as you like
            notify: as for `write`
            timeout: as for `read`
            stream: as for `read`
            compress: as for `read`

        Returns:
            The transfer of all blocks. If it fails, some of them may have been written.

        Raises:
            TypeError, ValueError, RuntimeError: as for `read`; or the numbers of blocks differ
        """
        options = self._options(notify, timeout, stream, compress)
        return _one_sided.post(cast("Peer", self), _WRITE, remotes, sources, options)

    def _options(
        self, notify: bytes | None, timeout: float | None, stream: torch.cuda.Stream | None, compress: str | torch.dtype
    ) -> _one_sided.Options:
        return _one_sided.options_of(notify, self._timeout if timeout is None else timeout, stream, compress)

    def plan(self, verb: str, local: Blocks | BlockTable, remote: Blocks | BlockTable) -> Plan:
        """Prepares transfers of many blocks, which are then named by their numbers.

        Args:
            verb: "read" or "write"
            local: blocks of local memory, see `read` and `write`, or of Regions of this runtime. The plan keeps this
                memory, except for that of Regions, which only its transfers keep.
            remote: blocks of Remotes that this peer has opened. Those of a pair have equal lengths.

        Returns:
            The plan. `Plan.post` starts a transfer.

        Raises:
            TypeError: a memory or a table has a wrong type
            ValueError: `verb` is unknown, or a Region is that of another runtime. Or a block exceeds its memory or
                crosses the end of a part of it, blocks of a layout overlap, or their lengths differ.
        """
        return make_plan(cast("Peer", self), verb, local, remote)

    def notify(self, tag: bytes, *, timeout: float | None = None) -> Transfer:
        """Sends the peer a notification, which waits there until `Runtime.notifications` takes it.

        Args:
            tag: up to 65,536 bytes
            timeout: seconds until it fails; None: the runtime's timeout

        Returns:
            A transfer that is done when the notification is in the peer's queue. It raises BufferError if 65,536 wait
            there already.

        Raises:
            TypeError: `tag` is not bytes
            ValueError: `tag` is too long
        """
        limit = self._timeout if timeout is None else timeout
        checked = _one_sided.tag_of(tag) or b""
        return Transfer(cast("Peer", self), _native.load().post_notification(self._connection, checked, limit))
