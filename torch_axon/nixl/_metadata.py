"""What an agent tells others about itself: how to connect to it, and which memory it has registered.

The bytes are a header in JSON and a table. They are checked completely before anything is taken from them. The handles
in them are secrets: a process that has them, and the address, can use the memory.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_axon.nixl._enums import nixl_mem_t
from torch_axon.nixl._errors import nixlMismatchError

KINDS = (nixl_mem_t.DRAM_SEG, nixl_mem_t.VRAM_SEG)

_MAGIC = b"axonnixl"
_VERSION = 1
_PREFIX = struct.Struct("<8sIII")  # magic, version, bytes of the header, rows of the table
_LONGEST_NAME = 255

REGISTRATION = np.dtype(
    [("address", "<u8"), ("nbytes", "<u8"), ("device", "<u8"), ("kind", "<u8"), ("handle", "u1", 64)]
)


@dataclass(frozen=True)
class Metadata:
    """What an agent tells.

    Attributes:
        name: the agent's name
        incarnation: the `Runtime.incarnation` of the agent
        host: identifies its host
        state: counts the changes of its registered memory
        is_complete: whether all of its registered memory is there
        addresses: addresses of its runtime, to be tried in this order; none: the receiver knows the agent
        registrations: [n] of `REGISTRATION`
    """

    name: str
    incarnation: int
    host: str
    state: int
    is_complete: bool
    addresses: list[bytes] = field(default_factory=list)
    registrations: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, REGISTRATION))

    def encode(self) -> bytes:
        header = json.dumps(
            {
                "name": self.name,
                "incarnation": self.incarnation,
                "host": self.host,
                "state": self.state,
                "is_complete": self.is_complete,
                "addresses": [address.hex() for address in self.addresses],
            }
        ).encode()
        prefix = _PREFIX.pack(_MAGIC, _VERSION, len(header), len(self.registrations))
        return prefix + header + self.registrations.tobytes()


def decode(blob: bytes) -> Metadata:
    """Reads metadata.

    Raises:
        nixlMismatchError: the bytes are none of this module, or not complete
    """
    if len(blob) < _PREFIX.size:
        raise nixlMismatchError(f"metadata of {len(blob)} bytes; it is not of an agent of torch_axon, or not complete")
    magic, version, header_size, count = _PREFIX.unpack_from(blob)
    if magic != _MAGIC:
        raise nixlMismatchError("metadata is not of an agent of torch_axon; both agents must use the same nixl module")
    if version != _VERSION:
        raise nixlMismatchError(f"metadata has version {version}; this torch_axon reads version {_VERSION}")
    if len(blob) != _PREFIX.size + header_size + count * REGISTRATION.itemsize:
        raise nixlMismatchError(f"metadata of {len(blob)} bytes is not complete, or too long")
    table = np.frombuffer(blob, REGISTRATION, count, _PREFIX.size + header_size)
    if not np.isin(table["kind"], KINDS).all():
        raise nixlMismatchError("metadata has memory of an unknown kind")
    try:
        header = json.loads(blob[_PREFIX.size : _PREFIX.size + header_size])
        return Metadata(
            name=_text(header["name"], _LONGEST_NAME),
            incarnation=_number(header["incarnation"]),
            host=_text(header["host"], _LONGEST_NAME),
            state=_number(header["state"]),
            is_complete=header["is_complete"] is True,
            addresses=[bytes.fromhex(address) for address in header["addresses"]],
            registrations=table,
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise nixlMismatchError(f"the header of metadata is invalid: {error!r}") from None


def _text(value: Any, longest: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= longest:
        raise ValueError(f"{value!r} is no text of 1 to {longest} bytes")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r} is no number of 64 bits")
    return value
