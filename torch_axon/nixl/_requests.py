"""Prepared sides of transfers, and transfers, as an agent numbers them."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_axon.nixl._enums import nixl_status_t, nixl_xfer_op_t
from torch_axon.nixl._errors import (
    Failure,
    as_nixl,
    nixlInvalidParamError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlRepostActiveError,
)
from torch_axon.nixl._memory import Located
from torch_axon.nixl._remote import Registered, RemoteAgent
from torch_axon.runtime import AccessDenied, BlockTable, Plan, Remote
from torch_axon.runtime._one_sided import DONE, UNDER_WAY
from torch_axon.runtime._plans import RepeatedTransfer

Ids = npt.NDArray[np.int32]

# How long posting may wait for memory of the other agent to be opened. The transfer is under way then.
_LONGEST_POST_S = 0.05
_VERBS = {nixl_xfer_op_t.NIXL_READ: "read", nixl_xfer_op_t.NIXL_WRITE: "write"}


class _Side:
    """Blocks of a transfer.

    Attributes:
        lengths: [n], the bytes of each block
        length: the bytes of all blocks, if these are equal
    """

    def __init__(self, located: Located[Any]) -> None:
        self.located = located
        self.lengths: npt.NDArray[np.int64] = located.table[:, 2]
        first = int(self.lengths[0])
        self.length = first if (self.lengths == first).all() else None


class LocalSide(_Side):
    """Local memory of transfers."""

    def blocks(self) -> BlockTable:
        return BlockTable(self.located.memories, self.located.table)


class RemoteSide(_Side):
    """Memory of an agent, and the plans for transfers between it and local sides."""

    def __init__(self, agent: RemoteAgent, located: Located[Registered]) -> None:
        super().__init__(located)
        self.agent = agent
        self._plans: weakref.WeakKeyDictionary[LocalSide, dict[nixl_xfer_op_t, Plan]] = weakref.WeakKeyDictionary()

    def check_known(self) -> None:
        if self.agent.is_removed:
            raise nixlNotFoundError(f"agent '{self.agent.name}' was removed since this list was prepared")

    def plan_at_once(self, operation: nixl_xfer_op_t, local: LocalSide) -> Plan | None:
        """Returns the plan, or None if the agent's memory has to be opened before it can be made.

        Raises:
            Exception: of NIXL, if it cannot be made
        """
        plan = self._plans.get(local, {}).get(operation)
        if plan is not None:
            return plan
        remotes = [each.remote for each in self.located.memories if each.remote is not None]
        return self._made(operation, local, remotes) if len(remotes) == len(self.located.memories) else None

    def plan(self, operation: nixl_xfer_op_t, local: LocalSide) -> Plan:
        """Makes the plan. Connects to the agent, and opens its memory, if necessary.

        Raises:
            Exception: of NIXL, if that fails
        """
        return self._made(operation, local, self.agent.open(self.located.memories))

    def _made(self, operation: nixl_xfer_op_t, local: LocalSide, remotes: list[Remote]) -> Plan:
        blocks = BlockTable(remotes, self.located.table)
        plan = self.agent.peer().plan(_VERBS[operation], local.blocks(), blocks)
        self._plans.setdefault(local, {})[operation] = plan
        return plan


class nixlXferTelemetry:
    """What a transfer has done.

    Attributes:
        startTime: when it was posted, in µs of the system's monotonic clock
        postDuration: how long posting took, in µs, at least 1
        xferDuration: how long it took from its post to its end, in µs, at least `postDuration`
        totalBytes: its bytes
        descCount: its descriptors; of prepared lists, those that moved as one count as one
    """

    __slots__ = ("descCount", "postDuration", "startTime", "totalBytes", "xferDuration")

    def __init__(self) -> None:
        self.startTime = self.postDuration = self.xferDuration = self.totalBytes = self.descCount = 0

    def __repr__(self) -> str:
        return f"nixlXferTelemetry({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


@dataclass(eq=False)
class Request:
    """A transfer that may be posted again and again. Any thread.

    Attributes:
        operation: what it does
        sides: the local and the remote side
        ids: [n] for each side: which of its blocks
        notification: what the agent is told at the end; empty: nothing
        counts_merged: whether neighbours that moved as one count as one in its telemetry
    """

    operation: nixl_xfer_op_t
    sides: tuple[LocalSide, RemoteSide]
    ids: tuple[Ids, Ids]
    notification: bytes
    counts_merged: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)  # guards the following members
    _repeated: RepeatedTransfer | None = None  # once its plan is known
    _is_posted: bool = False  # the latest of these transfers counts
    _starting: concurrent.futures.Future[RepeatedTransfer] | None = None  # a thread connects, opens memory and posts
    _failure: Failure | None = None  # of the latest post
    _started_us: int = 0
    _posting_us: int = 0

    def post(self, notification: bytes) -> nixl_status_t:
        """Starts the transfer. A notification that is not empty takes the place of the former one.

        Raises:
            nixlRepostActiveError: it is under way
            nixlNotFoundError: the agent was removed, or local memory was deregistered
            Exception: others of NIXL's exceptions, if it fails at once; `status` raises the same then
        """
        with self._lock:
            if self._is_under_way():
                self.sides[1].check_known()
                raise nixlRepostActiveError("the transfer is still under way")
            self.notification = notification or self.notification
            self._is_posted, self._failure = False, None
            begin = time.monotonic_ns()
            self._started_us = begin // 1000
            state = self._start()
            self._posting_us = max(1, (time.monotonic_ns() - begin) // 1000)
            return nixl_status_t.NIXL_SUCCESS if state == DONE else self._status()

    def _is_under_way(self) -> bool:
        if self._starting is not None and not self._take_started():
            return True
        return self._is_posted and self._latest().poll() == UNDER_WAY

    def _latest(self) -> RepeatedTransfer:
        assert self._repeated is not None
        return self._repeated

    def _start(self) -> int:
        local, remote = self.sides
        try:
            remote.check_known()
            remote.agent.check_alive()
            repeated = self._repeated or self._repeat(remote.plan_at_once(self.operation, local))
            if repeated is not None:
                state = self._posted(repeated)
                self._is_posted = True
                return state
        except Failure as failure:
            self._failure = failure
            raise
        except Exception as error:
            self._failure = as_nixl(error)
            raise self._failure from error
        self._starting = concurrent.futures.Future()
        threading.Thread(target=self._open_and_post, args=(self._starting,), name="axon-nixl-open", daemon=True).start()
        concurrent.futures.wait([self._starting], _LONGEST_POST_S)  # usually it is done sooner
        return UNDER_WAY

    def _repeat(self, plan: Plan | None) -> RepeatedTransfer | None:
        return None if plan is None else RepeatedTransfer(plan, *self.ids)

    def _open_and_post(self, starting: concurrent.futures.Future[RepeatedTransfer]) -> None:
        local, remote = self.sides
        try:
            repeated = RepeatedTransfer(remote.plan(self.operation, local), *self.ids)
            self._posted(repeated)
            starting.set_result(repeated)
        except BaseException as error:
            starting.set_exception(error)

    def _posted(self, repeated: RepeatedTransfer) -> int:
        self._repeated = repeated
        try:
            return repeated.post(self.notification or None)
        except AccessDenied as error:  # of this process: the peer's denials come later
            raise nixlNotFoundError(str(error)) from error

    def status(self) -> nixl_status_t:
        """Returns NIXL_SUCCESS or NIXL_IN_PROG.

        Raises:
            nixlNotPostedError: it was not posted
            nixlNotFoundError: its agent was removed before its end
            Exception: others of NIXL's exceptions, if it has failed
        """
        with self._lock:  # another thread may post it again
            return self._status()

    def _status(self) -> nixl_status_t:
        is_starting = self._starting is not None and not self._take_started()
        if self._failure is not None:
            raise self._failure.again()
        if not is_starting and not self._is_posted:
            raise nixlNotPostedError("the transfer has not been posted")
        state = UNDER_WAY if is_starting else self._latest().poll()
        if state == DONE:
            return nixl_status_t.NIXL_SUCCESS
        self.sides[1].check_known()
        if state == UNDER_WAY:
            return nixl_status_t.NIXL_IN_PROG
        error = self._latest().latest().exception()
        assert error is not None
        self._failure = as_nixl(error)
        raise self._failure.again() from error

    def _take_started(self) -> bool:
        """Returns whether the thread that starts the transfer has ended."""
        if self._starting is None or not self._starting.done():
            return False
        starting, self._starting = self._starting, None
        error = starting.exception()
        self._is_posted = error is None
        if error is not None:
            self._failure = error if isinstance(error, Failure) else as_nixl(error)
        return True

    def cancel(self) -> None:
        if self._starting is not None:
            self._starting.add_done_callback(_cancel_started)
        elif self._is_posted:
            self._latest().latest().cancel()

    def telemetry(self) -> nixlXferTelemetry:
        """Returns what the transfer has done.

        Raises:
            nixlNotPostedError, nixlNoTelemetryError: it was not posted, or is under way
        """
        with self._lock:
            is_under_way = self._is_under_way()
        if is_under_way:
            raise nixlNoTelemetryError("the transfer is still under way")
        if not self._is_posted:
            raise nixlNotPostedError("the transfer has not been posted")
        stats = self._latest().latest().stats()
        telemetry = nixlXferTelemetry()
        telemetry.startTime, telemetry.postDuration = self._started_us, self._posting_us
        telemetry.xferDuration = max(self._posting_us, round(stats.posted_us + stats.moved_us))
        telemetry.totalBytes = stats.nbytes
        telemetry.descCount = stats.blocks if self.counts_merged else len(self.ids[0])
        return telemetry


def _cancel_started(starting: concurrent.futures.Future[RepeatedTransfer]) -> None:
    if starting.exception() is None:
        starting.result().latest().cancel()


def pair_up(local: LocalSide, local_ids: Any, remote: RemoteSide, remote_ids: Any) -> tuple[Ids, Ids]:
    """Checks the numbers of blocks.

    Returns:
        [n] for each side.

    Raises:
        nixlInvalidParamError: the numbers of ids differ, are 0 or out of range, or two blocks differ in length
        ValueError: ids have another shape
    """
    here, there = _ids(local_ids, len(local.lengths), "local"), _ids(remote_ids, len(remote.lengths), "remote")
    if len(here) != len(there):
        raise nixlInvalidParamError(f"{len(here)} local and {len(there)} remote indices; allowed: as many of both")
    if local.length is not None and local.length == remote.length:
        return here, there
    differs = local.lengths[here] != remote.lengths[there]
    if differs.any():
        first = int(np.flatnonzero(differs)[0])
        raise nixlInvalidParamError(
            f"pair {first} is a local descriptor of {local.lengths[here[first]]} bytes and a remote one of "
            f"{remote.lengths[there[first]]}; allowed: equal lengths"
        )
    return here, there


def _ids(ids: Any, count: int, side: str) -> Ids:
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError("indices numpy array must be 1D")
    if len(array) == 0:
        raise nixlInvalidParamError(f"there are no {side} indices; allowed: one or more")
    least, most = array.min(), array.max()
    if least < 0 or most >= count:
        wrong = least if least < 0 else most
        raise nixlInvalidParamError(f"a {side} index is {wrong}; allowed: 0 to {count}, exclusive")
    return np.array(array, dtype=np.int32)  # a copy: the caller may change its own
