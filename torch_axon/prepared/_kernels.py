"""Transfers between two GPUs of a host, by kernels that write into the receiver's tensor."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from torch_axon import _native
from torch_axon.prepared._meeting import Description, Meeting
from torch_axon.prepared._request import PartitionedRequest, bounds_of

if TYPE_CHECKING:
    from torch_axon._C import PreparedTransfer


@dataclass
class _Record:
    """Memory in which the two ends of a request tell each other how far they are.

    The peer may write to it as long as its end is open, so it is never given back. The next request with the same
    number, which is one to the same peer, takes it over: the sender has closed its end by then. The receiver's former
    end can then no longer be started.
    """

    memory: Tensor
    user: weakref.ref[KernelRequest]

    @staticmethod
    def take(user: KernelRequest, num_bytes: int, number: int) -> _Record:
        meeting, ours = user._meeting, user._ours
        records = _records.setdefault(meeting.group, {})
        key = (meeting.peer, ours.is_sender, number)
        former = records.get(key)
        if former is not None and (request := former.user()) is not None:
            request.close()
        memory = former.memory if former is not None else torch.empty(0, dtype=torch.uint8, device=meeting.device)
        if memory.nbytes < num_bytes:
            memory = torch.empty(num_bytes, dtype=torch.uint8, device=meeting.device)
        records[key] = _Record(memory, weakref.ref(user))
        return records[key]


_records: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, bool, int], _Record]] = (
    weakref.WeakKeyDictionary()
)


class KernelRequest(PartitionedRequest):
    """Every step is one kernel."""

    path = "kernels"

    def __init__(self, meeting: Meeting, ours: Description, tensor: Tensor, number: int) -> None:
        self._meeting = meeting
        self._ours = ours
        self._count = max(ours.partitions, 1)
        native = _native.load().PreparedTransfer
        self._record = _Record.take(self, native.record_bytes(tensor.nbytes, ours.partitions), number)
        self._transfer: PreparedTransfer | None = meeting.agree(
            ours.is_sender,
            lambda: native(
                meeting.backend,
                tensor,
                self._record.memory,
                ours.is_sender,
                meeting.peer,
                meeting.tag,
                ours.partitions,
                meeting.timeout,
            ),
        )
        self.start = self._transfer.start  # type: ignore[method-assign]
        self.wait = self._transfer.wait  # type: ignore[method-assign]

    def start(self) -> None:
        """See `Request`."""
        self._refuse()

    def wait(self) -> None:
        """See `Request`."""
        self._refuse()

    def ready(self, partition: int | range | None = None) -> None:
        """See `PartitionedRequest`."""
        self._open_transfer().ready(*self._bounds("ready", partition))

    def arrived(self, partition: int | range | None = None) -> None:
        """See `PartitionedRequest`."""
        self._open_transfer().arrived(*self._bounds("arrived", partition))

    @property
    def device_handle(self) -> int:
        """See `PartitionedRequest`."""
        return self._open_transfer().device_handle()

    @property
    def num_device_bytes(self) -> int:
        """GPU memory that the request takes besides its tensor. Later requests to the same peer take it over."""
        return self._record.memory.nbytes

    def add_to_graph(
        self, graph: int, step: str, dependencies: Sequence[int] = (), partition: int | range | None = None
    ) -> int:
        """See `PartitionedRequest`."""
        return self._open_transfer().add_to(graph, list(dependencies), step, *bounds_of(partition, self._count))

    def close(self) -> None:
        """See `Request`."""
        if self._transfer is None:
            return
        self._meeting.give_back(self._ours)
        self._transfer.close()
        self._transfer = None
        del self.start, self.wait  # those of the class refuse

    def _open_transfer(self) -> PreparedTransfer:
        return self._transfer or self._refuse()

    def _refuse(self) -> NoReturn:
        raise ValueError(f"prepared {self._ours}: the request is closed; allowed: to prepare another one")

    def _bounds(self, step: str, partition: int | range | None) -> tuple[int, int]:
        if not self._ours.partitions:
            raise ValueError(f"prepared {self._ours}: {step}() needs partitions; allowed: start() and wait()")
        return bounds_of(partition, self._count)
