"""Checks what the build needs from the host: Python with its headers and venv, and g++. The tests also need GoogleTest
and ip, fuzzing needs clang and its runtime.

    python3 tools/check_host.py [--tests] [--fuzz] [--environment FOLDER]

Installs missing Debian packages if it runs as root, and otherwise names them. Runs on Python 3.6, to report that Python
is too old.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig

MINIMUM_PYTHON = (3, 10)
MINIMUM_GXX = 11
CXX = os.environ.get("CXX", "g++")


def dotted(version: "tuple[int, int]") -> str:
    return f"{version[0]}.{version[1]}"


def has_fuzzer() -> bool:
    clang = shutil.which("clang++")
    if clang is None:
        return False
    command = [clang, "--print-file-name=libclang_rt.fuzzer-x86_64.a"]
    return os.path.exists(subprocess.check_output(command).decode().strip())


def missing_packages(for_tests: bool, for_fuzzing: bool = False) -> "list[str]":
    """Returns the Debian packages that are missing."""
    python = "python" + dotted(sys.version_info[:2])
    python_header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    present = {
        "g++": CXX != "g++" or shutil.which(CXX) is not None,
        python + "-dev": os.path.exists(python_header),
        python + "-venv": importlib.util.find_spec("ensurepip") is not None,
        "libgtest-dev": not for_tests or os.path.exists("/usr/include/gtest/gtest.h"),
        "iproute2": not for_tests or shutil.which("ip", path=os.environ["PATH"] + ":/usr/sbin:/sbin") is not None,
    }
    missing = [package for package in present if not present[package]]
    return missing + (["clang", "libclang-rt-dev"] if for_fuzzing and not has_fuzzer() else [])


def install(packages: "list[str]") -> None:
    arguments = ["install", "-y", "--no-install-recommends", *packages]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"Missing: {', '.join(packages)}. Install them first: sudo apt-get {' '.join(arguments)}")
    print("Installing Debian packages:", *packages, flush=True)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for step in (["update"], arguments):
        subprocess.check_call(["apt-get", "-qq", *step], env=environment, stdout=subprocess.DEVNULL)


def gxx_version() -> int:
    return int(subprocess.check_output([CXX, "-dumpversion"]).decode().split(".")[0])


def check_python() -> None:
    if sys.version_info < MINIMUM_PYTHON:
        found = f"{sys.executable} is {dotted(sys.version_info[:2])}"
        sys.exit(f"Python {dotted(MINIMUM_PYTHON)} or newer is needed, {found}: make PYTHON=/path/to/a/newer/python3")
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        sys.exit("torch_axon builds on Linux x86-64 only")


def check_environment(folder: str) -> None:
    """An environment keeps the Python that it was made with, regardless of a later PYTHON."""
    config = os.path.join(folder, "pyvenv.cfg")
    if not os.path.exists(config):
        return
    with open(config) as lines:
        match = re.search(r"^version\S* = (\d+\.\d+)", lines.read(), re.MULTILINE)
    wanted = dotted(sys.version_info[:2])
    if match and match.group(1) != wanted:
        sys.exit(f"{folder} was made with Python {match.group(1)}, not {wanted}: remove it or give VENV=another-folder")


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks what the build needs from the host.")
    parser.add_argument("--tests", action="store_true", help="also what the tests need")
    parser.add_argument("--fuzz", action="store_true", help="also what fuzzing needs")
    parser.add_argument("--environment", default="", help="virtual environment that must be of this Python")
    arguments = parser.parse_args()
    check_python()
    check_environment(arguments.environment)
    packages = missing_packages(arguments.tests, arguments.fuzz)
    if packages:
        install(packages)
    if gxx_version() < MINIMUM_GXX:
        sys.exit(f"g++ {MINIMUM_GXX} or newer is needed, {CXX} is {gxx_version()}: make CXX=/path/to/a/newer/g++")


if __name__ == "__main__":
    main()
