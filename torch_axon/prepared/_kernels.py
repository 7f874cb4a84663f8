"""Transfers between two GPUs, by kernels that write into the receiver's tensor, or else into host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from torch_axon import _native
from torch_axon.prepared._handshake import Description, Handshake
from torch_axon.prepared._records import Records
from torch_axon.prepared._request import PartitionedRequest, bounds_of

if TYPE_CHECKING:
    from torch_axon._C import PreparedTransfer


class KernelEnd:
    """This rank's end of a transfer by kernels, made before the peer is asked whether it can do the same."""

    def __init__(
        self, handshake: Handshake, records: Records, is_sender: bool, tensor: Tensor, partitions: int
    ) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise ValueError(
                "prepare: the current stream is captured into a CUDA graph; allowed: to prepare before the capture"
            )
        native = _native.load().PreparedTransfer
        self.record = records.take(native.record_bytes(tensor.nbytes, partitions), tensor.device)
        self.transfer: PreparedTransfer = native(
            handshake.backend,
            tensor,
            self.record,
            is_sender,
            handshake.peer,
            handshake.tag,
            partitions,
            handshake.timeout,
        )

    @property
    def most_host_partitions(self) -> int:
        """How many partitions can pass through host memory: more would take the host too long to look at."""
        return self.transfer.most_host_partitions()


class KernelRequest(PartitionedRequest):
    """Every step is one kernel, or a few. The end has been opened."""

    def __init__(self, ours: Description, end: KernelEnd, path: str) -> None:
        self.path = path
        self._ours = ours
        self._end = end
        self._count = max(ours.partitions, 1)
        self.start = end.transfer.start  # type: ignore[method-assign]  # the native ones: a call in between costs 0.3 µs
        self.wait = end.transfer.wait  # type: ignore[method-assign]

    def start(self) -> None:
        """See `Request`."""
        self._end.transfer.start()

    def wait(self) -> None:
        """See `Request`."""
        self._end.transfer.wait()

    def ready(self, partition: int | range | None = None) -> None:
        """See `PartitionedRequest`."""
        self._end.transfer.ready(*self._bounds("ready", partition))

    def arrived(self, partition: int | range | None = None) -> None:
        """See `PartitionedRequest`."""
        self._end.transfer.arrived(*self._bounds("arrived", partition))

    def has_arrived(self, partition: int) -> bool:
        """See `PartitionedRequest`."""
        self._refuse("the host does not see what has arrived", "axon::parrived() in kernels")

    @property
    def device_handle(self) -> int:
        """See `PartitionedRequest`."""
        return self._end.transfer.device_handle()

    @property
    def num_device_bytes(self) -> int:
        """See `PartitionedRequest`."""
        return self._end.record.nbytes

    def add_to_graph(
        self, graph: int, step: str, dependencies: Sequence[int] = (), partition: int | range | None = None
    ) -> int:
        """See `PartitionedRequest`."""
        return self._end.transfer.add_to(graph, list(dependencies), step, *bounds_of(partition, self._count))

    def close(self) -> None:
        """See `Request`."""
        self._end.transfer.close()

    def _refuse(self, what: str, allowed: str) -> NoReturn:
        raise ValueError(f"prepared {self._ours}: {what}; allowed: {allowed}")

    def _bounds(self, step: str, partition: int | range | None) -> tuple[int, int]:
        if not self._ours.partitions:
            self._refuse(f"{step}() needs partitions", "start() and wait()")
        return bounds_of(partition, self._count)
