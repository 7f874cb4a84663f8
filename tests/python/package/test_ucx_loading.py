"""UCX is loaded by the processes that need it, and by no others. One that cannot be loaded is an error that says so."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.gpu import backend_of
from support.pool import RankPool, own_rank
from support.processes import environment
from torch_axon import _build, _native

_ROOT = Path(__file__).parents[3]
_HEADER = _ROOT / "csrc" / "transport" / "ucx" / "ucx_library.hpp"
_WITHOUT_RINGS = "ucx,cuda"

pytestmark = pytest.mark.skipif(_build.UCX_ROOT is not None, reason="this build has a UCX of its own, not the wheel's")


def _libraries() -> set[str]:
    """Returns UCX's libraries in this process."""
    return set(re.findall(r"/\S*/libuc[mpst]\.so\S*", Path("/proc/self/maps").read_text()))


def _variable(name: str) -> str | None:
    """Returns what C sees: Python reads the environment only once."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value: bytes | None = getenv(name.encode())
    return value.decode() if value is not None else None


def _reduce(store: str, transports: str | None) -> tuple[set[str], set[str], float, list[str | None]]:
    """Returns UCX's libraries, what carries messages, a sum, and the variables that UCX reads while it is loaded."""
    os.environ.pop("AXON_TRANSPORTS", None)
    if transports:
        os.environ["AXON_TRANSPORTS"] = transports
    dist.init_process_group("axon", init_method=f"file://{store}", rank=own_rank(), world_size=2)
    data = torch.full((200_000,), float(own_rank() + 1))
    dist.all_reduce(data)
    lanes = {name for name, _ in backend_of().path_to(1 - own_rank())["lanes"]}
    dist.destroy_process_group()
    return _libraries(), lanes, float(data[-1]), [_variable(name) for name in ("UCX_MEM_EVENTS", "UCX_LOG_LEVEL")]


@pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="by default, hosts with RDMA devices use UCX")
def test_a_job_of_one_host_loads_no_ucx_by_default(tmp_path: Path) -> None:
    with RankPool(2, meeting="none") as ranks:
        for libraries, lanes, total, _ in ranks.run(_reduce, str(tmp_path / "store"), None):
            assert libraries == set()
            assert "ring" in lanes
            assert total == 3


def test_a_job_that_names_ucx_loads_that_of_the_wheel(tmp_path: Path) -> None:
    folder = _native._folder_of_ucx()
    assert folder is not None
    with RankPool(2, meeting="none") as ranks:
        for libraries, lanes, total, variables in ranks.run(_reduce, str(tmp_path / "store"), _WITHOUT_RINGS):
            assert {Path(each).name.partition(".")[0] for each in libraries} == {"libucm", "libucp", "libucs", "libuct"}
            assert {str(Path(each).parent) for each in libraries} == {folder}
            assert "posix" in lanes
            assert total == 3
            assert variables == [os.environ.get("UCX_MEM_EVENTS"), os.environ.get("UCX_LOG_LEVEL")]


_START = """
import sys
import torch.distributed as dist
from torch_axon import _native
_native._folder_of_ucx = lambda: sys.argv[1]
dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
"""


def _start_with(folder: Path, transports: str) -> str:
    """Starts a group of one rank whose UCX is in this folder, and returns its error."""
    command = [sys.executable, "-c", _START, str(folder)]
    started = subprocess.run(
        command,
        env=environment() | {"AXON_TRANSPORTS": transports},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (started.returncode == 0) == (started.stderr == ""), started.stderr
    return started.stderr


def test_a_missing_ucx_is_named_with_its_path_and_what_to_do(tmp_path: Path) -> None:
    error = _start_with(tmp_path, _WITHOUT_RINGS)
    assert f"UCX cannot be loaded: {tmp_path}/libucp.so.0: cannot open shared object file" in error
    assert "pip install --force-reinstall libucx-cu13" in error
    assert "AXON_TRANSPORTS=rails,rings,cma,cuda" in error


def test_a_missing_ucx_does_no_harm_where_it_is_not_needed(tmp_path: Path) -> None:
    assert _start_with(tmp_path, "rails,rings,cma,cuda") == ""


def _compile_ucx(folder: Path, functions: list[str], version: tuple[int, int]) -> None:
    """Compiles a library with UCX's name, whose functions do nothing but tell its version."""
    major, minor = version
    tells = (
        "void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release)"
        f"{{ *major = {major}; *minor = {minor}; *release = 0; }}"
    )
    source = folder / "ucp.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in functions if name != "ucp_get_version") + tells)
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libucp.so.0", "-o", folder / "libucp.so.0", source]
    subprocess.run(command, check=True)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_ucx_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    functions = re.findall(r'find\("(\w+)"\)', _HEADER.read_text())
    _compile_ucx(tmp_path, functions, (1, 15))
    error = _start_with(tmp_path, _WITHOUT_RINGS)
    assert re.search(f"{tmp_path}/libucp.so.0 is UCX 1.15.0, but UCX 1.[0-9]+ is needed", error), error

    _compile_ucx(tmp_path, [name for name in functions if name != "ucp_ep_query"], (1, 15))
    error = _start_with(tmp_path, _WITHOUT_RINGS)
    assert f"{tmp_path}/libucp.so.0 has no function ucp_ep_query" in error
