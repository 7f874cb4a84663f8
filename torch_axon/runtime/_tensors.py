"""Converts objects that are neither plain values nor plain tensors into what can be sent."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.utils.dlpack
from torch import Tensor
from torch.nn.parameter import is_lazy

from torch_axon import _native

_ALLOWED = (
    "None, bool, int, float, str, bytes, lists, tuples and dicts of these, tensors, NumPy arrays, and objects with the "
    "buffer protocol or DLPack"
)


def as_sendable(value: object) -> Tensor | bool | int | float:
    """Returns a tensor over the memory of `value`, or its value as a number. The extension calls this.

    Raises:
        TypeError: the value cannot be sent
    """
    if isinstance(value, Tensor):
        return _of_subclass(value)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _of_array(value)
    if numpy is not None and isinstance(value, numpy.generic):
        return _of_scalar(value)
    try:
        tensor: Tensor | None = _native.load().tensor_of_buffer(value)
    except (TypeError, ValueError, BufferError):
        if not hasattr(value, "__dlpack__"):  # DLPack has types that the buffer protocol lacks
            raise
        tensor = None
    if tensor is not None:
        return tensor
    if hasattr(value, "__dlpack__") and not isinstance(value, type):
        return _by_dlpack(value)
    raise TypeError(f"a value of type {type(value).__qualname__} cannot be sent; allowed: {_ALLOWED}")


def _of_subclass(tensor: Tensor) -> Tensor:
    if is_lazy(tensor):
        raise TypeError(
            f"a value of type {type(tensor).__qualname__} cannot be sent: it has no shape before its module's first "
            "forward pass"
        )
    return tensor


def _of_array(array: Any) -> Tensor:
    masked: Any = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise TypeError(
            f"a {type(array).__qualname__} cannot be sent: its mask would be lost; send its filled(), or its data "
            "and its mask (numpy.ma.getmaskarray)"
        )
    dtype = array.dtype
    if dtype.kind not in "biufc" or not dtype.isnative or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise TypeError(
            f"a NumPy array of dtype {dtype.str if dtype.names is None else dtype} cannot be sent; allowed: bool, "
            "integers, floats of up to 64 bits and complex numbers of up to 128, in native byte order (astype)"
        )
    tensor: Tensor | None = _native.load().tensor_of_buffer(array)
    assert tensor is not None
    return tensor


def _of_scalar(scalar: Any) -> bool | int | float:
    number: object = scalar.item() if scalar.dtype.kind in "biuf" else None  # others may be text, bytes or tuples
    if not isinstance(number, bool | int | float):
        raise TypeError(
            f"a NumPy scalar of type {type(scalar).__qualname__} cannot be sent; allowed: bool, integers and floats of "
            "up to 64 bits, which arrive as bool, int and float"
        )
    return number


class _CheckedProducer:
    """Passes an array to torch after checking the capsule that it exports."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **how: Any) -> Any:
        capsule = self._array.__dlpack__(**how)
        _native.load().check_capsule(capsule)
        return capsule


def _by_dlpack(array: Any) -> Tensor:
    try:
        return torch.utils.dlpack.from_dlpack(_CheckedProducer(array))
    except Exception as error:
        raise TypeError(f"a value of type {type(array).__qualname__} cannot be sent as a tensor: {error}") from error
