"""How much memory is left for buffers, and what the kernel's files say of it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
# Where cgroups with these controllers are mounted, their limit and what counts against it: version 2 and 1.
_LIMITS = {
    "": ("", "memory.max", "memory.current"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def free_bytes(device: str) -> int:
    """Of this rank's GPU, or its share of what its host and its cgroups have available."""
    if device == "cuda":
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + cached
    host = numbers_of(Path("/proc/meminfo"))["MemAvailable"] * 1024
    return min([host, *_left_by_cgroups()]) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def numbers_of(path: Path) -> dict[str, int]:
    """Of one of proc(5)'s or a cgroup's files with a name and a number on a line; other lines are left out."""
    return {name: int(number) for name, number in re.findall(r"(?m)^(\w+):?[ \t]+(\d+)", path.read_text("ascii"))}


def _left_by_cgroups() -> Iterator[int]:
    """Bytes, by each limit of this process and of what it is in. What files have cached can be dropped, and is free."""
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
