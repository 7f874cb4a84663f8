"""How the two ranks of a transfer agree on it, by messages under tags that users cannot name."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from torch_axon import _native

if TYPE_CHECKING:
    from torch_axon._C import AxonBackend

# A reserved tag has 30 bits. The first tells messages of data from those of this module. Of data it also holds the
# request and the partition; here which end has sent the message, and the user's tag.
_DATA = 1 << 29
_REQUEST = 1 << 16
_MOST_REQUESTS = 1 << 13  # of one pair and direction at a time
_OF_SENDER = 1 << 28

_DESCRIPTION = struct.Struct("<?IQ16sII32s")

_open_requests: WeakKeyDictionary[dist.ProcessGroup, dict[int, set[int]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Description:
    """What one rank has prepared, as sent to the other.

    `partitions` is 0 for a whole tensor. The sender gives its open requests to a peer different numbers. `address` is
    where the peer's kernels find this end, or empty if they cannot. `num_closed` counts the requests of the same pair,
    direction and tag that this rank has closed, up to the first one that is open.
    """

    is_sender: bool
    partitions: int
    numel: int
    dtype: str
    number: int = 0
    num_closed: int = 0
    address: bytes = b""

    def pack(self) -> bytes:
        text = self.dtype.encode()
        return _DESCRIPTION.pack(
            self.is_sender, self.partitions, self.numel, text, self.number, self.num_closed, self.address
        )

    @staticmethod
    def unpack(data: bytes) -> Description:
        is_sender, partitions, numel, dtype, number, num_closed, address = _DESCRIPTION.unpack(data)
        text = dtype.rstrip(b"\0").decode()
        return Description(is_sender, partitions, numel, text, number, num_closed, address if any(address) else b"")

    def matches(self, other: Description) -> bool:
        same = (self.partitions, self.numel, self.dtype) == (other.partitions, other.numel, other.dtype)
        return same and self.is_sender != other.is_sender

    def __str__(self) -> str:
        divided = f" in {self.partitions} partitions" if self.partitions else ""
        return f"{'send' if self.is_sender else 'recv'} of {self.dtype}[{self.numel}]{divided}"


class Meeting:
    """One call of prepare(): what both ranks need of each other."""

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, peer: int, tag: int, timeout: timedelta | None
    ) -> None:
        self.group = group
        self.device = device
        self.peer = peer  # its rank in the group
        self.tag = tag
        self.backend = backend_of(group, device)
        self.timeout: timedelta = timeout or self.backend.options._timeout
        self._works: list[dist.Work] = []

    def next_number(self) -> int:
        """Returns a number that no open send to this peer has."""
        taken = _open_requests.setdefault(self.group, defaultdict(set))[self.peer]
        number = next(number for number in range(_MOST_REQUESTS + 1) if number not in taken)
        if number == _MOST_REQUESTS:
            raise ValueError(f"prepare: {_MOST_REQUESTS} sends to this peer are open; allowed: fewer, so close() some")
        taken.add(number)
        return number

    def give_back(self, ours: Description) -> None:
        """Ends the use of the number of `ours`, if it has one."""
        if ours.is_sender:
            _open_requests[self.group][self.peer].discard(ours.number)

    def send(self, ours: Description) -> None:
        """Sends the peer what this rank has prepared, and begins to receive the same from it. Does not wait."""
        outgoing = torch.frombuffer(bytearray(ours.pack()), dtype=torch.uint8)
        self._incoming = torch.empty_like(outgoing)
        first, second = (_OF_SENDER, 0) if ours.is_sender else (0, _OF_SENDER)
        self._works = [
            self.backend._send_reserved(outgoing, self.peer, first | self.tag),
            self.backend._recv_reserved(self._incoming, self.peer, second | self.tag),
        ]

    def receive(self, ours: Description) -> Description:
        """Waits until the peer has prepared its end, and returns what it is. Raises ValueError if the two differ."""
        try:
            for work in self._works:
                work.wait(self.timeout)
        except dist.DistBackendError as error:
            wanted = "recv" if ours.is_sender else "send"
            raise dist.DistBackendError(
                f"prepare: rank {self.peer} has not prepared its {wanted} under tag {self.tag}: {error}"
            ) from error
        theirs = Description.unpack(self._incoming.numpy().tobytes())
        if theirs.matches(ours):
            return theirs
        mine = dist.get_rank(self.group)
        raise ValueError(
            f"prepare: rank {mine} has prepared a {ours}, and rank {self.peer} a {theirs}, under tag {self.tag}; "
            "allowed: a send and a recv of equal type, size and partitions"
        )

    def has_peer_access(self) -> bool:
        return self.backend._has_peer_access(self.device, self.peer)


def data_tag(request: int, partition: int) -> int:
    """Returns the reserved tag of a partition's messages."""
    return _DATA | request * _REQUEST | partition


def backend_of(group: dist.ProcessGroup, device: torch.device) -> AxonBackend:
    """Returns the group's backend for this device.

    Raises:
        ValueError: it is another backend than axon
    """
    backend: Any = group._get_backend(device)
    if isinstance(backend, _native.load().AxonBackend):
        return cast("AxonBackend", backend)
    raise ValueError(
        f"prepare: argument 'group' uses {backend.name()} for tensors on {device.type}; allowed: a group with axon"
    )
