"""Plans: one-sided transfers of many blocks, without a Python object for each block."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_axon import _native
from torch_axon.runtime._one_sided import LocalMemory, Region, Remote, Transfer, stream_of, tag_of

if TYPE_CHECKING:
    from torch_axon._C import RuntimePlan
    from torch_axon.runtime._peer import Peer
    from torch_axon.runtime._runtime import Runtime

# The numbers of blocks: an array or tensor of int32, or a sequence of int.
Ids = Any
# Memories, and a layout or a table, as the extension takes them.
_Side = tuple[list[Any], Any]


@dataclass(frozen=True)
class Blocks:
    """Blocks of equal length at equal distances in memory, numbered from 0.

    Attributes:
        memory: a Remote; or local memory: a Region of this runtime, or what `Peer.read` accepts, or a list or tuple of
            such, whose bytes are numbered one after the other
        nbytes: the bytes of each block
        offset: where block 0 begins, in bytes
        stride: bytes from the begin of a block to that of the next one; None: `nbytes`
        count: the number of blocks; None: all that fit
    """

    memory: LocalMemory | Region | Remote | Sequence[LocalMemory | Region]
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

    def _local(self, runtime: Runtime) -> _Side:
        parts = list(self.memory) if isinstance(self.memory, list | tuple) else [self.memory]
        return [[_part(part, runtime) for part in parts]], self._layout(sum(_num_bytes(part) for part in parts))

    def _remote(self) -> _Side:
        memory = _remote_memory(self.memory)
        return [memory], self._layout(memory[2])


@dataclass(frozen=True, eq=False)
class BlockTable:
    """Blocks of any lengths in several memories, numbered from 0 by the rows of a table.

    Attributes:
        memories: Remotes of one peer; or local memories, each as in `Blocks`. Each may be on another device.
        table: [n, 3], a NumPy array, tensor or sequence of rows of int: the number of the memory, the offset of the
            block in it and its bytes. Blocks of 0 bytes are allowed.
    """

    memories: Sequence[LocalMemory | Region | Remote]
    table: Any

    def _rows(self) -> torch.Tensor:
        """Returns the table as contiguous memory.

        Raises:
            TypeError: it does not consist of integers
            ValueError: it has another shape
        """
        rows = torch.as_tensor(self.table, device="cpu")
        if rows.numel() == 0:
            return torch.empty(0, 3, dtype=torch.int64)
        if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
            raise TypeError(f"BlockTable: table is of {rows.dtype}; allowed: integers")
        if rows.ndim != 2 or rows.shape[1] != 3:
            raise ValueError(f"BlockTable: table has shape {list(rows.shape)}; allowed: [n, 3]")
        return rows.to(torch.int64).contiguous()

    def _local(self, runtime: Runtime) -> _Side:
        memories = [list(memory) if isinstance(memory, list | tuple) else [memory] for memory in self.memories]
        return [[_part(part, runtime) for part in memory] for memory in memories], self._rows()

    def _remote(self) -> _Side:
        return [_remote_memory(memory) for memory in self.memories], self._rows()


class Plan:
    """Prepared blocks of local memory and of a peer's, as `Peer.plan` returns it. Any thread may post.

    Attributes:
        verb: "read" or "write"
    """

    def __init__(self, peer: Peer, verb: str, plan: RuntimePlan) -> None:
        self.verb = verb
        self._peer = peer
        self._plan = plan

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

        The ids are read before this returns. Nothing is posted if an argument is refused. Blocks that are neighbours on
        both sides, and follow each other here, move as one.

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
            ValueError: the numbers of ids differ, one is out of range, the blocks of a pair differ in length,
                `notify` is too long, or `stream` is of another GPU
            AccessDenied: a Region that is local memory of the plan is closed
            RuntimeError: `stream` is captured into a CUDA graph
        """
        limit = self._peer._timeout if timeout is None else timeout
        here, there = _int32s("local_ids", local_ids), _int32s("remote_ids", remote_ids)
        return Transfer(self._peer, self._plan.post(here, there, (tag_of(notify), limit, stream_of(stream))))


class RepeatedTransfer:
    """Pairs of a plan's blocks that are moved again and again. Each transfer but the latest must have ended.

    `poll` and `latest` need an earlier `post`. Posting costs less than by `Plan.post`: the ids are checked once, and a
    transfer has an object of its own only if it is asked for.

    Args:
        plan: the plan
        local_ids: [n], as for `Plan.post`
        remote_ids: [n], as for `Plan.post`

    Attributes:
        poll: returns the state of the latest transfer (`UNDER_WAY`, `DONE` or `FAILED`), and drives the engine if it
            is under way

    Raises:
        TypeError, ValueError: as for `Plan.post`
    """

    def __init__(self, plan: Plan, local_ids: Ids, remote_ids: Ids) -> None:
        ids = _int32s("local_ids", local_ids), _int32s("remote_ids", remote_ids)
        native = _native.load().RuntimeRepeatedTransfer(plan._plan, *ids)
        self._plan = plan
        self._native = native
        self._timeout = plan._peer._timeout
        self._post: Callable[[bytes | None, float], int] = native.post
        self.poll: Callable[[], int] = native.poll  # without a call of Python's in between

    def post(self, notify: bytes | None) -> int:
        """Starts a transfer, and returns its state.

        Raises:
            ValueError: `notify` is too long
            AccessDenied: a Region that is local memory of the plan is closed
        """
        return self._post(notify, self._timeout)

    def latest(self) -> Transfer:
        """Returns the transfer that was posted last."""
        return Transfer(self._plan._peer, self._native.latest)


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


def make_plan(peer: Peer, verb: str, local: Blocks | BlockTable, remote: Blocks | BlockTable) -> Plan:
    """Makes a plan for `Peer.plan`.

    Raises:
        TypeError, ValueError: as for `Peer.plan`
    """
    if verb not in ("read", "write"):
        raise ValueError(f"plan: verb is {verb!r}; allowed: 'read' and 'write'")
    for name, side in (("local", local), ("remote", remote)):
        if not isinstance(side, Blocks | BlockTable):
            raise TypeError(f"plan: {name} is of type {type(side).__name__}; allowed: Blocks and BlockTable")
    runtime = peer._runtime
    there, here = remote._remote(), local._local(runtime)
    return Plan(peer, verb, _native.load().make_plan(runtime._core, peer._connection, verb == "read", here, there))


def _part(part: LocalMemory | Region, runtime: Runtime) -> Any:
    if not isinstance(part, Region):
        return part
    if part._runtime is not runtime:
        raise ValueError(f"plan: local is {part!r} of another runtime; allowed: regions of '{runtime.name}'")
    return part._region


def _remote_memory(memory: object) -> tuple[Any, int, int]:
    if not isinstance(memory, Remote):
        raise TypeError(f"plan: remote is in memory of type {type(memory).__name__}; allowed: Remote, see Peer.open")
    return memory._memory, memory._offset, memory.nbytes


def _num_bytes(memory: Any) -> int:
    num_bytes = getattr(memory, "nbytes", None)
    return num_bytes if isinstance(num_bytes, int) else memoryview(memory).nbytes
