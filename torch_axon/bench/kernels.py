"""Finds the kernels of a call and their sizes in a trace of torch's profiler."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_CALLS = 3  # per trace: the profiler may miss the first ones


@dataclass(frozen=True)
class Kernel:
    name: str
    blocks: int
    threads: int  # per block


@dataclass(frozen=True)
class Footprint:
    """The work that a call enqueues on the GPU: each kernel once, in order, and the number of copies."""

    kernels: tuple[Kernel, ...]
    copies: int

    @property
    def multiprocessors(self) -> int:
        """A GPU gives every multiprocessor one block before any gets a second one."""
        available = torch.cuda.get_device_properties().multi_processor_count
        return min(available, max((kernel.blocks for kernel in self.kernels), default=0))


def footprint_of(call: Callable[[], object]) -> Footprint:
    """Traces a few calls. Run this last, because the profiler affects later timings."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(_CALLS):
            call()
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_trace(json.loads(path.read_text(encoding="utf-8")), _CALLS)


def read_trace(trace: Mapping[str, Any], num_calls: int) -> Footprint:
    """Reads the kernels from a trace in Chrome's format with `num_calls` calls."""
    events = [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy")]
    kernels = [
        Kernel(_short(event["name"]), prod(event["args"]["grid"]), prod(event["args"]["block"]))
        for event in events
        if event["cat"] == "kernel"
    ]
    num_copies = len(events) - len(kernels)
    return Footprint(tuple(dict.fromkeys(kernels)), -(-num_copies // num_calls))


def _short(name: str) -> str:
    """Returns the name of a kernel without return type, arguments and template arguments."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return name.partition("(")[0].partition("<")[0]
