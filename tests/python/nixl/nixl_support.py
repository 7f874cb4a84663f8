"""Memory, agents and waits with deadlines that the tests of torch_axon.nixl share."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from support.waiting import until
from torch_axon.nixl._api import nixl_agent, nixl_xfer_handle
from torch_axon.nixl._bindings import nixlRegDList, nixlXferDList

Memory = npt.NDArray[np.uint8]
Row = tuple[int, int, int]


def row_of(memory: Memory, device: int = 0) -> Row:
    """Returns the descriptor of all bytes of an array."""
    return memory.ctypes.data, memory.nbytes, device


def descs_of(agent: nixl_agent, *memories: Memory) -> nixlXferDList:
    descs = agent.get_xfer_descs([row_of(memory) for memory in memories], "DRAM")
    assert descs is not None
    return descs


def register(agent: nixl_agent, *memories: Memory) -> nixlRegDList:
    return agent.register_memory([(*row_of(memory), "") for memory in memories], "DRAM")


def numbered(nbytes: int, seed: int = 0) -> Memory:
    """Returns random bytes, which the seed determines."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def finish(agent: nixl_agent, handle: nixl_xfer_handle) -> None:
    """Waits for the end of a transfer."""
    until(lambda: agent.check_xfer_state(handle) == "DONE")


def run(agent: nixl_agent, handle: nixl_xfer_handle, message: bytes | str = b"") -> None:
    """Starts a transfer and waits for its end."""
    assert agent.transfer(handle, message) in ("DONE", "PROC")
    finish(agent, handle)


def transfer(
    agent: nixl_agent, operation: str, local: Memory, remote: Memory, peer: str, message: bytes | str = b""
) -> nixl_xfer_handle:
    """Makes a transfer of all bytes of two arrays, and runs it."""
    handle = agent.initialize_xfer(operation, descs_of(agent, local), descs_of(agent, remote), peer, message)
    run(agent, handle)
    return handle


def received(agent: nixl_agent, sender: str, count: int) -> list[bytes]:
    """Waits for the next messages of a sender."""
    messages: list[bytes] = []

    def has_all() -> bool:
        messages.extend(agent.get_new_notifs().get(sender, []))
        return len(messages) >= count

    until(has_all)
    return messages


class Recorded(logging.Handler):
    """Keeps the lines of the logger `nixl`, which does not propagate to the handlers of pytest."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname}: {record.getMessage()}")

    def has(self, text: str) -> bool:
        return any(text in line for line in list(self.lines))
