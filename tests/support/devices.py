"""Selects the device that holds the tensors of a test. Pool tests run once per device that a decorator here names:

    pytestmark = on_cpu_and_gpu

"cuda" gives each rank the GPU of its number; ranks share GPUs where there are fewer GPUs than ranks. "staged" is the
same without our kernels: every byte goes through the host engine. The functions of a rank run with torch's default
device set. They create tensors as if there were only one device, and call torch.get_default_device() where they need to
know it.
"""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager
from typing import Literal

import pytest
import torch

# Environment variables that a rank sets before it uses its GPU.
_ENVIRONMENTS: dict[str, dict[str, str]] = {
    "cuda": {},
    "staged": {"AXON_TRANSPORTS": "ucx"},
    "one_connection": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "launch_blocking": {"CUDA_LAUNCH_BLOCKING": "1"},
    "eager_loading": {"CUDA_MODULE_LOADING": "EAGER"},
}

_needs_gpu = (pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU"))


# For tests of features that torch supports only with one GPU per rank.
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")


def on(*devices: str, scope: Literal["function", "module"] = "function") -> pytest.MarkDecorator:
    """Runs a test with its pools on each of these devices; `scope` is the scope of its widest fixture that uses one."""
    return pytest.mark.parametrize(
        "device",
        [device if device == "cpu" else pytest.param(device, marks=_needs_gpu) for device in devices],
        scope=scope,
    )


on_cpu_and_gpu = on("cpu", "cuda")
on_every_path = on("cpu", "cuda", "staged")


def settle(device: str, rank: int) -> AbstractContextManager[object]:
    """Makes this process a rank on `device` and returns a context in which its functions run."""
    if device == "cpu":
        return contextlib.nullcontext()
    os.environ |= _ENVIRONMENTS[device]
    gpu = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    return gpu
