"""Determines from the kernel's files how much memory is available for buffers."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
# Mount points of cgroups, versions 2 and 1, with the files of their limit and of their use.
_LIMITS = {
    "": ("", "memory.max", "memory.current"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def free_bytes(device: str) -> int:
    """Returns the bytes free on this rank's GPU, or its share of what host and cgroups have available."""
    if device == "cuda":
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + cached
    host = numbers_of(Path("/proc/meminfo"))["MemAvailable"] * 1024
    return min([host, *_left_by_cgroups()]) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def numbers_of(path: Path) -> dict[str, int]:
    """Reads a file of proc(5) or of a cgroup with a name and a number per line; other lines are skipped."""
    return {name: int(number) for name, number in re.findall(r"(?m)^(\w+):?[ \t]+(\d+)", path.read_text("ascii"))}


def _left_by_cgroups() -> Iterator[int]:
    """Yields the bytes available under each limit of this process and its cgroups. File caches count as free."""
    for line in _OWN_CGROUPS.read_text("ascii").splitlines() if _OWN_CGROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in _LIMITS:
            continue
        mount, limit_name, usage_name = _LIMITS[controllers]
        own = _CGROUPS / mount / path.lstrip("/")
        for folder in (own, *own.parents):
            limit = folder / limit_name
            if limit.exists() and (most := limit.read_text("ascii").strip()) != "max":
                cached = numbers_of(folder / "memory.stat").get("inactive_file", 0)
                yield int(most) - int((folder / usage_name).read_text("ascii")) + cached
