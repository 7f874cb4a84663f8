"""The `memory=` option of calls, functions, iterations and mailboxes: where the tensors of a message arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from torch_axon import _native
from torch_axon.runtime._names import NUMBER


class Incoming(NamedTuple):
    """The description of a tensor that is about to be received.

    Attributes:
        dtype: its type
        shape: its shape
        is_cuda: whether it is on CUDA at its sender
    """

    dtype: torch.dtype
    shape: torch.Size
    is_cuda: bool


def incoming(dtype: torch.dtype, shape: tuple[int, ...], is_cuda: bool) -> Incoming:
    """Makes a description for the extension, which calls this."""
    return Incoming(dtype, torch.Size(shape), is_cuda)


class Coming(list[Incoming]):
    """The tensors of a message that is about to be received, in order, and its plain values, which have arrived.

    In the values, an `Incoming` takes the place of each tensor.

    Attributes:
        args: for a call (`Runtime.register`): the positional arguments of the function
        kwargs: for a call: the named arguments of the function
        value: for an answer, a value of an iteration, or a message to a mailbox: that value
    """

    args: list[Any]
    kwargs: dict[str, Any]
    value: Any

    def __init__(self, tensors: list[Incoming]) -> None:
        super().__init__(tensors)
        self.args, self.kwargs, self.value = [], {}, None


# Fills a Coming with the plain values of a message, given in their wire form.
Reader = Callable[[Coming, Any], None]


def read_arguments(coming: Coming, values: Any) -> None:
    coming.args, coming.kwargs = values[0], values[1] or {}
    coming.kwargs.pop(NUMBER, None)


def read_answer(coming: Coming, values: Any) -> None:
    coming.value = values


def read_step(coming: Coming, values: Any) -> None:
    """Reads a value of an iteration, which is sent as [count, value]."""
    coming.value = values[1]


def read_message(coming: Coming, values: Any) -> None:
    """Reads a message to a mailbox, which is the last argument of the call."""
    coming.value = values[0][-1]


Where = Callable[[list[Incoming], Any], list["torch.Tensor | None"]]
HandOut = (
    Callable[[Coming], Sequence["torch.Tensor | None"]] | Callable[[list[Incoming]], Sequence["torch.Tensor | None"]]
)


@dataclass(frozen=True)
class Memory:
    """Where received tensors are placed, and what happens if no memory is available there.

    Args:
        where: a device, a `Pool`, or a function. The function takes a `Coming` and returns one tensor per described
            tensor, contiguous, of the same type and shape, on the CPU or on CUDA. The data is received into it, and the
            receiver gets this same tensor. It returns None for a tensor for which it has no memory.
        strict: whether the call fails with BufferError if there is no memory; otherwise the tensor is placed in newly
            allocated host memory

    Attributes:
        where: the device, pool or function
        strict: whether the call fails if there is no memory
    """

    where: str | torch.device | HandOut
    strict: bool = True


AnyMemory = str | torch.device | HandOut | Memory | None


class Policy(NamedTuple):
    """A `memory=` option in the form that the extension takes."""

    device: torch.device | None  # for tensors for which `where` gives no memory; None: the kind of device at the sender
    where: Where | None


BY_DEFAULT = Policy(None, None)


def policy_of(memory: AnyMemory, read: Reader) -> Policy:
    """Returns a `memory=` option in the extension's form.

    Raises:
        TypeError: it is neither a device nor a function nor a Memory
    """
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
                f"memory: the function returned {len(tensors)} tensors; allowed: {len(announced)}, one per description"
            )
        for number, (tensor, each) in enumerate(zip(tensors, announced, strict=True)):
            _check(tensor, each, number, strict)
        _check_apart([tensor for tensor in tensors if tensor is not None])
        return tensors

    return where


def _check(tensor: object, incoming: Incoming, number: int, strict: bool) -> None:
    """Checks what a function returned for the described tensor of this number.

    Raises:
        BufferError: there is no memory, and that is an error
        TypeError: it is not a tensor
        ValueError: the tensor does not fit the description
    """

    def refuse(what: object, allowed: object) -> ValueError:
        return ValueError(f"memory: the function's tensor {number} {what}; allowed: {allowed}")

    if tensor is None:
        if strict:
            raise BufferError(f"memory: no memory for tensor {number}, {incoming.dtype} of {list(incoming.shape)}")
        return
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"memory: the function returned a {type(tensor).__name__} for tensor {number}; allowed: a tensor, None"
        )
    if reason := _native.load().lack_of_memory(tensor):
        raise refuse(reason, "strided, with memory of its own, on the CPU or on CUDA")
    if tensor.dtype != incoming.dtype:
        raise refuse(f"is of {tensor.dtype}", f"{incoming.dtype}, the type that was sent")
    if tensor.shape != incoming.shape:
        raise refuse(f"has shape {list(tensor.shape)}", f"{list(incoming.shape)}, the shape that was sent")
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise refuse("is not contiguous", "contiguous tensors, which data can be received into")


def _check_apart(tensors: list[torch.Tensor]) -> None:
    ranges = sorted((str(t.device), t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.nbytes)
    for (device, _, end), (next_device, begin, _) in pairwise(ranges):
        if device == next_device and begin < end:
            raise ValueError("memory: the function returned tensors that overlap; allowed: separate memory for each")
