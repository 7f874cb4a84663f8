"""Where the tensors of a message go: `memory=` of calls, functions, iterations and mailboxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from torch_axon import _native
from torch_axon.runtime._names import NUMBER


class Incoming(NamedTuple):
    """A tensor that is announced."""

    dtype: torch.dtype
    shape: torch.Size
    is_cuda: bool  # at its sender


def incoming(dtype: torch.dtype, shape: tuple[int, ...], is_cuda: bool) -> Incoming:
    """Called by the extension."""
    return Incoming(dtype, torch.Size(shape), is_cuda)


class Coming(list[Incoming]):
    """The tensors of a message that is announced, in order, and its plain values, which are there already.

    args, kwargs: of a function's arguments (`register`): what it will be called with
    value: of an answer, of a value that is iterated over, of a message to a mailbox: what it will be

    An `Incoming` stands in them for each tensor.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    value: Any

    def __init__(self, tensors: list[Incoming]) -> None:
        super().__init__(tensors)
        self.args, self.kwargs, self.value = [], {}, None


# Gives what is coming its values, as they travel.
Reader = Callable[[Coming, Any], None]


def read_arguments(coming: Coming, values: Any) -> None:
    coming.args, coming.kwargs = values[0], values[1] or {}
    coming.kwargs.pop(NUMBER, None)


def read_answer(coming: Coming, values: Any) -> None:
    coming.value = values


def read_step(coming: Coming, values: Any) -> None:
    """Of an iteration: [count, value]."""
    coming.value = values[1]


def read_message(coming: Coming, values: Any) -> None:
    """To a mailbox: the last argument."""
    coming.value = values[0][-1]


Where = Callable[[list[Incoming], Any], list["torch.Tensor | None"]]
HandOut = (
    Callable[[Coming], Sequence["torch.Tensor | None"]] | Callable[[list[Incoming]], Sequence["torch.Tensor | None"]]
)


@dataclass(frozen=True)
class Memory:
    """Where tensors go, and what happens where that is not to be had.

    where: a device; or a function that is handed descriptions of all tensors of a message and its plain values, as a
        `Coming`, and hands out a tensor for each of them, of the same type and shape, on the CPU or on CUDA. What comes
        is received into it, and it is the one that comes out. None in its place: there is none for that one. A `Pool`
        is such a function.
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


def policy_of(memory: AnyMemory, read: Reader) -> Policy:
    if memory is None:
        return BY_DEFAULT
    if not isinstance(memory, Memory):
        memory = Memory(memory)
    if isinstance(memory.where, str | torch.device):
        device = torch.device(memory.where)
        return Policy(device if memory.strict or _is_there(device) else torch.device("cpu"), None)
    if not callable(memory.where):
        raise TypeError(f"memory is {memory.where!r}; allowed: a device, a function, a Pool, or Memory of one of them")
    return Policy(torch.device("cpu"), _asking(memory.where, memory.strict, read))


def _is_there(device: torch.device) -> bool:
    return device.type != "cuda" or (device.index or 0) < torch.cuda.device_count()


def _asking(hand_out: HandOut, strict: bool, read: Reader) -> Where:
    def where(announced: list[Incoming], values: Any) -> list[torch.Tensor | None]:
        coming = Coming(announced)
        read(coming, values)
        tensors = list(hand_out(coming))
        if len(tensors) != len(announced):
            raise ValueError(
                f"memory: {len(tensors)} tensors have been handed out; allowed: {len(announced)}, one each"
            )
        for number, (tensor, each) in enumerate(zip(tensors, announced, strict=True)):
            _check(tensor, each, number, strict)
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
