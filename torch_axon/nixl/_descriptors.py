"""Makes NIXL's lists of descriptors from tensors, tuples and arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from torch_axon.nixl._enums import nixl_mem_t
from torch_axon.nixl._lists import nixlRegDList, nixlRemoteDList, nixlXferDList
from torch_axon.nixl._logging import get_logger

L = TypeVar("L", nixlXferDList, nixlRegDList, nixlRemoteDList)

KINDS = {
    "DRAM": nixl_mem_t.DRAM_SEG,
    "VRAM": nixl_mem_t.VRAM_SEG,
    "FILE": nixl_mem_t.FILE_SEG,
    "BLOCK": nixl_mem_t.BLK_SEG,
    "OBJ": nixl_mem_t.OBJ_SEG,
    "cpu": nixl_mem_t.DRAM_SEG,
    "cuda": nixl_mem_t.VRAM_SEG,
}

_log = get_logger(__name__)


def descriptors(kind: type[L], descs: Any, mem_type: str | None) -> L | None:
    """Returns a list of this class, or None, which is logged."""
    if isinstance(descs, kind):
        return descs
    if isinstance(descs, nixlXferDList | nixlRegDList | nixlRemoteDList):
        _log.error("descriptors are a %s; allowed: a %s", type(descs).__name__, kind.__name__)
        return None
    first = descs[0]
    if isinstance(first, tuple) or isinstance(descs, np.ndarray):
        return _of_numbers(kind, descs, first, mem_type)
    tensors = [descs] if _is_tensor(descs) else descs
    if isinstance(tensors, list | tuple) and all(_is_tensor(tensor) for tensor in tensors):
        return _of_tensors(kind, tensors)
    _log.error("descriptors are of type %s; allowed: tensors, tuples or a NumPy array", type(descs).__name__)
    return None


def _of_numbers(kind: type[L], descs: Any, first: Any, mem_type: str | None) -> L | None:
    arity = 3 if isinstance(descs, np.ndarray) else kind._arity()
    if mem_type is None:
        _log.error("descriptors are numbers, without a mem_type")
        return None
    if (isinstance(descs, np.ndarray) and descs.ndim != 2) or len(first) != arity:
        _log.error("descriptors have %s elements; allowed: %d", len(np.atleast_1d(first)), arity)
        return None
    return kind(KINDS[mem_type], descs)


def _of_tensors(kind: type[L], tensors: Sequence[Any]) -> L | None:
    if any(tensor.device != tensors[0].device for tensor in tensors):
        _log.error("tensors are on several devices; allowed: one")
        return None
    if not all(tensor.is_contiguous() for tensor in tensors):
        _log.error("a tensor is not contiguous")
        return None
    gpu = tensors[0].get_device()
    rows = [(tensor.data_ptr(), tensor.numel() * tensor.element_size(), max(gpu, 0)) for tensor in tensors]
    made = kind(nixl_mem_t.DRAM_SEG if gpu < 0 else nixl_mem_t.VRAM_SEG, np.array(rows, dtype=np.uint64).reshape(-1, 3))
    if isinstance(made, nixlRegDList):
        made.own(tensors)
    return made


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
