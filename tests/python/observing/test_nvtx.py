"""emit_nvtx names the group's calls, as a library reports that NVTX loads like a profiler's."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from support.devices import on_cpu_and_gpu
from support.pool import BACKEND, RankPool, own_rank

_COMPILER = os.environ.get("CXX", "g++")
_HEADERS = next(Path(torch.__file__).parents[1].glob("nvidia/*/include/nvtx3"), None)

pytestmark = [
    pytest.mark.skipif(shutil.which(_COMPILER) is None, reason="needs a C++ compiler"),
    pytest.mark.skipif(_HEADERS is None, reason="needs NVTX's headers, which come with torch for CUDA"),
]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    assert _HEADERS is not None
    built, source = tmp_path / "ranges.so", Path(__file__).parent / "nvtx_ranges.cpp"
    flags = ["-std=c++17", "-shared", "-fPIC", f"-I{_HEADERS.parent}"]
    subprocess.run([_COMPILER, *flags, "-o", str(built), str(source)], check=True)
    return built


def _ranges(library: str) -> list[str]:
    os.environ["NVTX_INJECTION64_PATH"] = library  # read at NVTX's first call
    dist.init_process_group(BACKEND, init_method=f"file://{library}.store", rank=own_rank(), world_size=2)
    without_gpu = mock.patch("torch.cuda.synchronize", torch.cuda.synchronize if torch.cuda.is_available() else int)
    with without_gpu, torch.autograd.profiler.emit_nvtx(record_shapes=True):
        dist.all_reduce(torch.ones(10))
        dist.all_gather_into_tensor(torch.zeros(4), torch.ones(2))
        dist.broadcast(torch.ones(3), 0, async_op=True).wait()
        if dist.get_rank() == 0:
            dist.send(torch.ones(5), 1)
        else:
            dist.recv(torch.ones(5), 0)
        dist.barrier()
    dist.all_reduce(torch.ones(11))
    dist.destroy_process_group()
    pushed = ctypes.CDLL(library).pushed_ranges
    pushed.restype = ctypes.c_char_p
    return [line for line in pushed().decode().splitlines() if line.startswith(BACKEND)]


@on_cpu_and_gpu
def test_emit_nvtx_names_operations_and_their_sizes(fresh_ranks: Callable[..., RankPool], library: Path) -> None:
    for rank, ranges in enumerate(fresh_ranks(2, meeting="none").run(_ranges, str(library), timeout_s=120)):
        names, *_ = zip(*(line.split(", ", 1) for line in ranges), strict=True)
        message = "send" if rank == 0 else "recv"
        operations = ("all_reduce", "_all_gather_base", "broadcast", message, "barrier")
        assert list(names) == [f"{BACKEND}:{operation}" for operation in operations]
        sizes = ["[[10]]", "[[2]]", "[[3]]", "[[5]]"]
        assert all(f"sizes = {each}" in line for each, line in zip(sizes, ranges, strict=False)), ranges
