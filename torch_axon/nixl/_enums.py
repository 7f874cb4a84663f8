"""The constants of NIXL's bindings, with its names and values."""

from __future__ import annotations

import enum


class _IntEnum(enum.IntEnum):
    """Equal to its number, as NIXL's are, and printed by its name."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class nixl_mem_t(_IntEnum):
    """Kinds of memory. Agents of this module use DRAM_SEG and VRAM_SEG."""

    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


class nixl_xfer_op_t(_IntEnum):
    """What a transfer does with remote memory."""

    NIXL_READ = 0
    NIXL_WRITE = 1


class nixl_status_t(_IntEnum):
    """What a call returns. Failures are raised, see `_errors`."""

    NIXL_IN_PROG = 1
    NIXL_SUCCESS = 0
    NIXL_ERR_NOT_POSTED = -1
    NIXL_ERR_INVALID_PARAM = -2
    NIXL_ERR_BACKEND = -3
    NIXL_ERR_NOT_FOUND = -4
    NIXL_ERR_MISMATCH = -5
    NIXL_ERR_NOT_ALLOWED = -6
    NIXL_ERR_REPOST_ACTIVE = -7
    NIXL_ERR_UNKNOWN = -8
    NIXL_ERR_NOT_SUPPORTED = -9


class _Enum(enum.Enum):
    """Has a number, and differs from it."""

    def __int__(self) -> int:
        return int(self.value)


class nixl_thread_sync_t(_Enum):
    """How an agent guards itself against several threads. Agents of this module may always be used by any thread."""

    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = 0


class nixl_cost_t(_Enum):
    """How the cost of a transfer was estimated."""

    NIXL_COST_ANALYTICAL_BACKEND = 0
