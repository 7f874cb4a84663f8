"""Expected results of operations, computed with NumPy from inputs that every rank can generate.

Values are small integers, so that results are exact in every type and compare bit for bit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

BOOL = (torch.bool,)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = UNSIGNED + SIGNED
REAL = INTEGERS + FLOATING
REDUCIBLE = BOOL + REAL + COMPLEX
ONLY_MOVED = (torch.float8_e4m3fn, torch.float8_e5m2)
MOVABLE = REDUCIBLE + ONLY_MOVED

# Sizes around the thresholds between algorithms; the largest is pipelined.
SIZES = (0, 1, 7, 1000, 4097)
LARGE = 1 << 20

REDUCTIONS: dict[str, tuple[Any, Sequence[torch.dtype]]] = {
    "SUM": (dist.ReduceOp.SUM, REDUCIBLE),
    "AVG": (dist.ReduceOp.AVG, REAL + COMPLEX),
    "PRODUCT": (dist.ReduceOp.PRODUCT, BOOL + REAL),
    "MIN": (dist.ReduceOp.MIN, BOOL + REAL),
    "MAX": (dist.ReduceOp.MAX, BOOL + REAL),
    "BAND": (dist.ReduceOp.BAND, BOOL + INTEGERS),
    "BOR": (dist.ReduceOp.BOR, BOOL + INTEGERS),
    "BXOR": (dist.ReduceOp.BXOR, BOOL + INTEGERS),
}

Array = np.ndarray[Any, Any]


def exact_dtype(dtype: torch.dtype) -> Any:
    """Returns the NumPy type that holds this type's small integers exactly."""
    if dtype in ONLY_MOVED or dtype in (torch.bfloat16, torch.float16):
        return np.float64
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype


def values(rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> Array:
    """Returns the input of rank `rank`: `count` small integers, of both signs if the type has them."""
    pattern = np.arange(count) * 5 + rank * 3 + seed
    if dtype in BOOL:
        return pattern % 3 == 0
    if dtype in UNSIGNED:
        return (pattern % 4).astype(exact_dtype(dtype))
    if dtype in COMPLEX:
        return (pattern % 3 - 1 + 1j * (pattern % 4 - 2)).astype(exact_dtype(dtype))
    return (pattern % 7 - 3).astype(exact_dtype(dtype))


def tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    converted = torch.empty(array.shape, dtype=dtype, device="cpu")  # from_numpy would give empty tensors a stride of 0
    converted.copy_(torch.from_numpy(array))
    return converted.to(torch.get_default_device())


def contribution(rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return tensor(values(rank, count, dtype, seed), dtype)


def garbage(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns an output that no result equals by accident: no input contributes a 1 everywhere, or a 0x55 byte."""
    return torch.full((count * dtype.itemsize,), 0x55 if dtype not in BOOL else 1, dtype=torch.uint8).view(dtype)


def reduced(name: str, arrays: Sequence[Array], dtype: torch.dtype) -> torch.Tensor:
    return tensor(_reduce(name, np.stack(arrays)), dtype)


def _reduce(name: str, stack: Array) -> Array:
    if stack.dtype == np.bool_:
        return _BOOLEAN[name](stack)
    if name == "AVG":
        total = np.add.reduce(stack, axis=0, dtype=stack.dtype)
        if stack.dtype.kind in "iu":
            return np.trunc(total / len(stack)).astype(stack.dtype)
        return total / np.asarray(len(stack), dtype=total.real.dtype)
    return _ARITHMETIC[name].reduce(stack, axis=0, dtype=stack.dtype)


_ARITHMETIC: dict[str, np.ufunc] = {
    "SUM": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}

# Reductions of booleans stay booleans, as in NCCL.
_BOOLEAN: dict[str, Callable[[Array], Array]] = {
    "SUM": lambda stack: stack.any(axis=0),
    "MAX": lambda stack: stack.any(axis=0),
    "BOR": lambda stack: stack.any(axis=0),
    "PRODUCT": lambda stack: stack.all(axis=0),
    "MIN": lambda stack: stack.all(axis=0),
    "BAND": lambda stack: stack.all(axis=0),
    "BXOR": lambda stack: np.bitwise_xor.reduce(stack, axis=0),
}


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    actual, expected = actual.detach().cpu(), expected.detach().cpu()
    if as_bytes(actual) == as_bytes(expected):
        return
    if not torch.equal(_comparable(actual), _comparable(expected)):  # -0.0 equals 0.0
        raise AssertionError(f"got {actual.flatten()[:16]}…, expected {expected.flatten()[:16]}…")


def _comparable(values: torch.Tensor) -> torch.Tensor:
    if values.dtype in ONLY_MOVED:
        return values.contiguous().view(torch.uint8)
    return values.to(torch.int64) if values.dtype in UNSIGNED else values


def as_bytes(values: torch.Tensor) -> bytes:
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


@contextlib.contextmanager
def case(**labels: object) -> Iterator[None]:
    """Adds the parameters of the failing case to the error, where one round trip runs many cases."""
    try:
        yield
    except Exception as error:
        described = ", ".join(f"{key}={value}" for key, value in labels.items())
        raise AssertionError(f"rank {dist.get_rank()}, case {described}: {type(error).__name__}: {error}") from error


def finish(work: dist.Work | None) -> None:
    """Waits, if the call was asynchronous."""
    if work is not None:
        work.wait()


def synchronize() -> None:
    """Waits for the GPU if the tensors are there: on a GPU, wait() only orders a stream and returns."""
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


def failure(call: Callable[[], object]) -> str:
    """Returns the class and text of what `call` raises; it must raise."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def failure_or_nothing(call: Callable[[], object]) -> str:
    """Returns the text of the error that `call` raises, or an empty text."""
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def eventually(is_so: Callable[[], bool]) -> None:
    """Waits until the condition holds, which another thread brings about."""
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline, "it has not happened within 10 s"
        time.sleep(0.01)


def eventual_failure(call: Callable[[], object], again: Callable[[], object] | None = None) -> str:
    """Returns what `call` or a later call `again` raises: an operation may complete before its failure is known."""

    def call_until_failure() -> None:
        call()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            synchronize()
            (again or call)()

    return failure(call_until_failure)


# Memory layouts of a tensor, all with the same contents.


def dense(values: torch.Tensor) -> torch.Tensor:
    return values.clone()


def every_second(values: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((*values.shape[:-1], values.shape[-1] * 2), dtype=values.dtype)
    strided = wide[..., ::2]
    strided.copy_(values)
    return strided


def transposed(values: torch.Tensor) -> torch.Tensor:
    return values.t().contiguous().t()


def offset(values: torch.Tensor) -> torch.Tensor:
    long = torch.zeros(values.numel() + 3, dtype=values.dtype)
    inner = long[3:].view(values.shape)
    inner.copy_(values)
    return inner


LAYOUTS = {"dense": dense, "every_second": every_second, "transposed": transposed, "offset": offset}
