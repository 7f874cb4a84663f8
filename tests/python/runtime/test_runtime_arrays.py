"""Arrays and buffers of other libraries: they arrive with their values, or the call names their type."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torch_axon import Runtime
from torch_axon.runtime import Peer

_CUBE = np.arange(24.0).reshape(2, 3, 4)
_STRUCTURES = np.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")])


def _read_only(value: np.ndarray) -> np.ndarray:
    value.flags.writeable = False
    return value


_ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    "backwards": lambda: np.arange(12.0)[::-1],
    "image flipped": lambda: np.arange(210, dtype=np.uint8).reshape(2, 5, 7, 3)[:, :, ::-1],
    "backwards and read-only": lambda: np.flip(np.broadcast_to(np.arange(4.0), (3, 4)), 1),
    "backwards in all dimensions": lambda: _CUBE[::-1, ::-2, ::-1],
    "large and backwards": lambda: np.arange(300_000, dtype=np.float32)[::-1],
    "one element backwards": lambda: np.zeros((1, 10, 20))[::-1],
    "Fortran order": lambda: np.asfortranarray(_CUBE),
    "strided": lambda: _CUBE[:, ::2, 1::2],
    "broadcast": lambda: np.broadcast_to(np.float32(2), (300, 1000)),
    "0-d": lambda: _read_only(np.array(7, dtype=np.int16)),
    "empty": lambda: _read_only(np.empty((0, 3), dtype=np.complex64)),
    "bool": lambda: _read_only(_CUBE > 3),
    "float16": lambda: _CUBE.astype(np.float16),
    "uint64": lambda: _CUBE.astype(np.uint64) + (1 << 63),
    "complex": lambda: _CUBE[::-1] * 1j,
    "not aligned": lambda: np.frombuffer(b"x" + _CUBE.tobytes(), dtype=np.float64, offset=1),
    "not aligned, backwards": lambda: np.frombuffer(b"x" + _CUBE.tobytes(), dtype=np.float64, offset=1)[::-1],
    "field of structures": lambda: _STRUCTURES["b"],
    "matrix": lambda: np.matrix([[1, 2], [3, 4]]),
    "small part of a large one": lambda: np.zeros((1 << 14, 1 << 12), dtype=np.uint8)[::4000, 5:9],
    "many dimensions": lambda: np.zeros((1,) * 60 + (2,)),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("name", _ARRAYS)
def test_numpy_arrays_arrive_with_their_values(peer: Peer, name: str) -> None:
    array = _ARRAYS[name]()
    (came,) = peer.invoke("echo", [array]).result()
    assert came.numpy().dtype == array.dtype
    assert came.shape == array.shape
    assert np.array_equal(came.numpy(), array)


def test_memory_mapped_arrays_arrive(peer: Peer, tmp_path: Path) -> None:
    values = np.arange(5000, dtype=np.int32)
    values.tofile(tmp_path / "values")
    for mode in ("r", "c"):
        mapped: Any = np.memmap(tmp_path / "values", dtype=np.int32, mode=mode)
        assert np.array_equal(peer.invoke("echo", mapped[::-1]).result().numpy(), values[::-1])


_REFUSED_ARRAYS = {
    "structured": (_STRUCTURES, "dtype .*'a'.* cannot be sent"),
    "big endian": (np.arange(4, dtype=">f4"), "dtype >f4 .* native byte order"),
    "objects": (np.array([None, 3], dtype=object), "dtype .*O cannot"),
    "text": (np.array(["ab", "c"]), "dtype <U2"),
    "bytes": (np.array([b"ab", b"c"]), r"dtype \|S2"),
    "dates": (np.array(["2024-01-01"], dtype="datetime64[D]"), "dtype <M8"),
    "durations": (np.array([3], dtype="timedelta64[s]"), "dtype <m8"),
    "long doubles": (np.arange(3, dtype=np.longdouble), "dtype <f16"),
    "masked": (np.ma.masked_less(np.arange(8.0), 5), "MaskedArray .* mask would be lost; send its filled"),
}


@pytest.mark.parametrize("name", _REFUSED_ARRAYS)
def test_arrays_that_no_tensor_holds_are_named(peer: Peer, name: str) -> None:
    array, pattern = _REFUSED_ARRAYS[name]
    with pytest.raises(TypeError, match=f"^argument 2.'deep'..0.: .*{pattern}"):
        peer.invoke("echo", 1, {"deep": [array]})
    assert peer.invoke("echo", 1).result() == 1


def _buffers() -> dict[str, tuple[Any, list[Any]]]:
    numbers = memoryview(np.arange(12, dtype=np.int32).data)
    return {
        "bytearray": (bytearray(b"abc"), [97, 98, 99]),
        "empty bytearray": (bytearray(), []),
        "memoryview": (memoryview(b"abc")[1:], [98, 99]),
        "memoryview with a step": (memoryview(b"abcdef")[::2], [97, 99, 101]),
        "memoryview backwards": (memoryview(b"abc")[::-1], [99, 98, 97]),
        "memoryview of integers, backwards": (numbers[::-3], [11, 8, 5, 2]),
        "memoryview of two dimensions": (memoryview(bytes(range(6))).cast("B", (2, 3)), [[0, 1, 2], [3, 4, 5]]),
        "array": (array.array("i", [1, -2]), [1, -2]),
        "ctypes": ((ctypes.c_double * 2)(1.5, 2.5), [1.5, 2.5]),
        "mmap": (mmap.mmap(-1, 4096), [0] * 4096),
    }


@pytest.mark.parametrize("name", _buffers())
def test_buffers_arrive_with_their_values(peer: Peer, name: str) -> None:
    buffer, expected = _buffers()[name]
    assert peer.invoke("echo", buffer).result().tolist() == expected


def test_buffers_that_no_tensor_holds_are_named(peer: Peer) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))

    released = memoryview(b"abc")
    released.release()
    for value, error, pattern in (
        (array.array("u", "ab"), TypeError, "format '[uw]'"),
        ((Pair * 2)(), TypeError, "format 'T"),
        ((ctypes.POINTER(ctypes.c_int) * 2)(), TypeError, "format '&"),
        (ctypes.c_longdouble(1), TypeError, "format"),
        (released, ValueError, "released"),
    ):
        with pytest.raises(error, match=f"^argument 1: .*{pattern}"):
            peer.invoke("echo", value)


def test_an_export_ends_with_its_message(peer: Peer) -> None:
    for size in (10, 100_000):
        data = bytearray(size)
        peer.invoke("echo", data).result()
        del data[1:]  # BufferError while it is exported
        assert len(data) == 1


class _Exporter:
    """An array of a library that only supports DLPack."""

    def __init__(self, tensor: Any, error: Exception | None = None) -> None:
        self._tensor, self._error = tensor, error

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **how: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._tensor.__dlpack__()


def test_dlpack_is_looked_at_before_torch_takes_it(peer: Peer) -> None:
    assert peer.invoke("echo", _Exporter(torch.arange(5))).result().tolist() == list(range(5))
    for exporter, pattern in (
        (_Exporter(np.arange(5.0)[::-1]), "negative strides"),
        (_Exporter(np.arange(5), BufferError("not for export")), "not for export"),
        (_Exporter(None), "'NoneType'"),
    ):
        with pytest.raises(TypeError, match=f"^argument 1: .*_Exporter cannot be sent as a tensor: .*{pattern}"):
            peer.invoke("echo", exporter)


def test_exporters_may_change_what_they_are_sent_in(peer: Peer) -> None:
    class Changing(_Exporter):
        def __dlpack__(self, **how: Any) -> Any:
            values.clear()
            names.clear()
            return super().__dlpack__()

    values: list[Any] = []
    names: dict[str, Any] = {}
    for container in (values, names):
        values[:] = [Changing(torch.ones(3)), "x" * 10]
        names |= {"a" * 10: Changing(torch.ones(3)), "b": 1}
        with pytest.raises(ValueError, match="has changed while it was being sent"):
            peer.invoke("echo", container)


def test_answers_are_refused_as_arguments_are(runtime: Runtime) -> None:
    answers: dict[str, Any] = {"flipped": np.arange(3)[::-1], "masked": [np.ma.masked_less(np.arange(8.0), 5)]}
    with Runtime("answers") as server:
        server.register("answer")(lambda name: answers[name])
        peer = runtime.connect(server.address)
        assert peer.invoke("answer", "flipped").result().tolist() == [2, 1, 0]
        with pytest.raises(TypeError, match=r"^the answer\[0\]: .*mask"):
            peer.invoke("answer", "masked").result()
        peer.close()


def test_arrays_travel_inside_of_a_device_context(peer: Peer) -> None:
    """Uses tensors as programs do that make models without memory."""
    sent = np.arange(100_000)
    with torch.device("meta"):
        came = peer.invoke("echo", [sent, sent[::-1], bytearray(b"ab")]).result()
    assert [tensor.device.type for tensor in came] == ["cpu"] * 3
    assert np.array_equal(came[1].numpy(), sent[::-1])
