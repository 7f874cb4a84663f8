"""What the build needs from the host: Python, its headers and venv, g++; for the tests also GoogleTest and ip.

    python3 tools/check_host.py [--tests]

Installs missing Debian packages when run as root, else names them. Runs on any Python, to say that it is too old.
"""

import os
import re
import subprocess
import sys
import sysconfig

MINIMUM_PYTHON = (3, 10)
MINIMUM_GXX = 11
CXX = os.environ.get("CXX", "g++")


def find_program(name):
    folders = os.environ.get("PATH", "").split(os.pathsep) + ["/usr/sbin", "/sbin"]
    return any(os.access(os.path.join(folder, name), os.X_OK) for folder in folders)


def has_module(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def missing_packages(for_tests):
    """Debian packages for what is not there."""
    python = "python%d.%d" % sys.version_info[:2]
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    needs = [
        ("g++", CXX != "g++" or find_program(CXX)),
        (python + "-dev", os.path.exists(header)),
        (python + "-venv", has_module("venv") and has_module("ensurepip")),
    ]
    if for_tests:
        needs += [("libgtest-dev", os.path.exists("/usr/include/gtest/gtest.h")), ("iproute2", find_program("ip"))]
    return [package for package, present in needs if not present]


def install(packages):
    command = "apt-get install -y --no-install-recommends " + " ".join(packages)
    if os.geteuid() != 0 or not find_program("apt-get"):
        sys.exit("Missing on this machine: %s. Install them first: sudo %s" % (", ".join(packages), command))
    print("Installing Debian packages: " + " ".join(packages))
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for step in ("apt-get update -qq", command.replace("install", "install -qq", 1)):
        subprocess.check_call(step.split(), env=environment, stdout=subprocess.DEVNULL)


def gxx_version():
    output = subprocess.check_output([CXX, "-dumpfullversion", "-dumpversion"]).decode()
    return int(re.match(r"\d+", output).group())


def main():
    if sys.version_info[:2] < MINIMUM_PYTHON:
        sys.exit(
            "Python %d.%d or newer is needed, %s is %d.%d: make PYTHON=/path/to/python3"
            % (MINIMUM_PYTHON + (sys.executable,) + sys.version_info[:2])
        )
    if sys.platform != "linux" or os.uname()[4] != "x86_64":
        sys.exit("torch_axon builds on Linux x86-64 only")
    packages = missing_packages("--tests" in sys.argv[1:])
    if packages:
        install(packages)
    if gxx_version() < MINIMUM_GXX:
        sys.exit("g++ %d or newer is needed, %s is %d: make CXX=g++-12" % (MINIMUM_GXX, CXX, gxx_version()))


if __name__ == "__main__":
    main()
