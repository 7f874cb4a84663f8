"""The build takes UCX and CUDA from the given paths, or reports what is missing, and uses all allowed processors."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cmake
import ninja
import pytest

ROOT = Path(__file__).parents[2]
NINJA = Path(ninja.BIN_DIR, "ninja")
BUILD_DIR = ROOT / "build" / Path(sys.prefix).name.removeprefix(".")
PRESETS = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))["configurePresets"]


def run_cmake(folder: Path, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    options = {"CMAKE_MAKE_PROGRAM": NINJA, "AXON_PYTHON": sys.executable, **options}
    command = [Path(cmake.CMAKE_BIN_DIR, "cmake"), "-S", ROOT, "-B", folder, *arguments]
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    return subprocess.run([*command, *definitions], capture_output=True, text=True, check=False, cwd=ROOT)


def configure(folder: Path, **options: object) -> str:
    """Returns CMake's error message when it fails."""
    result = run_cmake(folder, "-G", "Ninja", AXON_TESTS="OFF", **options)
    assert result.returncode != 0
    return " ".join(result.stderr.split())


@pytest.mark.parametrize("preset", [preset["name"] for preset in PRESETS if not preset.get("hidden")])
def test_presets_can_be_configured(preset: str, tmp_path: Path) -> None:
    if preset == "fuzz" and shutil.which("clang++") is None:
        pytest.skip("needs clang++")
    result = run_cmake(tmp_path, "--preset", preset, AXON_CUDA="OFF")
    assert result.returncode == 0, result.stderr


@pytest.fixture
def host_with_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provides a CUDA toolkit that all of the host's settings point to."""
    nvcc = tmp_path / "host" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDAToolkit_ROOT"):
        monkeypatch.setenv(name, str(tmp_path / "host"))
    monkeypatch.setenv("CUDACXX", str(nvcc))
    monkeypatch.setenv("PATH", f"{nvcc.parent}:{os.environ['PATH']}")
    return tmp_path / "build"


def test_missing_ucx_wheel_is_named(tmp_path: Path) -> None:
    message = configure(tmp_path, AXON_CUDA="OFF", AXON_PYTHON="/bin/false", AXON_UCX_ROOT="")
    assert "UCX is missing: /bin/false has no package libucx. Install libucx-cu13" in message


def test_ucx_root_without_ucx_is_refused(tmp_path: Path) -> None:
    message = configure(tmp_path / "build", AXON_CUDA="OFF", AXON_UCX_ROOT=tmp_path)
    assert f"No UCX 1.20 or newer under {tmp_path}" in message


def test_missing_nvcc_is_named_although_the_host_has_one(host_with_cuda: Path) -> None:
    message = configure(host_with_cuda, AXON_CUDA="ON", AXON_CUDA_ROOT=host_with_cuda)
    assert "CUDA's bin/nvcc is missing" in message
    assert "AXON_CUDA=0" in message


@pytest.mark.skipif(not (BUILD_DIR / "build.ninja").exists(), reason="nothing is built for this environment")
def test_build_used_no_ucx_or_cuda_of_the_host() -> None:
    output = subprocess.run([NINJA, "-C", BUILD_DIR, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    files = {Path(line.strip()) for line in output.splitlines() if line.startswith("    ")}
    foreign = {file for file in files if file.name in ("ucp.h", "cuda.h", "cuda_runtime.h", "host_config.h")}
    pinned = (Path(sys.prefix), Path(os.environ.get("AXON_UCX_ROOT") or sys.prefix))
    assert foreign
    assert [file for file in foreign if not any(file.is_relative_to(folder) for folder in pinned)] == []


def test_build_uses_all_processors_whatever_openmp_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOBS", "MAKEFLAGS", "CMAKE_BUILD_PARALLEL_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    show = "--eval=jobs: ; @echo $(JOBS) $(CMAKE_BUILD_PARALLEL_LEVEL)"
    shown = subprocess.run(["make", "-s", show, "jobs"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    num_processors = str(len(os.sched_getaffinity(0)))
    assert shown.split() == [num_processors, num_processors]
