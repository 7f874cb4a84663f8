"""How the two ranks of a transfer agree on it, by messages under tags that users cannot name."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from torch_axon import _native

if TYPE_CHECKING:
    from torch_axon._C import AxonBackend

# Reserved tags have 30 bits:
#   messages of data         1, the request's number (13 bits), the partition (16 bits)
#   messages of this module  0, whether the sender has sent it (1 bit), the user's tag (24 bits)
_DATA = 1 << 29
_REQUEST = 1 << 16
_MOST_REQUESTS = 1 << 13  # of one pair and direction at a time
_OF_SENDER = 1 << 28
_FOREVER = timedelta(days=365)  # the first use of a request bounds its wait itself

_DESCRIPTION = struct.Struct("<?IQ16sII32s")


@dataclass
class _Numbers:
    """The numbers of a rank's sends to one peer."""

    following: int = 0
    of_open: set[int] = field(default_factory=set)


_lock = Lock()  # guards the numbers
_numbers: WeakKeyDictionary[dist.ProcessGroup, defaultdict[int, _Numbers]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Description:
    """What one rank has prepared, as sent to the other.

    `partitions` is 0 for a whole tensor. The sender gives its open requests to a peer different numbers. `address` is
    where the peer's kernels find this end, or empty if they cannot. `num_ended` counts the requests of the same pair,
    direction and tag that have ended on this rank, up to the first one that has not.
    """

    is_sender: bool
    partitions: int
    numel: int
    dtype: str
    number: int = 0
    num_ended: int = 0
    address: bytes = b""

    def pack(self) -> bytes:
        text = self.dtype.encode()
        return _DESCRIPTION.pack(
            self.is_sender, self.partitions, self.numel, text, self.number, self.num_ended, self.address
        )

    @staticmethod
    def unpack(data: bytes) -> Description:
        is_sender, partitions, numel, dtype, number, num_ended, address = _DESCRIPTION.unpack(data)
        text = dtype.rstrip(b"\0").decode()
        return Description(is_sender, partitions, numel, text, number, num_ended, address if any(address) else b"")

    def matches(self, other: Description) -> bool:
        return (self.partitions, self.numel, self.dtype) == (other.partitions, other.numel, other.dtype)

    def __str__(self) -> str:
        divided = f" in {self.partitions} partitions" if self.partitions else ""
        return f"{'send' if self.is_sender else 'recv'} of {self.dtype}[{self.numel}]{divided}"


class Handshake:
    """One call of prepare(): what both ranks need of each other."""

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, peer: int, tag: int, timeout: timedelta | None
    ) -> None:
        self.group = group
        self.device = device
        self.peer = peer  # its rank in the group
        self.peer_name = f"rank {dist.get_global_rank(group, peer)}"
        self.tag = tag
        self.backend = backend_of(group, device)
        self.membership = self.backend._num_reconfigurations
        self.timeout: timedelta = timeout or self.backend.options._timeout
        self._works: list[dist.Work] = []

    def next_number(self) -> int:
        """Returns a number that no open send to this peer has, and none of the 4,096 that were prepared last.

        A receiver may be late: messages under a number that comes back too soon would meet its former request.
        """
        with _lock:
            numbers = _numbers.setdefault(self.group, defaultdict(_Numbers))[self.peer]
            if len(numbers.of_open) >= _MOST_REQUESTS // 2:
                count = len(numbers.of_open)
                raise ValueError(f"prepare: {count} sends to {self.peer_name} are open; allowed: fewer; close() some")
            while numbers.following in numbers.of_open:
                numbers.following = (numbers.following + 1) % _MOST_REQUESTS
            number = numbers.following
            numbers.of_open.add(number)
            numbers.following = (number + 1) % _MOST_REQUESTS
            return number

    def give_back(self, ours: Description) -> None:
        """Ends the use of the number of `ours`, if it has one."""
        if ours.is_sender:
            with _lock:
                _numbers[self.group][self.peer].of_open.discard(ours.number)

    def send(self, ours: Description) -> None:
        """Sends the peer what this rank has prepared, and begins to receive the same from it. Does not wait."""
        outgoing = torch.frombuffer(bytearray(ours.pack()), dtype=torch.uint8)
        self._incoming = torch.empty_like(outgoing)
        first, second = (_OF_SENDER, 0) if ours.is_sender else (0, _OF_SENDER)
        self._works = [
            self.backend._send_reserved(outgoing, self.peer, first | self.tag, _FOREVER),
            self.backend._recv_reserved(self._incoming, self.peer, second | self.tag, _FOREVER),
        ]

    def receive(self, ours: Description) -> Description:
        """Waits until the peer has prepared its end, and returns what it is. Raises ValueError if the two differ."""
        try:
            for work in self._works:
                work.wait(self.timeout)
        except dist.DistBackendError as error:
            if "Timed out" not in str(error):
                raise
            wanted = "recv" if ours.is_sender else "send"
            raise dist.DistBackendError(
                f"prepare: {self.peer_name} has not prepared its {wanted} under tag {self.tag} within {self.timeout} "
                f"of the first use of this rank's {ours}"
            ) from error
        theirs = Description.unpack(self._incoming.numpy().tobytes())
        if theirs.matches(ours):
            return theirs
        raise ValueError(
            f"prepare: rank {dist.get_rank()} has prepared a {ours}, and {self.peer_name} a {theirs}, under tag "
            f"{self.tag}; allowed: a send and a recv of equal type, size and partitions"
        )

    def has_same_members(self) -> bool:
        """Returns whether the group has not been reconfigured since."""
        return self.membership == self.backend._num_reconfigurations

    def has_received(self) -> bool:
        """Returns whether receive() would not wait."""
        return all(work.is_completed() for work in self._works)

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
