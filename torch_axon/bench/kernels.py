"""Which kernels a call launches and how large they are, read off the trace of torch's profiler."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_CALLS = 3  # in a trace: the profiler may miss what comes first


@dataclass(frozen=True)
class Kernel:
    name: str
    blocks: int
    threads: int  # of a block


@dataclass(frozen=True)
class Footprint:
    """What a call puts on the GPU: each kernel once, in order, and how many copies."""

    kernels: tuple[Kernel, ...]
    copies: int

    @property
    def multiprocessors(self) -> int:
        """A GPU spreads blocks over its multiprocessors before any gets a second one."""
        available = torch.cuda.get_device_properties().multi_processor_count
        return min(available, max((kernel.blocks for kernel in self.kernels), default=0))


def footprint_of(call: Callable[[], object]) -> Footprint:
    """Makes the call a few times. The profiler leaves traces of its own in what is timed after it."""
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
    """Of a trace in Chrome's format that holds `num_calls` calls."""
    events = [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy")]
    kernels = [
        Kernel(_short(event["name"]), prod(event["args"]["grid"]), prod(event["args"]["block"]))
        for event in events
        if event["cat"] == "kernel"
    ]
    num_copies = len(events) - len(kernels)
    return Footprint(tuple(dict.fromkeys(kernels)), -(-num_copies // num_calls))


def _short(name: str) -> str:
    """Without return type, arguments and what templates are made for."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return name.partition("(")[0].partition("<")[0]
