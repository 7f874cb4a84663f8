"""A prepared send or receive, which learns at its first use what the peer has prepared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import RLock

from torch import Tensor

from torch_axon.prepared._kernels import KernelEnd, KernelRequest
from torch_axon.prepared._meeting import Description, Meeting
from torch_axon.prepared._messages import MessageRequest
from torch_axon.prepared._request import PartitionedRequest


class Transfer(PartitionedRequest):
    """Passes everything on to the request that both ends can serve: by kernels, or else by messages."""

    def __init__(self, meeting: Meeting, tensor: Tensor, is_sender: bool, partitions: int) -> None:
        self._lock = RLock()  # guards the members below
        self._is_closed = False
        self._matched: PartitionedRequest | None = None
        self._failure: Exception | None = None
        self._meeting = meeting
        self._tensor = tensor
        self._end: KernelEnd | None = KernelEnd(meeting, is_sender, tensor, partitions) if tensor.is_cuda else None
        self._ours = Description(
            is_sender=is_sender,
            partitions=partitions,
            numel=tensor.numel(),
            dtype=str(tensor.dtype).removeprefix("torch."),
            number=meeting.next_number() if is_sender else 0,
            num_closed=self._end.records.num_closed if self._end else 0,
            address=self._end.transfer.address if self._end else b"",
        )
        meeting.send(self._ours)

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
        return self._use().has_arrived(partition)

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
            elif self._end is not None:
                self._end.close()
            self._meeting.give_back(self._ours)
            with suppress(AttributeError):  # those of the class refuse
                del self.start, self.wait

    def _use(self) -> PartitionedRequest:
        """Returns what serves this request. The first call waits until the peer has prepared its end."""
        with self._lock:
            if self._is_closed:
                raise ValueError(f"prepared {self._ours}: the request is closed; allowed: to prepare another one")
            if self._failure is not None:
                raise self._failure
            if self._matched is None:
                try:
                    self._matched = self._match()
                except Exception as error:
                    self._failure = error
                    raise
                self.start = self._matched.start  # type: ignore[method-assign]
                self.wait = self._matched.wait  # type: ignore[method-assign]
            return self._matched

    def _match(self) -> PartitionedRequest:
        theirs = self._meeting.receive(self._ours)
        if self._end is not None:
            self._end.records.num_closed_there = theirs.num_closed
            if self._ours.address and theirs.address and self._meeting.has_peer_access():
                return KernelRequest(self._ours, theirs, self._end)
            self._end.close()
            self._end = None
        return MessageRequest(
            self._meeting, self._ours, self._tensor, self._ours.number if self._ours.is_sender else theirs.number
        )
