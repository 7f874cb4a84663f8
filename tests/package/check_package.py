"""Installs the package into a separate folder, compiles each header alone, and runs the examples.

ctest (`package`) runs it, and passes the build folder and its tools. Every step has a deadline.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEP_S = 240
EXAMPLE_S = 60
NOT_OURS = re.compile(r"#\s*include\s*<(torch|c10|ATen|pybind11|Python|ucp|uct|ucs)\b")

HEADERS_PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(headers LANGUAGES CXX)
find_package(axon 0.1 REQUIRED)
file(GLOB sources *.cpp)
add_library(headers OBJECT ${sources})
target_link_libraries(headers PRIVATE axon::axon)
target_compile_options(headers PRIVATE -Wall -Wextra -Werror)
"""


class PackageError(Exception):
    """An error that says what was expected, and what happened."""


def run(*command: str | Path, seconds: float = STEP_S) -> str:
    ended = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
    )
    if ended.returncode != 0:
        raise PackageError(f"{command[0]} exited with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


class Package:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.prefix = folder / "prefix"

    def install(self) -> None:
        run(self.options.cmake, "--install", self.options.build, "--component", "library", "--prefix", self.prefix)

    def configure(self, source: Path, name: str) -> Path:
        build = self.folder / name
        tools = [
            f"-DCMAKE_MAKE_PROGRAM={self.options.generator_program}",
            f"-DCMAKE_CXX_COMPILER={self.options.compiler}",
            f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DAXON_UCX_ROOT={self.options.ucx}",
        ]
        run(self.options.cmake, "-S", source, "-B", build, "-G", "Ninja", *tools)
        return build

    def build(self, source: Path, name: str) -> Path:
        build = self.configure(source, name)
        run(self.options.cmake, "--build", build)
        return build


def check_headers(package: Package) -> None:
    """Checks that each header compiles alone, and includes only the standard library."""
    include = package.prefix / "include"
    source = package.folder / "headers"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(HEADERS_PROJECT)
    headers = sorted(include.rglob("*.hpp"))
    if include / "axon" / "axon.hpp" not in headers:
        raise PackageError(f"axon/axon.hpp is not among what is installed: {headers}")
    for number, header in enumerate(headers):
        if found := NOT_OURS.search(header.read_text()):
            raise PackageError(f"{header} includes {found[1]}")
        (source / f"{number}.cpp").write_text(f"#include <{header.relative_to(include)}>\n")
    package.build(source, "headers-build")


def check_version(package: Package) -> None:
    """Checks that the package has a version, which find_package compares."""
    version = (package.prefix / "lib").parent.rglob("axon-config-version.cmake")
    if not re.search(r'set\(PACKAGE_VERSION "\d+\.\d+\.\d+"\)', next(version).read_text()):
        raise PackageError("the package has no version")


def run_together(server: list[str], others: list[list[str]], **settings: str) -> None:
    """Waits until all processes have ended, and ends those that are left at the deadline."""
    environment = os.environ | settings
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        for command in [server, *others]
    ]
    try:
        for process in running:
            said, _ = process.communicate(timeout=EXAMPLE_S)
            print(said.decode().strip(), flush=True)
            if process.returncode != 0:
                raise PackageError(f"{process.args!r} exited with {process.returncode}: {said.decode()}")
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--build", "--cmake", "--generator-program", "--compiler", "--ucx"):
        parser.add_argument(name, type=Path, required=True)
    with tempfile.TemporaryDirectory(prefix="axon-package-") as folder:
        package = Package(parser.parse_args(), Path(folder))
        package.install()
        check_headers(package)
        check_version(package)
        examples = package.build(ROOT / "examples" / "cpp", "examples")
        server, service = str(examples / "parameter_server"), str(examples / "data_service")
        meeting = [str(Path(folder) / name) for name in ("weights", "batches", "batches-over-ucx")]
        run_together([server, "serve", meeting[0], "2"], [[server, "work", meeting[0], str(seed)] for seed in (1, 2)])
        run_together([service, "serve", meeting[1]], [[service, "train", meeting[1], "300"]])
        # These find UCX in the folder that their build was given.
        over_ucx = {"AXON_TRANSPORTS": "ucx"}
        run_together([service, "serve", meeting[2]], [[service, "train", meeting[2], "300"]], **over_ucx)
    return 0


if __name__ == "__main__":
    sys.exit(main())
