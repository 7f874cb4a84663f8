"""Plans: one-sided transfers of many blocks, without a Python object for each block."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_axon import _native
from torch_axon.runtime._one_sided import LocalMemory, Remote, Transfer, stream_of, tag_of

if TYPE_CHECKING:
    from torch_axon._C import RuntimePlan
    from torch_axon.runtime._peer import Peer

# The numbers of blocks: an array or tensor of int32, or a sequence of int.
Ids = Any


@dataclass(frozen=True)
class Blocks:
    """Blocks of equal length at equal distances in memory, numbered from 0.

    Attributes:
        memory: a Remote; or local memory, or a list or tuple of such, whose bytes are numbered one after the other
        nbytes: the bytes of each block
        offset: where block 0 begins, in bytes
        stride: bytes from the begin of a block to that of the next one; None: `nbytes`
        count: the number of blocks; None: all that fit
    """

    memory: LocalMemory | Remote | Sequence[LocalMemory]
    nbytes: int
    offset: int = 0
    stride: int | None = None
    count: int | None = None

    def _layout(self, num_bytes: int) -> tuple[int, int, int, int]:
        stride = self.nbytes if self.stride is None else self.stride
        count = 0 if self.count is None else self.count
        for name, value in (("nbytes", self.nbytes), ("offset", self.offset), ("stride", stride), ("count", count)):
            if not isinstance(value, int):
                raise TypeError(f"Blocks: {name} is of type {type(value).__name__}; allowed: int")
            if not 0 <= value < 1 << 63:
                raise ValueError(f"Blocks: {name} is {value}; allowed: 0 or more")
        if self.nbytes == 0 or stride < self.nbytes:
            raise ValueError(
                f"Blocks: nbytes is {self.nbytes} and stride {stride}; allowed: 1 byte or more, and no overlap"
            )
        fitting = max(0, (num_bytes - self.offset - self.nbytes) // stride + 1)
        return self.offset, self.nbytes, stride, fitting if self.count is None else self.count


class Plan:
    """Prepared blocks of local memory and of a peer's, as `Peer.plan` returns it. Any thread may post.

    Attributes:
        verb: "read" or "write"
    """

    def __init__(self, peer: Peer, verb: str, plan: RuntimePlan, remote: Remote) -> None:
        self.verb = verb
        self._peer = peer
        self._plan = plan
        self._remote = remote

    def post(
        self,
        local_ids: Ids,
        remote_ids: Ids,
        *,
        notify: bytes | None = None,
        timeout: float | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> Transfer:
        """Starts the transfer of the i-th local block from or to the i-th remote block, for all i.

        The ids are read before this returns. Nothing is posted if an argument is refused.

        Args:
            local_ids: [n], the numbers of local blocks: a NumPy array or CPU tensor of int32, or a sequence of int.
                Do not use a block until the transfer is done.
            remote_ids: [n], the numbers of remote blocks
            notify: a tag that the peer receives after the data, see `Peer.read` and `Peer.write`
            timeout: seconds until the transfer fails; None: the runtime's timeout
            stream: for local memory on CUDA, as for `Peer.read`

        Returns:
            The transfer of all blocks. If it fails, some of them may have been moved.

        Raises:
            TypeError: ids are not of int32, or `notify` is not bytes
            ValueError: the numbers of ids differ, one is out of range, `notify` is too long, or `stream` is of
                another GPU
            RuntimeError: `stream` is captured into a CUDA graph
        """
        limit = self._peer._timeout if timeout is None else timeout
        here, there = _int32s("local_ids", local_ids), _int32s("remote_ids", remote_ids)
        native = self._plan.post(here, there, (tag_of(notify), limit, stream_of(stream)))
        path = self._remote.path
        return Transfer(self._peer, native, "messages" if path == "cma" and self.verb == "write" else path)


def _int32s(what: str, ids: Ids) -> object:
    """Returns contiguous memory of int32."""
    if isinstance(ids, torch.Tensor):
        if ids.dtype != torch.int32:
            raise TypeError(f"post: {what} is a tensor of {ids.dtype}; allowed: torch.int32")
        return ids
    if isinstance(ids, list | tuple | range):
        try:
            return array("i", ids)
        except OverflowError:
            raise ValueError(f"post: {what} has a number beyond 32 bits") from None
    view = memoryview(ids)
    if view.format != "i":
        raise TypeError(f"post: {what} has elements of format {view.format!r}; allowed: 'i', which is int32")
    return ids


def make_plan(peer: Peer, verb: str, local: Blocks, remote: Blocks) -> Plan:
    """Makes a plan for `Peer.plan`.

    Raises:
        TypeError, ValueError: as for `Peer.plan`
    """
    if verb not in ("read", "write"):
        raise ValueError(f"plan: verb is {verb!r}; allowed: 'read' and 'write'")
    memory = remote.memory
    if not isinstance(memory, Remote):
        raise TypeError(f"plan: remote is in memory of type {type(memory).__name__}; allowed: Remote, see Peer.open")
    parts = list(local.memory) if isinstance(local.memory, list | tuple) else [local.memory]
    num_local_bytes = sum(_num_bytes(part) for part in parts)
    native = _native.load().make_plan(
        peer._connection,
        verb == "read",
        parts,
        local._layout(num_local_bytes),
        (memory._memory, memory._offset, memory.nbytes),
        remote._layout(memory.nbytes),
    )
    return Plan(peer, verb, native, memory)


def _num_bytes(memory: LocalMemory) -> int:
    num_bytes = getattr(memory, "nbytes", None)
    return num_bytes if isinstance(num_bytes, int) else memoryview(memory).nbytes
