"""Comms: channels whose messages are Python objects, which `distributed` serialises into frames."""

from __future__ import annotations

import weakref
from typing import Any

from distributed.comm.core import Comm, CommClosedError
from distributed.comm.utils import from_frames, to_frames
from distributed.utils import nbytes

from torch_axon.dask._channel import Channel

# distributed cuts frames at this size. Channels have no need for it, and whole frames need not be merged.
_LONGEST_FRAME_BYTES = 1 << 62


class AxonComm(Comm):
    """A comm over a channel. One task reads and one task writes at a time, as with other comms of `distributed`.

    Args:
        channel: carries the messages
        local_address: the address of this end
        peer_address: the address of the other end
        deserialize: whether `read` returns objects; otherwise it leaves what is serialised as it is
    """

    def __init__(self, channel: Channel, local_address: str, peer_address: str, deserialize: bool = True) -> None:
        self._channel = channel
        self._local_addr = local_address  # `distributed` reads these two
        self._peer_addr = peer_address
        super().__init__(deserialize)
        finalizer = weakref.finalize(self, channel.abandon, repr(self))
        finalizer.atexit = False

    @property
    def local_address(self) -> str:
        """The address of this end."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """The address of the other end."""
        return self._peer_addr

    async def read(self, deserializers: Any = None) -> Any:
        """Returns the next message. See `Comm.read`.

        Raises:
            CommClosedError: the comm was closed by either side, or its peer was lost
        """
        try:
            frames = await self._channel.receive()
        except CommClosedError as error:
            raise CommClosedError(f"in {self}: {error}") from error
        return await from_frames(
            frames, deserialize=self.deserialize, deserializers=deserializers, allow_offload=self.allow_offload
        )

    async def write(self, msg: Any, serializers: Any = None, on_error: str | None = "message") -> int:
        """Sends a message, and returns its bytes once its frames may be reused. See `Comm.write`.

        Raises:
            CommClosedError: the comm was closed by either side, or its peer was lost
        """
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options},
            frame_split_size=None if self.handshake_options.get("compression") else _LONGEST_FRAME_BYTES,
        )
        try:
            await self._channel.send(frames)
        except CommClosedError as error:
            raise CommClosedError(f"in {self}: {error}") from error
        return sum(map(nbytes, frames))

    async def close(self) -> None:
        """Closes the comm once the message that is being written has been accepted."""
        await self._channel.close()

    def abort(self) -> None:
        """Closes the comm at once. Reads and writes raise CommClosedError."""
        self._channel.abort()

    def closed(self) -> bool:
        """Returns whether either side has closed the comm, or its peer was lost, and no message is left to be read."""
        return self._channel.is_closed
