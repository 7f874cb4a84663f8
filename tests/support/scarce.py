"""Runs tests in a process that the system denies something."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import subprocess
from collections.abc import Mapping

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_CLONE_FS = 0x00000200
_CLONE_THREAD = 0x00010000
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # linux/bpf_common.h

CALLS = {"pidfd_open": 434, "memfd_create": 319, "inotify_init1": 294, "inotify_init": 253, "process_vm_readv": 310}
_CLONE, _CLONE3 = 56, 435


def need_seccomp() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the numbers of the system calls are those of x86-64")


def refuse_calls(refused: Mapping[str, int]) -> None:
    """Makes these system calls fail with these errors in this thread and in threads that it starts later."""
    _install([_one_of(CALLS[name], error) for name, error in refused.items()])


def refuse_threads() -> None:
    """Makes thread creation fail as a process limit does; such a limit does not hold for root."""
    only_clone = struct.pack("=HBBI", _JUMP_IF_EQUAL, 0, 3, _CLONE)
    flags = struct.pack("=HBBI", _LOAD, 0, 0, 16) + struct.pack("=HBBI", _JUMP_IF_ANY_BIT, 0, 1, _CLONE_THREAD)
    again = struct.pack("=HBBI", _RETURN, 0, 0, _ERRNO | errno.EAGAIN)
    _install([_one_of(_CLONE3, errno.ENOSYS), only_clone + flags + again])


def _one_of(number: int, error: int) -> bytes:
    return struct.pack("=HBBI", _JUMP_IF_EQUAL, 0, 1, number) + struct.pack("=HBBI", _RETURN, 0, 0, _ERRNO | error)


def _install(rules: list[bytes]) -> None:
    program = struct.pack("=HBBI", _LOAD, 0, 0, 0) + b"".join(rules) + struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW)
    instructions = ctypes.create_string_buffer(program, len(program))
    filter_ = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions)))
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_, 0, 0)):
        if _LIBC.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def mount_shared_memory(options: str) -> str:
    """Gives this process its own /dev/shm. Returns an empty text, or the reason why that is impossible."""
    if _LIBC.unshare(_CLONE_NEWNS) != 0:
        return os.strerror(ctypes.get_errno())
    for command in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", options, "tmpfs", "/dev/shm"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return done.stderr
    return ""


def share_mounts(pid: int) -> None:
    """Moves this process to the mount namespace of process `pid`, and so to its /dev/shm."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    if _LIBC.unshare(_CLONE_FS) != 0 or _LIBC.setns(mounts, 0) != 0:  # threads that share a folder cannot move
        raise OSError(ctypes.get_errno(), "setns")
    os.close(mounts)


def leave_descriptors(number: int) -> None:
    """Limits this process to `number` more open files from now on."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + number, hard))
