"""Runs a command that may not read other processes' memory, as in containers that forbid it.

    python without_tracing.py COMMAND [ARGUMENT …]

It installs a filter of system calls, which lasts through exec and applies to all processes that the command starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

# linux/prctl.h, linux/seccomp.h, linux/bpf_common.h; numbers of system calls on x86-64.
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_PROCESS_VM_READV, _PROCESS_VM_WRITEV = 310, 311


class _Program(ctypes.Structure):
    _fields_ = (("num_instructions", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, operand)


def forbid() -> None:
    code = b"".join(
        [
            _instruction(_LOAD_WORD, 0),  # the system call's number
            _instruction(_JUMP_IF_EQUAL, _PROCESS_VM_READV, if_true=2),
            _instruction(_JUMP_IF_EQUAL, _PROCESS_VM_WRITEV, if_true=1),
            _instruction(_RETURN, _ALLOW),
            _instruction(_RETURN, _REFUSE),
        ]
    )
    instructions = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, one, none, none, none),
        (_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program), none, none),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
