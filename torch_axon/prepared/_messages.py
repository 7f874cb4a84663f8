"""Transfers through the host engine: CPU tensors, and CUDA tensors whose partitions kernels do not send.

Each partition is a message.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import index
from threading import Condition
from typing import NoReturn

import torch.distributed as dist
from torch import Tensor

from torch_axon.prepared._handshake import Description, Handshake, data_tag
from torch_axon.prepared._request import PartitionedRequest, bounds_of


class MessageRequest(PartitionedRequest):
    """On the CPU its methods are thread-safe: threads make partitions ready, and another one waits."""

    path = "messages"

    def __init__(self, handshake: Handshake, ours: Description, tensor: Tensor, number: int) -> None:
        self._handshake = handshake
        self._ours = ours
        self._number = number
        self._parts: Sequence[Tensor] = tensor.detach().view(-1).chunk(max(ours.partitions, 1))
        self._changed = Condition()  # guards the members below
        self._works: list[dist.Work | None] = []  # by partition; empty before start()
        self._has_failed = False

    def start(self) -> None:
        """See `Request`."""
        with self._changed:
            if self._has_failed:
                self._refuse("an earlier start has failed", "to prepare another one, on both ranks")
            if self._works:
                self._refuse("start() was called before wait()", "once the last start has been waited for")
            if not self._handshake.has_same_members():
                self._refuse("its group was reconfigured after prepare()", "to prepare it again")
            self._works = [None] * len(self._parts)
            if not self._ours.is_sender:
                self._works = [self._receive(number) for number in range(len(self._parts))]
            elif not self._ours.partitions:
                self._send(0)

    def ready(self, partition: int | range | None = None) -> None:
        """See `PartitionedRequest`."""
        first, end = bounds_of(partition, len(self._parts))
        with self._changed:
            if not self._ours.is_sender:
                self._refuse("ready() was called by the receiver", "by the sender")
            self._check_partitions("ready")
            self._check_started()
            for number in range(first, end):
                if self._works[number] is not None:
                    self._refuse(f"ready({number}) was called twice", "once per start()")
            for number in range(first, end):
                self._send(number)
            self._changed.notify_all()

    def arrived(self, partition: int | range | None = None) -> None:
        """See `PartitionedRequest`."""
        first, end = bounds_of(partition, len(self._parts))
        with self._changed:
            self._check_partitions("arrived")
            self._check_started()
            works = self._works[first:end]
        self._await(works)

    def has_arrived(self, partition: int) -> bool:
        """See `PartitionedRequest`."""
        first, _ = bounds_of(index(partition), len(self._parts))
        with self._changed:
            self._check_started()
            work = self._works[first]
        if work is None or not work.is_completed():
            return False
        self._await([work])  # raises if it has failed
        return True

    def wait(self) -> None:
        """See `Request`."""
        with self._changed:
            self._check_started()
            self._await_ready()
            works = self._works
        self._await(works)
        with self._changed:
            self._works = []

    def close(self) -> None:
        """See `Request`."""
        self._parts = ()

    @property
    def device_handle(self) -> int:
        """See `PartitionedRequest`."""
        if not self._ours.partitions:
            self._refuse("kernels can only send partitions", "a request with partitions, at least 1")
        if self._parts[0].is_cuda:
            self._refuse("its partitions are too many for kernels", "at most 4096 partitions to this peer")
        self._refuse("kernels cannot use a tensor on the CPU", "CUDA tensors")

    @property
    def num_device_bytes(self) -> int:
        """See `PartitionedRequest`."""
        return 0

    def add_to_graph(
        self, graph: int, step: str, dependencies: Sequence[int] = (), partition: int | range | None = None
    ) -> int:
        """See `PartitionedRequest`."""
        self._refuse("its steps are no kernels", "to capture its calls into the graph")

    def _send(self, number: int) -> None:
        shake = self._handshake
        tag = data_tag(self._number, number)
        self._works[number] = shake.backend._send_reserved(self._parts[number], shake.peer, tag, shake.timeout)

    def _receive(self, number: int) -> dist.Work:
        shake = self._handshake
        tag = data_tag(self._number, number)
        return shake.backend._recv_reserved(self._parts[number], shake.peer, tag, shake.timeout)

    def _await(self, works: Sequence[dist.Work | None]) -> None:
        """Waits for each, which ends by its own timeout. What comes later would meet another start."""
        try:
            for work in works:
                if work is not None:
                    work.wait()
        except dist.DistBackendError:
            self._has_failed = True
            raise

    def _await_ready(self) -> None:
        """Waits until other threads have made all partitions ready. Called with the lock."""
        deadline = time.monotonic() + self._handshake.timeout.total_seconds()
        while missing := [number for number, work in enumerate(self._works) if work is None]:
            if self._parts[0].is_cuda:  # its threads enqueue in an order of their own
                self._refuse(f"wait() was called before ready() of partitions {missing}", "after all are ready")
            if not self._changed.wait(deadline - time.monotonic()):
                raise dist.DistBackendError(
                    f"prepared {self._ours} to {self._handshake.peer_name}: Timed out. No thread has made these "
                    f"partitions ready: {missing}"
                )

    def _check_partitions(self, step: str) -> None:
        if not self._ours.partitions:
            self._refuse(f"{step}() needs partitions", "start() and wait()")

    def _check_started(self) -> None:
        if not self._works:
            self._refuse("it has not been started", "start() first")

    def _refuse(self, what: str, allowed: str) -> NoReturn:
        direction = "to" if self._ours.is_sender else "from"
        peer = f"{self._handshake.peer_name}, tag {self._handshake.tag}"
        raise ValueError(f"prepared {self._ours} {direction} {peer}: {what}; allowed: {allowed}")
