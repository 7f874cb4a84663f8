"""Facts that one rank collects without communication: versions, paths of libraries, limits."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
from dataclasses import dataclass, field
from pathlib import Path

import torch

from torch_axon import _build, _native

_NAMESPACES = ("pid", "net", "ipc")
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Limits:
    """Limits of this process; None means that there is no such limit."""

    cpus: int  # on which this process may run
    shm_mib: int | None  # size of /dev/shm
    shm_free_mib: int | None
    open_files: int
    files_open: int  # now
    locked_kib: int | None
    ptrace_scope: int | None  # of Yama


@dataclass(frozen=True)
class Facts:
    """What one rank found out about itself."""

    rank: int
    hostname: str
    pid: int
    boot: str  # the kernel's boot id, equal in all containers of a host
    namespaces: dict[str, int]
    versions: dict[str, str]
    places: dict[str, str]  # paths of the libraries
    settings: dict[str, str]  # AXON_* and UCX_* in the environment
    unknown_settings: list[str]
    limits: Limits
    gpus: list[str]
    gpu: int | None = None  # index of this rank's GPU
    rdma: list[str] = field(default_factory=list)  # network adapters that UCX with verbs could use
    failure: str | None = None  # why the extension cannot be loaded


def collect(rank: int, local_rank: int) -> Facts:
    """Collects the facts about this process.

    Args:
        rank: its rank in the job
        local_rank: its rank on the host, which selects its GPU
    """
    failure, known = _load()
    environment = {name: value for name, value in sorted(os.environ.items()) if name.startswith(("AXON_", "UCX_"))}
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Facts(
        rank=rank,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        boot=_text("/proc/sys/kernel/random/boot_id"),
        namespaces={name: os.stat(f"/proc/self/ns/{name}").st_ino for name in _NAMESPACES},
        versions=_versions(),
        places=_places(),
        settings=environment,
        unknown_settings=[
            name
            for name in environment
            if name.startswith("AXON_") and not name.startswith("AXON_UCX_") and known and name not in known
        ],
        limits=_limits(),
        gpus=gpus,
        gpu=local_rank % len(gpus) if gpus else None,
        rdma=sorted(path.name for path in Path("/sys/class/infiniband").glob("*")),
        failure=failure,
    )


def _load() -> tuple[str | None, set[str]]:
    """Returns why the extension cannot be loaded, or None, and the names of its settings."""
    try:
        return None, {row["name"] for row in _native.load().settings()}
    except ImportError as error:
        return str(error), set()


def _versions() -> dict[str, str]:
    return {
        "torch_axon": _build.VERSION,
        "built for torch": _build.TORCH_VERSION,
        "built with CUDA": "yes" if _build.CUDA else "no",
        "torch": torch.__version__,
        "UCX": _ucx_version(),
        "CUDA of torch": torch.version.cuda or "none",
        "CUDA driver": _driver_version() or "none",
        "Python": platform.python_version(),
        "Linux": platform.release(),
    }


def _places() -> dict[str, str]:
    mapped = {line.split(maxsplit=5)[5] for line in _text("/proc/self/maps").splitlines() if line.count("/")}
    wanted = {"torch_axon": "/torch_axon/_C.", "UCX": "/libucp", "CUDA driver": "/libcuda.so"}
    found = {
        title: next((path for path in sorted(mapped) if part in path), "not loaded") for title, part in wanted.items()
    }
    return found | {"torch": str(Path(torch.__file__).parent)}


def _ucx_version() -> str:
    """Returns the version of UCX, which is loaded for that, whether this rank needs it or not."""
    try:
        version: str = _native.load().ucx_version()
    except (ImportError, RuntimeError):
        return "not loaded"
    return version


def _driver_version() -> str | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _limits() -> Limits:
    shm = os.statvfs(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() else None
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    scope = _text("/proc/sys/kernel/yama/ptrace_scope")
    return Limits(
        cpus=len(os.sched_getaffinity(0)),
        shm_mib=shm.f_blocks * shm.f_frsize >> 20 if shm else None,
        shm_free_mib=shm.f_bavail * shm.f_frsize >> 20 if shm else None,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        files_open=len(os.listdir("/proc/self/fd")),
        locked_kib=None if locked == resource.RLIM_INFINITY else locked >> 10,
        ptrace_scope=int(scope) if scope else None,
    )


def _text(path: str) -> str:
    """Returns the text of a file, or an empty text if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
