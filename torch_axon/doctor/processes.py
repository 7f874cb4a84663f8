"""Finds the processes of this host that run torch_axon, and reads what they show: their groups and calls.

Each engine keeps a status page in shared memory, which this reads through /proc. The processes need not answer: they
may be stopped, or wait for a GPU.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_axon._native import load

_PROC = Path("/proc")
_PAGE = "/memfd:torch_axon.status (deleted)"
_STOPPED = {"T": "stopped", "t": "stopped by a debugger"}


@dataclass(frozen=True)
class Call:
    """One call of a rank."""

    text: str  # "all_reduce #17 (float32[4], SUM)"
    operation: str
    state: str  # "running", "awaits its GPU", "finished", "failed", or "launched" on a GPU
    sequence: int  # of collectives, from 1; 0 for others
    peer: int  # of messages; −1 receives from any rank
    is_replay: bool  # a CUDA graph holds it
    waiter: int  # the kernel's id of the thread that waits for it; 0 if none is known
    called_at: float  # in seconds of time.monotonic()
    call_site: str  # where the process records it

    @property
    def is_running(self) -> bool:
        """Whether it has begun and not ended."""
        return self.state in ("running", "awaits its GPU")


@dataclass(frozen=True)
class Progress:
    """How far the kernels of a rank are, as a GPU of its host has seen them."""

    rank: int
    num_entered: int  # collectives, also in CUDA graphs; of its own, a GPU knows those finished; it wraps at 2³²
    call: str  # the last of them, "all_reduce (float32, 4 elements, SUM)"; empty if this GPU does not know
    is_old: bool = False  # it has entered no further one for at least a second


@dataclass(frozen=True)
class Membership:
    """What one rank of a group shows."""

    name: str
    identity: int  # equal on all ranks of the group, and on no others
    rank: int
    size: int
    num_on_host: int
    failure: str  # empty if the group has not failed
    latest: Call | None  # the collective that was entered last
    replay: Call | None  # of a CUDA graph: the last one of which a record is left
    running: list[Call]  # others, the oldest first
    num_unlisted: int  # running calls that are not shown
    num_launched: int  # collectives that the GPU was given
    launched: Call | None  # the last of them
    message: Call | None  # the message that the GPU was given last
    captured: Call | None  # the collective that a CUDA graph captured last
    progress: list[Progress]  # of the ranks on its host, if kernels serve the group
    progress_read_at: float  # in seconds of time.monotonic(); 0 if nothing has asked for it
    num_torn: int  # calls that the process was about to write

    @property
    def active(self) -> list[Call]:
        """All calls that run."""
        latest = [self.latest] if self.latest is not None and self.latest.is_running else []
        return [*latest, *self.running]


@dataclass(frozen=True)
class Process:
    """A process that runs an engine."""

    pid: int
    command: str
    stopped: str  # how it is stopped, or an empty text
    groups: list[Membership] = field(default_factory=list)
    num_left_out: int = 0  # groups that it has no room to show
    failure: str = ""  # why it cannot be read


SINGLE_CALLS = ("latest", "replay", "launched", "message", "captured")


def _membership(row: dict[str, Any]) -> Membership:
    calls = {name: row[name] and Call(**row[name]) for name in SINGLE_CALLS}
    running = [Call(**call) for call in row["running"]]
    return Membership(**{**row, **calls, "running": running, "progress": [Progress(*each) for each in row["progress"]]})


def _pages(pid: int, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Opens each status page of a process.

    Raises:
        OSError: the process does not exist, or may not be inspected
    """
    folder = _PROC / str(pid) / "fd"
    for entry in os.listdir(folder):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if os.readlink(folder / entry) != _PAGE:
                continue
            descriptor = os.open(folder / entry, flags | os.O_CLOEXEC)
            try:
                yield descriptor
            finally:
                os.close(descriptor)


def _text(pid: int, file: str) -> str:
    try:
        return (_PROC / str(pid) / file).read_text(errors="replace")
    except OSError:
        return ""


def _innermost_pid(pid: int) -> int:
    """Returns the process's PID in its own namespace, which may be a container's."""
    lines = [line for line in _text(pid, "status").splitlines() if line.startswith("NSpid:")]
    return int(lines[0].split()[-1]) if lines else pid


def command_of(pid: int) -> str:
    """Returns the command line, without the interpreter's path."""
    first, _, others = _text(pid, "cmdline").rstrip("\0").partition("\0")
    return " ".join([os.path.basename(first), *others.split("\0")]).strip()


def read(pid: int) -> Process | None:
    """Reads what a process shows; None if it runs no engine, or has ended.

    Raises:
        PermissionError: this process may not inspect it
    """
    groups: list[Membership] = []
    num_left_out = 0
    failure = ""
    has_page = False
    try:
        for descriptor in _pages(pid):
            try:
                status = load().read_status(descriptor)
            except ValueError as error:
                has_page, failure = True, str(error)
                continue
            if status["pid"] != _innermost_pid(pid):  # it has inherited the descriptor
                continue
            has_page = True
            groups += [_membership(dict(row)) for row in status["groups"]]
            num_left_out += status["num_left_out"]
    except (FileNotFoundError, ProcessLookupError):
        return None
    if not has_page:
        return None
    state = _text(pid, "stat").rpartition(")")[2].split()
    stopped = _STOPPED.get(state[0], "") if state else ""
    return Process(pid, command_of(pid), stopped, groups, num_left_out, failure)


def ask_for_progress(pid: int) -> None:
    """Asks a process to show how far its GPUs are, which it does some 0.1 s later."""
    with contextlib.suppress(OSError):  # it has ended
        for descriptor in _pages(pid, os.O_RDWR):
            load().ask_for_progress(descriptor)


def find(uid: int) -> list[Process]:
    """Returns the processes of this user that run an engine, by PID."""
    return read_all(int(entry) for entry in os.listdir(_PROC) if entry.isdecimal() and _is_of(entry, uid))


def _is_of(pid: str, uid: int) -> bool:
    try:
        return os.stat(_PROC / pid).st_uid == uid
    except OSError:  # it has ended
        return False


def read_all(pids: Iterable[int]) -> list[Process]:
    """Returns those of these processes that run an engine and can be read, by PID."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it may not be inspected
            if (process := read(pid)) is not None:
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def check(pid: int) -> int:
    """Checks that a process can be read, and returns its user's id.

    Raises:
        ValueError: it cannot; the message says why
    """
    try:
        uid = os.stat(_PROC / str(pid)).st_uid
    except OSError:
        raise ValueError(f"no process has the PID {pid}; --ps lists those that can be read") from None
    try:
        process = read(pid)
    except PermissionError as error:
        if uid == os.geteuid():
            raise ValueError(f"process {pid} may not be inspected ({error.strerror}): run the doctor as root") from None
        raise ValueError(
            f"process {pid} belongs to {_user(uid)}, and this is {_user(os.geteuid())}: run the doctor as that user, "
            "or as root"
        ) from None
    if process is None:
        raise ValueError(
            f"process {pid} ({command_of(pid) or 'a zombie, or a thread of the kernel'}) runs no engine of torch_axon; "
            "--ps lists the processes that do. They start it with their first process group or runtime, and forked "
            "children have none"
        )
    if process.failure:
        raise ValueError(f"process {pid} cannot be read: {process.failure}")
    return uid


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with id {uid}"
