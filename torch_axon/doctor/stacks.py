"""Finds the line of the program that another process executes, by py-spy.

py-spy reads the memory of the process, without stopping it and without its help. Reading needs more rights than the
status page: those of a debugger.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

import torch_axon

_TIMEOUT_S = 20
_MOST_AT_ONCE = 8
_PACKAGES = re.compile(r"/(site|dist)-packages/(torch|torch_axon)/")
_FOLDERS = tuple(os.path.dirname(os.path.abspath(str(package.__file__))) + "/" for package in (torch, torch_axon))
_PERMISSION = re.compile(r"permission denied|not permitted|root", re.IGNORECASE)
INSTALL = "lines of the programs are not shown, because py-spy is not installed: pip install py-spy"
_REMEDY = "run the doctor as root, set kernel.yama.ptrace_scope to 0, or start containers with --cap-add=SYS_PTRACE"


@dataclass(frozen=True)
class Stacks:
    """Where the threads of one process are."""

    lines: dict[int, str] = field(default_factory=dict)  # by the thread's id in the kernel
    failure: str = ""

    def line(self, pid: int, waiter: int) -> str:
        """Returns the line of the waiting thread, or else of the main thread."""
        return self.lines.get(waiter) or self.lines.get(pid, "")


def _is_ours(frame: dict[str, Any]) -> bool:
    file = str(frame["filename"])
    return file.startswith(("<frozen", *_FOLDERS)) or _PACKAGES.search(file) is not None


def _line_of(frames: Sequence[dict[str, Any]]) -> str:
    """Returns the innermost frame outside torch and torch_axon, such as "train.py:12, in step"."""
    for frame in frames:
        if not _is_ours(frame):
            return f"{frame['filename']}:{frame['line']}, in {frame['name']}"
    return ""


def _parse(dump: str) -> Stacks:
    threads = json.loads(dump)
    lines = {thread["os_thread_id"]: _line_of(thread["frames"]) for thread in threads}
    return Stacks({thread: line for thread, line in lines.items() if line})


def find_tool() -> str | None:
    """Returns the path of py-spy: beside this interpreter, or in PATH."""
    beside = os.path.dirname(sys.executable)
    return shutil.which("py-spy", path=beside) or shutil.which("py-spy")


def _dump(tool: str, pid: int) -> Stacks:
    command = [tool, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode == 0:
            return _parse(done.stdout)
        reason = next((line.strip() for line in done.stderr.splitlines() if line.strip()), "no reason given")
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_TIMEOUT_S} s"
    except (OSError, ValueError, KeyError, TypeError) as error:  # another version of py-spy
        reason = f"{type(error).__name__}: {error}"
    remedy = f": {_REMEDY}" if _PERMISSION.search(reason) else ""
    return Stacks(failure=f"py-spy cannot read process {pid} ({reason.removeprefix('Error: ')}){remedy}")


def stacks_of(pids: Sequence[int], tool: str) -> dict[int, Stacks]:
    """Returns where the threads of each process are, or why that cannot be found."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return dict(zip(pids, pool.map(lambda pid: _dump(tool, pid), pids), strict=True))
