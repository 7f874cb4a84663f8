"""Measures this process's share of GPU memory: contexts, kernels, tensors and arenas, without other processes."""

from __future__ import annotations

import ctypes
import functools
import os

import torch

# Tests never share a GPU among more processes.
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
    """Returns the driver's library. The handle is cached, because each opening costs new descriptors."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit_v2() == 0
    return library


def _by_driver() -> int:
    """Returns bytes, or 0 where the driver knows this process by the process id of another container."""
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
    """Returns KiB, or 0 if there is no GPU. First, frees what torch only caches.

    If the driver does not report processes, this counts torch's tensors only.
    """
    if torch.get_default_device().type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return max(_by_driver(), torch.cuda.memory_reserved()) >> 10
