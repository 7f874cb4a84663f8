"""What NIXL's examples use to allocate host memory by its address."""

from __future__ import annotations

import ctypes
import mmap

_FILLED_WITH = 0xBA

_allocated: dict[int, mmap.mmap] = {}


def malloc_passthru(size: int) -> int:
    """Allocates memory.

    Args:
        size: its number of bytes

    Returns:
        Its address, at the begin of a page.
    """
    memory = mmap.mmap(-1, max(size, 1))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _allocated[address] = memory
    return address


def free_passthru(address: int) -> None:
    """Frees what `malloc_passthru` has allocated.

    Raises:
        ValueError: nothing was allocated there
    """
    if address not in _allocated:
        raise ValueError(f"free_passthru: nothing was allocated at {address:#x}")
    del _allocated[address]


def ba_buf(address: int, size: int) -> None:
    """Fills memory with bytes of 0xba."""
    ctypes.memset(address, _FILLED_WITH, size)


def verify_transfer(address: int, other: int, size: int) -> None:
    """Compares two pieces of memory.

    Raises:
        AssertionError: they differ
    """
    if ctypes.string_at(address, size) != ctypes.string_at(other, size):
        raise AssertionError(f"{size} bytes at {address:#x} and {other:#x} differ")
