"""What all prepared requests can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Request(ABC):
    """A prepared communication. It is a context manager that closes it.

    start() and wait() alternate. With CUDA tensors both work in stream order, on the current stream, and a CUDA graph
    may hold them; with CPU tensors wait() blocks.
    """

    @abstractmethod
    def start(self) -> None:
        """Starts the communication once more.

        With CUDA tensors it begins when the current stream gets here: a sender's tensor holds what is sent, and a
        receiver's tensor may be written to.

        Raises:
            ValueError: the last start has not been waited for, or the request is closed; at the first use of a
                transfer, the two ranks have prepared different ones (on both)
            torch.distributed.DistBackendError: the group has failed; at the first use of a transfer, the peer has not
                prepared its end within the timeout
        """

    @abstractmethod
    def wait(self) -> None:
        """Waits until the communication is complete: the tensor may be used again, by work after this call.

        Raises:
            ValueError: the request has not been started, or is closed
            torch.distributed.DistBackendError: it has failed, or took longer than the timeout. With CUDA tensors a
                later call raises this.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives back what the request holds. Call it after the last wait(), and once no graph that holds it is used."""

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class PartitionedRequest(Request):
    """A prepared send or receive of one tensor, in partitions if prepare() was told so.

    Partition i of n holds the elements from i · numel / n to (i + 1) · numel / n − 1 of the flattened tensor.
    """

    path: str
    """How the data moves: "kernels" that write into the peer's tensor, kernels and messages through "host memory", or
    "messages" alone."""

    @abstractmethod
    def ready(self, partition: int | range | None = None) -> None:
        """Sender: sends a partition, a range of them or all. Each is sent once per start, in any order.

        With CUDA tensors it is sent when the current stream gets here. With CPU tensors any thread may call this.

        Raises:
            IndexError: there is no such partition
            ValueError: before start(), twice for a partition, on the receiver, or without partitions
        """

    @abstractmethod
    def arrived(self, partition: int | range | None = None) -> None:
        """Receiver: waits for a partition, a range of them or all, in the order of the current stream; blocks on CPUs.

        Raises:
            IndexError: there is no such partition
            ValueError: before start(), or without partitions
        """

    @abstractmethod
    def has_arrived(self, partition: int) -> bool:
        """Returns whether a partition of a CPU tensor has arrived, without waiting for it.

        Raises:
            IndexError: there is no such partition
            ValueError: before start(), or kernels receive the tensor (on the paths "kernels" and "host memory")
        """

    @property
    @abstractmethod
    def num_device_bytes(self) -> int:
        """GPU memory that the request takes besides its tensor. Later requests to the same peer take it over."""

    @property
    @abstractmethod
    def device_handle(self) -> int:
        """What kernels pass to the functions of `axon/device.cuh` and `torch_axon.triton`.

        Raises:
            ValueError: the request has no partitions, the tensor is on the CPU, or it has more than 4,096 partitions
                and kernels do not reach the peer's GPU
        """

    @abstractmethod
    def add_to_graph(
        self, graph: int, step: str, dependencies: Sequence[int] = (), partition: int | range | None = None
    ) -> int:
        """Adds a step to a CUDA graph as a node, for programs that build graphs instead of capturing them.

        Args:
            graph: a `cudaGraph_t`
            step: "start", "ready", "arrived" or "wait"
            dependencies: nodes of the graph (`cudaGraphNode_t`) that come before this one
            partition: for "ready" and "arrived", as in these methods

        Returns:
            The new node, a `cudaGraphNode_t`.

        Raises:
            ValueError: `step` is another one, kernels do not reach the peer's GPU, or the request has no partitions
        """


def bounds_of(partition: int | range | None, count: int) -> tuple[int, int]:
    """Returns the first partition, and the one after the last. Raises IndexError."""
    if partition is None:
        return 0, count
    if isinstance(partition, range):
        first, end, step = partition.start, partition.stop, partition.step
    else:
        first, step = index(partition), 1
        end = first + 1
    if 0 <= first < end <= count and step == 1:
        return first, end
    raise IndexError(
        f"argument 'partition' is {partition}; allowed: 0 to {count - 1}, or a range of these in steps of 1"
    )
