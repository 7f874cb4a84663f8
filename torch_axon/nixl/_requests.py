"""Prepared sides of transfers, and transfers, as an agent numbers them."""

from __future__ import annotations

import time
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
from torch_axon.nixl._remote import RemoteAgent
from torch_axon.runtime import AccessDenied, BlockTable, Plan, Region, Remote, Transfer

Ids = npt.NDArray[np.int32]

_VERBS = {nixl_xfer_op_t.NIXL_READ: "read", nixl_xfer_op_t.NIXL_WRITE: "write"}


@dataclass(frozen=True, eq=False)
class LocalSide:
    """Local memory of transfers."""

    located: Located[Region]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return self.located.table[:, 2]

    def blocks(self) -> BlockTable:
        return BlockTable(self.located.memories, self.located.table)


@dataclass(frozen=True, eq=False)
class RemoteSide:
    """Memory of an agent, and the plans for transfers between it and local sides."""

    agent: RemoteAgent
    located: Located[Any]
    _plans: dict[tuple[nixl_xfer_op_t, int], tuple[Plan, LocalSide]] = field(default_factory=dict)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return self.located.table[:, 2]

    def check_known(self) -> None:
        if self.agent.is_removed:
            raise nixlNotFoundError(f"agent '{self.agent.name}' was removed since this list was prepared")

    def plan(self, operation: nixl_xfer_op_t, local: LocalSide) -> Plan:
        key = (operation, id(local))
        if key not in self._plans:
            remotes: list[Remote] = self.agent.open(self.located.memories)
            blocks = BlockTable(remotes, self.located.table)
            # The entry keeps the local side, so that its id stays its own.
            self._plans[key] = self.agent.peer().plan(_VERBS[operation], local.blocks(), blocks), local
        return self._plans[key][0]


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
    """A transfer that may be posted again and again.

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
    _transfer: Transfer | None = None
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
        if self._transfer is not None and not self._transfer.done():
            self.sides[1].check_known()
            raise nixlRepostActiveError("the transfer is still under way")
        self.notification = notification or self.notification
        self._transfer = self._failure = None
        begin = time.monotonic_ns()
        try:
            self._transfer = self._posted()
        except Failure as failure:
            self._failure = failure
            raise
        self._started_us = begin // 1000
        self._posting_us = max(1, (time.monotonic_ns() - begin) // 1000)
        return self.status()

    def _posted(self) -> Transfer:
        local, remote = self.sides
        remote.check_known()
        remote.agent.peer()  # raises if it is lost
        try:
            return remote.plan(self.operation, local).post(*self.ids, notify=self.notification or None)
        except AccessDenied as error:  # of this process: the peer's denials come later
            raise nixlNotFoundError(str(error)) from error
        except ValueError as error:
            raise as_nixl(error) from error

    def status(self) -> nixl_status_t:
        """Returns NIXL_SUCCESS or NIXL_IN_PROG.

        Raises:
            nixlNotPostedError: it was not posted
            nixlNotFoundError: its agent was removed before its end
            Exception: others of NIXL's exceptions, if it has failed
        """
        if self._failure is not None:
            raise self._failure
        if self._transfer is None:
            raise nixlNotPostedError("the transfer has not been posted")
        if not self._transfer.done():
            self.sides[1].check_known()
            return nixl_status_t.NIXL_IN_PROG
        error = self._transfer.exception()
        if error is None:
            return nixl_status_t.NIXL_SUCCESS
        self.sides[1].check_known()
        raise as_nixl(error) from error

    def cancel(self) -> None:
        if self._transfer is not None:
            self._transfer.cancel()

    def telemetry(self) -> nixlXferTelemetry:
        """Returns what the transfer has done.

        Raises:
            nixlNotPostedError, nixlNoTelemetryError: it was not posted, or is under way
        """
        if self._transfer is None:
            raise nixlNotPostedError("the transfer has not been posted")
        if not self._transfer.done():
            raise nixlNoTelemetryError("the transfer is still under way")
        stats = self._transfer.stats()
        telemetry = nixlXferTelemetry()
        telemetry.startTime, telemetry.postDuration = self._started_us, self._posting_us
        telemetry.xferDuration = max(self._posting_us, round(stats.posted_us + stats.moved_us))
        telemetry.totalBytes = stats.nbytes
        telemetry.descCount = stats.blocks if self.counts_merged else len(self.ids[0])
        return telemetry


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
    return np.ascontiguousarray(array, dtype=np.int32)
