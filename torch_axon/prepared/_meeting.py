"""How the two ranks of a transfer agree on it, by messages under tags that users cannot name."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from torch_axon import _native

if TYPE_CHECKING:
    from torch_axon._C import AxonBackend, PreparedTransfer

# A reserved tag has 30 bits. The first tells messages of data from those of this module. Of data it also holds the
# request and the partition; here the kind of the message, which end has sent it, and the user's tag.
_DATA = 1 << 29
_REQUEST = 1 << 16
_MOST_REQUESTS = 1 << 13  # of one pair and direction at a time
_DESCRIBED, _MADE, _OPENED = 0 << 27, 1 << 27, 2 << 27
_OF_SENDER = 1 << 26

_DESCRIPTION = struct.Struct("<??IIQ16s")
_MOST_CONTENT = 512
_ANSWER = struct.Struct(f"<?I{_MOST_CONTENT}s")  # success, and the length and content of an address or an error

_open_requests: WeakKeyDictionary[dist.ProcessGroup, dict[int, set[int]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Description:
    """What one rank has prepared; 0 partitions: the whole tensor. The sender numbers its open requests to a peer."""

    is_sender: bool
    is_cuda: bool
    partitions: int
    request: int
    numel: int
    dtype: str

    def pack(self) -> bytes:
        *numbers, dtype = astuple(self)
        return _DESCRIPTION.pack(*numbers, dtype.encode())

    @staticmethod
    def unpack(data: bytes) -> Description:
        is_sender, is_cuda, partitions, request, numel, dtype = _DESCRIPTION.unpack(data)
        return Description(is_sender, is_cuda, partitions, request, numel, dtype.rstrip(b"\0").decode())

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

    def next_request(self) -> int:
        """Returns a number that no open request to this peer has."""
        taken = _open_requests.setdefault(self.group, defaultdict(set))[self.peer]
        number = next(number for number in range(_MOST_REQUESTS + 1) if number not in taken)
        if number == _MOST_REQUESTS:
            raise ValueError(f"prepare: {_MOST_REQUESTS} sends to this peer are open; allowed: fewer, so close() some")
        taken.add(number)
        return number

    def give_back(self, ours: Description) -> None:
        """Ends the use of the number of `ours`, if it has one."""
        if ours.is_sender:
            _open_requests[self.group][self.peer].discard(ours.request)

    def exchange_descriptions(self, ours: Description) -> Description:
        """Returns what the peer has prepared. Raises ValueError on both ranks if it is not the other end of `ours`."""
        theirs = Description.unpack(self._exchange(ours.pack(), _DESCRIBED, ours.is_sender))
        if theirs.matches(ours):
            return theirs
        mine = dist.get_rank(self.group)
        raise ValueError(
            f"prepare: rank {mine} has prepared a {ours}, and rank {self.peer} a {theirs}, under tag {self.tag}; "
            "allowed: a send and a recv of equal type, size and partitions"
        )

    def has_peer_access(self) -> bool:
        return self.backend._has_peer_access(self.device, self.peer)

    def agree(self, is_sender: bool, make: Callable[[], PreparedTransfer]) -> PreparedTransfer:
        """Makes this rank's end and opens it, as the peer does with its own. If one of them fails, both ranks raise."""
        transfer: PreparedTransfer
        transfer, theirs = self._exchange_result(is_sender, _MADE, lambda: _with_address(make()))
        self._exchange_result(is_sender, _OPENED, lambda: _opened(transfer, theirs))
        return transfer

    def _exchange_result(self, is_sender: bool, kind: int, act: Callable[[], tuple[Any, bytes]]) -> tuple[Any, bytes]:
        """Returns the first part of this rank's result of `act`, and the second part of the peer's."""
        failure: Exception | None = None
        result, content = None, b""
        try:
            result, content = act()
        except Exception as error:
            failure, content = error, f"{type(error).__name__}: {error}".encode()[:_MOST_CONTENT]
        answer = _ANSWER.pack(failure is None, len(content), content)
        has_succeeded, length, theirs = _ANSWER.unpack(self._exchange(answer, kind, is_sender))
        if failure is not None:
            raise failure
        if not has_succeeded:
            text = theirs[:length].decode(errors="replace")
            raise ValueError(f"prepare: rank {self.peer} could not prepare its end: {text}")
        return result, theirs[:length]

    def _exchange(self, content: bytes, kind: int, is_sender: bool) -> bytes:
        outgoing = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        incoming = torch.empty_like(outgoing)
        ours, theirs = (_OF_SENDER, 0) if is_sender else (0, _OF_SENDER)
        works = [
            self.backend._send_reserved(outgoing, self.peer, kind | ours | self.tag),
            self.backend._recv_reserved(incoming, self.peer, kind | theirs | self.tag),
        ]
        try:
            for work in works:
                work.wait(self.timeout)
        except dist.DistBackendError as error:
            wanted = "recv" if is_sender else "send"
            raise dist.DistBackendError(
                f"prepare: rank {self.peer} has not prepared its {wanted} under tag {self.tag}: {error}"
            ) from error
        return incoming.numpy().tobytes()


def _with_address(transfer: PreparedTransfer) -> tuple[PreparedTransfer, bytes]:
    return transfer, transfer.address


def _opened(transfer: PreparedTransfer, address_of_peer: bytes) -> tuple[None, bytes]:
    transfer.open(address_of_peer)
    return None, b""


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
