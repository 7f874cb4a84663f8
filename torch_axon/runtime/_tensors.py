"""What can be sent as a tensor although it is none."""

from __future__ import annotations

import warnings

import torch
import torch.utils.dlpack


def as_tensor(value: object) -> torch.Tensor:
    """A tensor over the memory of `value`, which speaks DLPack or the buffer protocol. Called by the extension."""
    if hasattr(value, "__dlpack__"):
        try:
            return torch.utils.dlpack.from_dlpack(value)
        except (BufferError, TypeError, RuntimeError):
            if not _has_buffer(value):
                raise
    if not _has_buffer(value):
        raise TypeError(
            f"a value of {type(value).__qualname__} cannot be sent; allowed: None, bool, int, float, str, bytes, "
            "lists, tuples and dicts of such, tensors, and what speaks DLPack or the buffer protocol"
        )
    return _of_buffer(memoryview(value))  # type: ignore[arg-type]


def _has_buffer(value: object) -> bool:
    try:
        memoryview(value).release()  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


_DTYPES = {
    "?": torch.bool,
    "b": torch.int8,
    "B": torch.uint8,
    "c": torch.uint8,
    "h": torch.int16,
    "H": torch.uint16,
    "i": torch.int32,
    "I": torch.uint32,
    "l": torch.int64,
    "L": torch.uint64,
    "q": torch.int64,
    "Q": torch.uint64,
    "e": torch.float16,
    "f": torch.float32,
    "d": torch.float64,
    "Zf": torch.complex64,
    "Zd": torch.complex128,
}


def _of_buffer(view: memoryview) -> torch.Tensor:
    dtype = _DTYPES.get(view.format.lstrip("@=<"))
    if dtype is None:
        raise TypeError(f"a buffer of format {view.format!r} cannot be sent; allowed: {', '.join(_DTYPES)}")
    shape = view.shape or ()
    if view.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    contiguous = view if view.c_contiguous else memoryview(view.tobytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is only read, so that it may be read-only
        return torch.frombuffer(contiguous.cast("B"), dtype=torch.uint8).view(dtype).view(shape)
