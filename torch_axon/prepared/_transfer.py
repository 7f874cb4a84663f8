"""A prepared send or receive, which learns at its first use what the peer has prepared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import RLock

from torch import Tensor

from torch_axon.prepared._handshake import Description, Handshake, data_tag
from torch_axon.prepared._kernels import KernelEnd, KernelRequest
from torch_axon.prepared._messages import MessageRequest
from torch_axon.prepared._records import Records
from torch_axon.prepared._request import PartitionedRequest


class Transfer(PartitionedRequest):
    """Passes everything on to the request that both ends can serve: by kernels, or else by messages.

    The messages of a CUDA tensor in partitions are sent from host memory, into which kernels write.
    """

    def __init__(self, handshake: Handshake, tensor: Tensor, is_sender: bool, partitions: int) -> None:
        self._lock = RLock()  # guards the members below
        self._is_closed = False
        self._matched: PartitionedRequest | None = None
        self._mismatch: str | None = None
        self._handshake = handshake
        self._tensor = tensor
        self._records = Records.of(handshake, is_sender)
        self._end = KernelEnd(handshake, self._records, is_sender, tensor, partitions) if tensor.is_cuda else None
        number = handshake.next_number() if is_sender else 0
        self._number = self._records.add(self._end.record if self._end else None)
        self._ours = Description(
            is_sender=is_sender,
            partitions=partitions,
            numel=tensor.numel(),
            dtype=str(tensor.dtype).removeprefix("torch."),
            number=number,
            num_ended=self._records.num_ended,
            address=self._end.transfer.address if self._end else b"",
        )
        handshake.send(self._ours)

    def __repr__(self) -> str:
        direction = "to" if self._ours.is_sender else "from"
        return f"<prepared {self._ours} {direction} {self._handshake.peer_name}, tag {self._handshake.tag}>"

    def start(self) -> None:
        """See `Request`."""
        self._use().start()

    def wait(self) -> None:
        """See `Request`."""
        self._use().wait()

    def ready(self, partition: int | range | None = None) -> None:
        """See `PartitionedRequest`."""
        self._use().ready(partition)

    def arrived(self, partition: int | range | None = None) -> None:
        """See `PartitionedRequest`."""
        self._use().arrived(partition)

    def has_arrived(self, partition: int) -> bool:
        """See `PartitionedRequest`."""
        has_to_wait = self._matched is None and not self._is_closed and not self._handshake.has_received()
        return not has_to_wait and self._use().has_arrived(partition)

    @property
    def path(self) -> str:  # type: ignore[override]
        """See `PartitionedRequest`."""
        return self._use().path

    @property
    def device_handle(self) -> int:
        """See `PartitionedRequest`."""
        return self._use().device_handle

    @property
    def num_device_bytes(self) -> int:
        """See `PartitionedRequest`."""
        return self._use().num_device_bytes

    def add_to_graph(
        self, graph: int, step: str, dependencies: Sequence[int] = (), partition: int | range | None = None
    ) -> int:
        """See `PartitionedRequest`."""
        return self._use().add_to_graph(graph, step, dependencies, partition)

    def close(self) -> None:
        """See `Request`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._matched is not None:
                self._matched.close()
            if self._end is None:
                self._records.close(self._number)
            else:
                self._end.transfer.close()
                self._records.close(self._number, self._end.transfer.has_ended)
            self._handshake.give_back(self._ours)
            with suppress(AttributeError):  # those of the class refuse
                del self.start, self.wait

    def _use(self) -> PartitionedRequest:
        """Returns what serves this request. The first call waits until the peer has prepared its end."""
        with self._lock:
            if self._is_closed:
                raise ValueError(f"prepared {self._ours}: the request is closed; allowed: to prepare another one")
            if self._mismatch is not None:
                raise ValueError(self._mismatch)
            if self._matched is None:
                self._matched = self._match()
                self.start = self._matched.start  # type: ignore[method-assign]
                self.wait = self._matched.wait  # type: ignore[method-assign]
            return self._matched

    def _match(self) -> PartitionedRequest:
        try:
            theirs = self._handshake.receive(self._ours)
        except ValueError as error:
            self._mismatch = str(error)  # the exception itself would keep this request alive
            raise
        self._records.num_ended_there = max(self._records.num_ended_there, theirs.num_ended)
        if self._end is not None and theirs.address and self._ours.address and self._handshake.has_peer_access():
            self._end.transfer.open(theirs.address)
            return KernelRequest(self._ours, self._end, "kernels")
        number = self._ours.number if self._ours.is_sender else theirs.number
        if self._end is not None and 1 <= self._ours.partitions <= self._end.most_host_partitions:
            self._end.transfer.open_through_host(data_tag(number, 0))
            return KernelRequest(self._ours, self._end, "host memory")
        return MessageRequest(self._handshake, self._ours, self._tensor, number)
