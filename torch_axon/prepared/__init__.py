"""Prepared requests: communication that is set up once and then started any number of times.

Both ranks prepare a transfer of one tensor. From then on a start costs no matching, no allocation and no look-up. The
tensor may be divided into partitions, which are sent one by one as they become ready. CUDA tensors become ready in
stream order, or in CUDA kernels (`axon/device.cuh`) and Triton kernels (`torch_axon.triton`), and CPU tensors in any
thread. A CUDA graph may hold all of it.

    request = torch_axon.prepare(gradients, "send", peer=1, partitions=8)   # and "recv" on rank 1
    for _ in range(steps):
        request.start()                  # on the current stream
        for partition in range(8):
            compute(gradients, partition)
            request.ready(partition)
        request.wait()
    request.close()

Terms follow MPI's persistent and partitioned communication (`MPI_Psend_init`, `MPI_Pready`, `MPI_Parrived`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, overload

import torch
import torch.distributed as dist
from torch import Tensor

from torch_axon import _native
from torch_axon.prepared._collectives import COLLECTIVES, CollectiveRequest, prepare_collective
from torch_axon.prepared._handshake import Handshake
from torch_axon.prepared._request import PartitionedRequest, Request
from torch_axon.prepared._transfer import Transfer

__all__ = ["CollectiveRequest", "PartitionedRequest", "Request", "include_path", "prepare"]

_MOST_PARTITIONS = 1 << 16
_LARGEST_TAG = (1 << 24) - 1


@overload
def prepare(
    tensor: Tensor,
    operation: Literal["send", "recv"],
    *,
    peer: int,
    tag: int = 0,
    partitions: int | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
) -> PartitionedRequest: ...


@overload
def prepare(
    tensor: Tensor,
    operation: Literal["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"],
    *,
    inputs: Tensor | None = None,
    root: int | None = None,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> CollectiveRequest: ...


def prepare(
    tensor: Tensor,
    operation: str,
    *,
    peer: int | None = None,
    tag: int = 0,
    partitions: int | None = None,
    inputs: Tensor | None = None,
    root: int | None = None,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
) -> PartitionedRequest | CollectiveRequest:
    """Prepares a transfer or a collective, which can then be started any number of times.

    The two ranks of a transfer call this with "send" and "recv", tensors of one type and size, and the same tag and
    partitions. Several of one pair, direction and tag match in the order of these calls. This call waits for no rank.
    The first use of the request waits until the peer has prepared its end, and compares the two. A collective is
    checked when it starts, as other calls of c10d are.

    Args:
        tensor: what is sent or received, or reduced, or what a collective writes to; contiguous, on the CPU or a GPU.
            The request keeps its memory.
        operation: "send", "recv", "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter" or "all_to_all"
        peer: the other rank of a transfer, as in `dist.send`: its number in the default group
        tag: distinguishes transfers of one pair and direction; 0 to 16777215
        partitions: the number of equal parts of a transfer's tensor, each sent once ready() names it; at most 65536.
            None: start() sends the whole tensor.
        inputs: what "all_gather", "reduce_scatter" and "all_to_all" read, as `input` of c10d's functions on one tensor
        root: the root of "broadcast" and "reduce", a rank of the default group
        op: of reductions
        group: the process group; the default one if None
        timeout: how long each wait of a transfer may take; the group's timeout if None

    Returns:
        A `PartitionedRequest` for transfers, and a `CollectiveRequest` for collectives.

    Raises:
        ValueError: an argument is not allowed
        TypeError: an argument has another type
    """
    group = dist.distributed_c10d._get_default_group() if group is None else group
    _check_type("tensor", tensor, Tensor)
    _check_type("operation", operation, str)
    _check_type("group", group, dist.ProcessGroup, "a process group that this rank is in")
    if operation in COLLECTIVES:
        _check_unused(operation, peer=peer, tag=tag or None, partitions=partitions, timeout=timeout)
        return prepare_collective(operation, tensor, inputs, root, op, group)
    if operation not in ("send", "recv"):
        allowed = ", ".join(("send", "recv", *COLLECTIVES))
        raise ValueError(f"prepare: argument 'operation' is {operation!r}; allowed: {allowed}")
    _check_unused(operation, inputs=inputs, root=root)
    for name, value in (("peer", peer), ("tag", tag), ("partitions", partitions)):
        if isinstance(value, bool) or not (value is None or hasattr(value, "__index__")):
            raise TypeError(f"prepare: argument {name!r} is {value!r}; allowed: an int")
    _check_tensor(tensor, partitions)
    if timeout is not None:
        _check_type("timeout", timeout, timedelta)
        if timeout <= timedelta():
            raise ValueError(f"prepare: argument 'timeout' is {timeout}; allowed: more than 0")
    if not 0 <= tag <= _LARGEST_TAG:
        raise ValueError(f"prepare: argument 'tag' is {tag}; allowed: 0 to {_LARGEST_TAG}")
    handshake = Handshake(group, tensor.device, _rank_in(group, peer), tag, timeout)
    return Transfer(handshake, tensor, operation == "send", partitions or 0)


def include_path() -> str:
    """Returns the folder with `axon/device.cuh`, for the include path of kernels that use prepared requests."""
    from pathlib import Path

    return str(Path(_native.__file__).parent / "include")


def _check_type(name: str, value: object, wanted: type, allowed: str = "") -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"prepare: argument {name!r} is {value!r}; allowed: {allowed or wanted.__name__}")


def _check_unused(operation: str, **arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"prepare: argument {name!r} is {value!r}; allowed with {operation!r}: None")


def _check_tensor(tensor: Tensor, partitions: int | None) -> None:
    if tensor.layout != torch.strided:
        raise TypeError(f"prepare: argument 'tensor' has layout {tensor.layout}; allowed: torch.strided")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            "prepare: argument 'tensor' is a conjugated or negated view; allowed: tensor.resolve_conj().resolve_neg()"
        )
    if not tensor.is_contiguous() or tensor.numel() == 0:
        raise ValueError(
            f"prepare: argument 'tensor' has shape {list(tensor.shape)} and strides {list(tensor.stride())}; allowed: "
            "a contiguous tensor with at least one element"
        )
    if partitions is None:
        return
    if not 1 <= partitions <= _MOST_PARTITIONS or tensor.numel() % partitions:
        raise ValueError(
            f"prepare: argument 'partitions' is {partitions}; allowed: a divisor of the tensor's {tensor.numel()} "
            f"elements, from 1 to {_MOST_PARTITIONS}"
        )


def _rank_in(group: dist.ProcessGroup, peer: int | None) -> int:
    ranks = dist.get_process_group_ranks(group)
    if peer in ranks and peer != dist.get_rank():
        return dist.get_group_rank(group, peer)
    others = [rank for rank in ranks if rank != dist.get_rank()]
    raise ValueError(f"prepare: argument 'peer' is {peer!r}; allowed: another rank of the group, one of {others}")
