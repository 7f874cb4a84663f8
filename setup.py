"""Builds torch_axon._C with CMake, in place or for a wheel, and records what it was built against.

Environment: AXON_CUDA=0 builds without device code. AXON_CUDA_ARCHITECTURES says for which GPUs it is compiled (90:
compute capability 9.0); by default for this machine's. AXON_CUDA_ROOT and AXON_UCX_ROOT name the toolchains (cmake/).
AXON_BUILD_DIR is a build folder that is kept between builds, AXON_TESTS=1 also builds the core's tests there.
"""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import cmake
import ninja
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

VERSION = "0.1.0"
ROOT = Path(__file__).resolve().parent
TORCH_VERSION = version("torch").split("+")[0]
TORCH_MAJOR, TORCH_MINOR = (int(part) for part in TORCH_VERSION.split(".")[:2])
UCX_ROOT = os.environ.get("AXON_UCX_ROOT") or None
CUDA = os.environ.get("AXON_CUDA", "1") != "0"


def find_cuda_root() -> str:
    """Returns the folder of the CUDA wheels with nvcc, or an empty string; CMake then says what is missing."""
    if root := os.environ.get("AXON_CUDA_ROOT"):
        return root
    spec = find_spec("nvidia.cu13") if find_spec("nvidia") else None
    folders = spec.submodule_search_locations if spec else None
    return next((folder for folder in folders or () if Path(folder, "bin/nvcc").exists()), "")


def find_architectures() -> str:
    """Returns what AXON_CUDA_ARCHITECTURES says, or the architectures of this machine's GPUs, or Hopper."""
    if architectures := os.environ.get("AXON_CUDA_ARCHITECTURES"):
        return ";".join(architectures.replace(",", " ").split())
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True).stdout if shutil.which(query[0]) else ""
    return ";".join(sorted({line.replace(".", "") for line in listed.split()})) or "90"


def requirements() -> list[str]:
    """torch changes its Backend class between minor versions, so the wheel runs on the one it was built against."""
    torch_range = f"torch>={TORCH_MAJOR}.{TORCH_MINOR},<{TORCH_MAJOR}.{TORCH_MINOR + 1}"
    return [torch_range] if UCX_ROOT else [torch_range, "libucx-cu13>=1.22,<1.23"]


def run_quietly(command: list[str | Path]) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.exit(result.stdout)


def record_build(path: Path) -> None:
    facts = {"VERSION": VERSION, "TORCH_VERSION": TORCH_VERSION, "UCX_ROOT": UCX_ROOT, "CUDA": CUDA}
    types = {"VERSION": "str", "TORCH_VERSION": "str", "UCX_ROOT": "str | None", "CUDA": "bool"}
    lines = [f"{name}: {types[name]} = {value!r}\n" for name, value in facts.items()]
    path.write_text('"""Written by setup.py: what this build was made of."""\n\n' + "".join(lines))


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        prefix = Path(self.get_ext_fullpath(ext.name)).resolve().parent.parent
        build_dir = Path(os.environ.get("AXON_BUILD_DIR", self.build_temp)).resolve()
        tests = os.environ.get("AXON_TESTS", "0") != "0"
        executable = str(Path(cmake.CMAKE_BIN_DIR, "cmake"))
        options = {
            "CMAKE_MAKE_PROGRAM": Path(ninja.BIN_DIR, "ninja"),
            "AXON_PYTHON": sys.executable,
            "AXON_TORCH": "ON",
            "AXON_TESTS": "ON" if tests else "OFF",
            "AXON_CUDA": "ON" if CUDA else "OFF",
            "AXON_CUDA_ROOT": find_cuda_root() if CUDA else "",
            "CMAKE_CUDA_ARCHITECTURES": find_architectures() if CUDA else "",
            "AXON_UCX_ROOT": UCX_ROOT or "",
        }
        definitions = [f"-D{name}={value}" for name, value in options.items()]
        run_quietly([executable, "-S", ROOT, "-B", build_dir, "-G", "Ninja", *definitions])
        target = "all" if tests else ext.name.rpartition(".")[2]
        if subprocess.run([executable, "--build", build_dir, "--target", target]).returncode != 0:
            sys.exit("torch_axon does not compile: see the compiler's message above")
        run_quietly([executable, "--install", build_dir, "--component", "python", "--prefix", prefix])
        record_build(prefix / "torch_axon" / "_build.py")

    def copy_extensions_to_source(self) -> None:
        """Runs setuptools' steps after a build in place, which copy only the extension."""
        super().copy_extensions_to_source()
        include = Path("torch_axon", "include")
        shutil.copytree(Path(self.build_lib).resolve() / include, ROOT / include, dirs_exist_ok=True)
        record_build(ROOT / "torch_axon" / "_build.py")


setup(
    version=f"{VERSION}+torch{TORCH_MAJOR}.{TORCH_MINOR}",
    install_requires=requirements(),
    ext_modules=[Extension("torch_axon._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
