"""What this process holds of its GPUs' memory: contexts, kernels, tensors, arenas; not what other processes hold."""

from __future__ import annotations

import ctypes
import functools
import os

import torch

# More never share a GPU in tests.
_MOST_PROCESSES = 1024
_NOT_AVAILABLE = (1 << 64) - 1


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of nvml.h."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("num_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@functools.cache
def _nvml() -> ctypes.CDLL:
    """Of the driver; kept, for each opening costs descriptors anew."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit_v2() == 0
    return library


def _by_driver() -> int:
    """Bytes; 0 where the driver knows this process by the number that another container gives it."""
    nvml, count, total = _nvml(), ctypes.c_uint(), 0
    assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    for index in range(count.value):
        gpu, length, processes = ctypes.c_void_p(), ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)) == 0
        assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, ctypes.byref(length), processes) == 0
        own = (each.num_bytes for each in processes[: length.value] if each.pid == os.getpid())
        total += sum(num_bytes for num_bytes in own if num_bytes != _NOT_AVAILABLE)
    return total


def held_kib() -> int:
    """0 without a GPU. What torch only keeps for later is given back first. Where the driver does not tell, torch's
    tensors alone.
    """
    if torch.get_default_device().type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return max(_by_driver(), torch.cuda.memory_reserved()) >> 10
