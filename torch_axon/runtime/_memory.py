"""Where the tensors of a message go: `memory=` of calls, functions, iterations and mailboxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from torch_axon import _native

Description = tuple[torch.dtype, tuple[int, ...], bool]
Where = Callable[[list[Description]], list[torch.Tensor | None]]


class Incoming(NamedTuple):
    """A tensor that is announced."""

    dtype: torch.dtype
    shape: torch.Size
    is_cuda: bool  # at its sender


HandOut = Callable[[list[Incoming]], Sequence["torch.Tensor | None"]]


@dataclass(frozen=True)
class Memory:
    """Where tensors go, and what happens where that is not to be had.

    where: a device; or a function that is handed descriptions of all tensors of a message and hands out a tensor for
        each of them, of the same type and shape, on the CPU or on CUDA. What comes is received into it, and it is the
        one that comes out. None in its place: there is none for that one. A `Pool` is such a function.
    strict: whether the call fails then; else fresh memory of the host takes the tensor
    """

    where: str | torch.device | HandOut
    strict: bool = True


AnyMemory = str | torch.device | HandOut | Memory | None


class Policy(NamedTuple):
    """What the extension is told of a `memory=`."""

    device: torch.device | None  # where tensors are put that have no place of their own; None: as at their sender
    where: Where | None


BY_DEFAULT = Policy(None, None)


def policy_of(memory: AnyMemory) -> Policy:
    if memory is None:
        return BY_DEFAULT
    if not isinstance(memory, Memory):
        memory = Memory(memory)
    if isinstance(memory.where, str | torch.device):
        device = torch.device(memory.where)
        return Policy(device if memory.strict or _is_there(device) else torch.device("cpu"), None)
    if not callable(memory.where):
        raise TypeError(f"memory is {memory.where!r}; allowed: a device, a function, a Pool, or Memory of one of them")
    return Policy(torch.device("cpu"), _asking(memory.where, memory.strict))


def _is_there(device: torch.device) -> bool:
    return device.type != "cuda" or (device.index or 0) < torch.cuda.device_count()


def _asking(hand_out: HandOut, strict: bool) -> Where:
    def where(descriptions: list[Description]) -> list[torch.Tensor | None]:
        coming = [Incoming(dtype, torch.Size(shape), is_cuda) for dtype, shape, is_cuda in descriptions]
        tensors = list(hand_out(coming))
        if len(tensors) != len(coming):
            raise ValueError(f"memory: {len(tensors)} tensors have been handed out; allowed: {len(coming)}, one each")
        for number, (tensor, incoming) in enumerate(zip(tensors, coming, strict=True)):
            _check(tensor, incoming, number, strict)
        _check_apart([tensor for tensor in tensors if tensor is not None])
        return tensors

    return where


def _check(tensor: object, incoming: Incoming, number: int, strict: bool) -> None:
    """Of what is handed out for the tensor of this number."""

    def refuse(what: object, allowed: object) -> ValueError:
        return ValueError(f"memory: tensor {number} is handed out {what}; allowed: {allowed}")

    if tensor is None:
        if strict:
            raise BufferError(f"memory: there is none for tensor {number}, {incoming.dtype} of {list(incoming.shape)}")
        return
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"memory: a {type(tensor).__name__} is handed out for tensor {number}; allowed: a tensor, None")
    if reason := _native.load().lack_of_memory(tensor):
        raise refuse(f"as one that {reason}", "strided, with memory of its own, on the CPU or on CUDA")
    if tensor.dtype != incoming.dtype:
        raise refuse(f"as {tensor.dtype}", f"{incoming.dtype}, as it comes")
    if tensor.shape != incoming.shape:
        raise refuse(f"with shape {list(tensor.shape)}", f"{list(incoming.shape)}, as it comes")
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise refuse("as a view that is not contiguous", "contiguous, so that it can be received into")


def _check_apart(tensors: list[torch.Tensor]) -> None:
    ranges = sorted((str(t.device), t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.nbytes)
    for (device, _, end), (next_device, begin, _) in pairwise(ranges):
        if device == next_device and begin < end:
            raise ValueError("memory: tensors that overlap are handed out; allowed: memory of its own for each")
