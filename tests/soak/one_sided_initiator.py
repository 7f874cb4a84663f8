"""The initiators of a round: threads that open regions, transfer at random, and check all that they read.

    links = Links(runtime, plan, rank, addresses)     # the peers of this process
    outcome = Initiator(links, thread, strike).run()

Each thread has some transfers under way at a time, and no two of them on the same bytes.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from one_sided_lane import Block, Lane
from one_sided_layout import FIXED_NUM_BYTES, MAIL, Bytes, Extent, content
from one_sided_plan import NOTICE_S, RECONNECTING, InitiatorOutcome, OneSidedPlan, Tag

from torch_axon.runtime import (
    AccessDenied,
    BlockTable,
    Peer,
    PeerLostError,
    Runtime,
    RuntimeClosedError,
    Transfer,
)

Address = bytes | tuple[str, int]

# No transfer without a fault takes so long.
TIMEOUT_S = 60.0
RECONNECT_S = 60.0
_DEPTH = 6
_SHARE_LISTED = 0.08
_SHARE_SHORT, _SHARE_CANCELLED = 0.04, 0.04
_SHORT_S = 0.0005  # some transfers that have it take longer


class CallFailedError(ConnectionError):
    """A call, with which a thread asks the owner about its regions, has failed with the connection."""


class Links:
    """The peers of a process by rank, which its threads share: lost ones are connected again, or given up."""

    def __init__(self, runtime: Runtime, plan: OneSidedPlan, rank: int, addresses: Sequence[Address]) -> None:
        self.runtime, self.plan, self.rank = runtime, plan, rank
        self._addresses = addresses
        self._lock = threading.RLock()
        self._peers = {other: runtime.connect(address) for other, address in enumerate(addresses)}

    def ranks(self) -> list[int]:
        with self._lock:
            return list(self._peers)

    def peer(self, rank: int) -> Peer | None:
        with self._lock:
            return self._peers.get(rank)

    def on_lost(self, rank: int, lost: Peer) -> None:
        with self._lock:
            if self._peers.get(rank) is not lost:
                return  # another thread has seen to it
            if self.plan.fault in RECONNECTING:
                self._peers[rank] = self.runtime.connect(self._addresses[rank], wait=RECONNECT_S)
            else:
                del self._peers[rank]


@dataclass(eq=False)
class _Posted:
    """A transfer under way; `check` is called once it is done."""

    kind: str
    lane: Lane
    transfer: Transfer
    num_bytes: int = 0
    check: Callable[[], None] = lambda: None
    busy: list[Block] = field(default_factory=list)
    version: int | None = None  # of the busy blocks, if they are written
    tag: Tag | None = None
    timeout: float = TIMEOUT_S
    is_cancelled: bool = False


class Initiator:
    def __init__(self, links: Links, thread: int, strike: Callable[[], None]) -> None:
        self._links, self._thread, self._strike = links, thread, strike
        self._plan, self._rank = links.plan, links.rank
        self._random = random.Random(f"{links.plan.seed} initiator {links.rank} {thread}")
        self._lanes: dict[int, dict[int, Lane]] = {}  # by rank, then by number of the region
        self._posted: list[_Posted] = []
        self._num_versions = 0
        self._num_tags = 0
        self._limit = TIMEOUT_S  # of the transfer that is posted next
        self.outcome = InitiatorOutcome()

    def run(self) -> None:
        try:
            for step in range(self._plan.num_steps):
                if self._thread == 0 and self._rank == self._plan.victim and step == self._plan.strike_step:
                    self._strike()
                ranks = self._links.ranks()
                if ranks:
                    self._with_peer(self._random.choice(ranks), self._step)
                while len(self._posted) > self._random.randrange(_DEPTH):
                    self._settle(self._posted.pop(self._random.randrange(len(self._posted))))
            while self._posted:
                self._settle(self._posted.pop())
            for rank in self._links.ranks():
                self._look_a_last_time(rank)
            self.outcome.ended_s = time.monotonic()
        except Exception:
            self.outcome.failures.append(traceback.format_exc())

    def _with_peer(self, rank: int, task: Callable[[int, Peer], None]) -> None:
        """Calls the task with a peer, unless that is lost. Raises errors that the plan does not explain."""
        peer = self._links.peer(rank)
        if peer is None:
            return
        try:
            task(rank, peer)
        except (PeerLostError, RuntimeClosedError, CallFailedError) as error:
            self._on_lost(rank, peer, error)

    def _on_lost(self, rank: int, peer: Peer, error: Exception) -> None:
        if not self._plan.may_lose(self._rank, rank):
            raise error
        is_own_doing = isinstance(error, RuntimeClosedError)
        if is_own_doing and self._rank != self._plan.victim:
            raise error
        if not is_own_doing and f"'{peer.name}'" not in str(error):
            raise AssertionError(f"an error does not name '{peer.name}'") from error
        self.outcome.errors[type(error).__name__] += 1
        self.outcome.lost_s.setdefault(rank, time.monotonic())
        with suppress(RuntimeClosedError):
            self._links.on_lost(rank, peer)

    # ---- Steps

    def _step(self, rank: int, peer: Peer) -> None:
        if not self._usable(rank, peer) or self._random.random() < _SHARE_LISTED:
            self._open_what_is_listed(rank, peer)
        usable = self._usable(rank, peer)
        if not usable:
            return
        lane = self._random.choice(usable)
        self._limit = _SHORT_S if self._random.random() < _SHARE_SHORT else TIMEOUT_S
        steps: list[Callable[[Lane], None]] = [self._notify, self._misuse]
        if "r" in lane.access:
            steps += [self._read, self._read, self._read_list, self._plan_a_read]
        if "w" in lane.access:
            steps += [self._write, self._write, self._write_list, self._plan_a_write, self._mail]
        if lane.access == "rw":
            steps += [self._read_back] * 3
        self._random.choice(steps)(lane)

    def _usable(self, rank: int, peer: Peer) -> list[Lane]:
        return [lane for lane in self._lanes.get(rank, {}).values() if lane.peer is peer]

    def _open_what_is_listed(self, rank: int, peer: Peer) -> None:
        known = self._lanes.setdefault(rank, {})
        listed = self._ask(peer, "listed", self._links.runtime.incarnation)
        for number in known.keys() - {number for number, _, _ in listed}:
            del known[number]
        for number, access, handle in listed:
            lane = known.get(number)
            if lane is not None and lane.peer is peer and self._random.random() < 0.7:
                continue
            try:
                remote = peer.open(handle, timeout=TIMEOUT_S)
            except AccessDenied as error:
                self._check_denial(peer, number, error)
                continue
            if lane is None:
                seed = (self._plan.seed, rank, number, self._plan.lane_of(self._rank, self._thread))
                known[number] = Lane(seed, access, peer, remote)
            else:
                lane.peer, lane.remote = peer, remote

    def _read(self, lane: Lane) -> None:
        places = self._fixed_places(1)
        into = np.empty(places[0].num_bytes, dtype=np.uint8)
        transfer = lane.peer.read(lane.remote[places[0].slice], into, timeout=self._limit)
        self._post("read", lane, transfer, len(into), check=lambda: lane.check_fixed(places, [into]))

    def _read_list(self, lane: Lane) -> None:
        places = self._fixed_places(self._random.randint(0, 20))
        into = [np.empty(place.num_bytes, dtype=np.uint8) for place in places]
        remotes = [lane.remote[place.slice] for place in places]
        transfer = lane.peer.readv(remotes, into, timeout=self._limit)
        size = sum(place.num_bytes for place in places)
        self._post("readv", lane, transfer, size, check=lambda: lane.check_fixed(places, into))

    def _plan_a_read(self, lane: Lane) -> None:
        places = self._fixed_places(self._random.randint(1, 20))
        into = [np.empty(place.num_bytes, dtype=np.uint8) for place in places]
        here = BlockTable(into, [(i, 0, place.num_bytes) for i, place in enumerate(places)])
        there = BlockTable([lane.remote], [(0, place.offset, place.num_bytes) for place in places])
        plan = lane.peer.plan("read", here, there)
        ids = range(len(places))
        transfer = plan.post(ids, ids, timeout=self._limit)
        size = sum(place.num_bytes for place in places)
        self._post("planned read", lane, transfer, size, check=lambda: lane.check_fixed(places, into))

    def _write(self, lane: Lane) -> None:
        chosen = self._free_blocks(lane)[:1]
        for block, data in self._next_version(lane, chosen):
            transfer = lane.peer.write(lane.remote[block.extent.slice], data, timeout=self._limit)
            self._post_write("write", lane, transfer, chosen)

    def _write_list(self, lane: Lane) -> None:
        chosen = self._free_blocks(lane)
        pairs = self._next_version(lane, chosen)
        remotes = [lane.remote[block.extent.slice] for block, _ in pairs]
        transfer = lane.peer.writev(remotes, [data for _, data in pairs], timeout=self._limit)
        self._post_write("writev", lane, transfer, chosen)

    def _plan_a_write(self, lane: Lane) -> None:
        chosen = self._free_blocks(lane)
        pairs = self._next_version(lane, chosen)
        if not pairs:
            return
        rows = [(i, 0, len(data)) for i, (_, data) in enumerate(pairs)]
        here = BlockTable([data for _, data in pairs], rows)
        there = BlockTable([lane.remote], [(0, each.extent.offset, each.extent.num_bytes) for each in chosen])
        ids = range(len(pairs))
        transfer = lane.peer.plan("write", here, there).post(ids, ids, timeout=self._limit)
        self._post_write("planned write", lane, transfer, chosen)

    def _read_back(self, lane: Lane) -> None:
        chosen = [block for block in self._free_blocks(lane) if block.version is not None]
        into = [np.empty(block.extent.num_bytes, dtype=np.uint8) for block in chosen]
        transfer = lane.peer.readv([lane.remote[block.extent.slice] for block in chosen], into, timeout=self._limit)

        def check() -> None:
            for block, found in zip(chosen, into, strict=True):
                lane.check_block(block, found)

        size = sum(block.extent.num_bytes for block in chosen)
        self._post("read back", lane, transfer, size, check=check, busy=chosen)

    def _mail(self, lane: Lane) -> None:
        if not lane.mails:
            return
        index, extent = lane.mails.pop()
        data = content((*lane.seed, index, MAIL), extent.num_bytes)
        tag = self._tag(lane, index)
        transfer = lane.peer.write(lane.remote[extent.slice], data, notify=tag.encode(), timeout=self._limit)
        self._post("mail", lane, transfer, extent.num_bytes, tag=tag)

    def _notify(self, lane: Lane) -> None:
        tag = self._tag(lane, -1)
        self._post("notify", lane, lane.peer.notify(tag.encode(), timeout=self._limit), tag=tag)

    def _misuse(self, lane: Lane) -> None:
        """Does what the handle forbids. The text tells this from the end of the region."""
        part = lane.remote[:8]
        if lane.access == "rw":
            return
        forbidden = lane.peer.write(part, bytes(8)) if lane.access == "r" else lane.peer.read(part, bytearray(8))
        error = forbidden.exception(TIMEOUT_S)
        if isinstance(error, PeerLostError | RuntimeClosedError):
            raise error
        if not isinstance(error, AccessDenied):
            raise AssertionError(f"forbidden access of {lane.remote!r} ended with {error!r}")
        if f"allows '{lane.access}' only" not in str(error):
            self._check_denial(lane.peer, lane.number, error)
        self.outcome.transfers["forbidden"] += 1

    # ---- What steps are made of

    def _post(self, kind: str, lane: Lane, transfer: Transfer, num_bytes: int = 0, **details: object) -> _Posted:
        posted = _Posted(kind, lane, transfer, num_bytes, timeout=self._limit, **details)  # type: ignore[arg-type]
        if self._random.random() < _SHARE_CANCELLED:
            posted.is_cancelled = transfer.cancel()
        self._posted.append(posted)
        return posted

    def _post_write(self, kind: str, lane: Lane, transfer: Transfer, chosen: list[Block]) -> None:
        size = sum(block.extent.num_bytes for block in chosen)
        self._post(kind, lane, transfer, size, busy=chosen, version=self._num_versions)

    def _fixed_places(self, number: int) -> list[Extent]:
        places = []
        for _ in range(number):
            length = self._random.choice((0, 1, 100, 4096, 40_000, 100_003))
            places.append(Extent(self._random.randint(0, FIXED_NUM_BYTES - length), length))
        return [place for place in places if place.num_bytes or number == 1]

    def _free_blocks(self, lane: Lane) -> list[Block]:
        busy = {block for posted in self._posted for block in posted.busy}
        free = [block for block in lane.blocks if block not in busy]
        return self._random.sample(free, self._random.randint(0, len(free)))

    def _next_version(self, lane: Lane, chosen: list[Block]) -> list[tuple[Block, Bytes]]:
        """Returns what to write to the blocks. Blocks of which a write has failed are left alone: it may go on."""
        chosen[:] = [block for block in chosen if block.version is not None]
        self._num_versions += 1
        return [(block, lane.bytes_of(block, self._num_versions)) for block in chosen]

    def _tag(self, lane: Lane, mail: int) -> Tag:
        self._num_tags += 1
        return Tag(self._plan.number, self._rank, self._thread, self._num_tags, lane.number, mail)

    # ---- Ends of transfers

    def _settle(self, posted: _Posted) -> None:
        lane = posted.lane
        error = posted.transfer.exception(2 * TIMEOUT_S)
        if posted.tag is not None:
            of_peer = (self.outcome.uncertain if error else self.outcome.delivered).setdefault(lane.rank, set())
            of_peer.add(posted.tag)
        if posted.version is not None:
            for block in posted.busy:
                block.version = None if error else posted.version
        if error is None:
            posted.check()
            self.outcome.transfers[posted.kind] += 1
            self.outcome.num_bytes += posted.num_bytes
            return
        try:
            self._explain(posted, error)
        except (PeerLostError, RuntimeClosedError, CallFailedError) as lost:
            self._on_lost(lane.rank, lane.peer, lost)

    def _explain(self, posted: _Posted, error: BaseException) -> None:
        """Raises unless the error is one that this transfer may end with."""
        lane = posted.lane
        if isinstance(error, AccessDenied):
            self._check_denial(lane.peer, lane.number, error)
        elif posted.is_cancelled:
            if not isinstance(error, CancelledError):
                raise error
        elif not isinstance(error, TimeoutError) or posted.timeout == TIMEOUT_S:
            raise error
        elif f"'{lane.peer.name}'" not in str(error):
            raise AssertionError(f"an error does not name '{lane.peer.name}'") from error
        self.outcome.errors[type(error).__name__] += 1

    def _check_denial(self, peer: Peer, number: int, error: AccessDenied) -> None:
        """Raises unless the owner has closed the region, and the error names both."""
        if f"'{peer.name}'" not in str(error) or "closed" not in str(error):
            raise AssertionError(f"an error does not say that '{peer.name}' has closed its region") from error
        if not self._ask(peer, "is_closed", number):
            raise error

    def _ask(self, peer: Peer, function: str, argument: int) -> Any:
        try:
            return peer.invoke(function, self._plan.number, argument, timeout=TIMEOUT_S).result()
        except ConnectionError as error:
            raise CallFailedError(f"'{peer.name}' has not answered: {error}") from error

    def _look_a_last_time(self, rank: int) -> None:
        """Reads from a peer until that succeeds, so that every survivor is seen to go on."""
        num_before = self.outcome.transfers["last read"]
        until = time.monotonic() + NOTICE_S
        while self.outcome.transfers["last read"] == num_before and rank in self._links.ranks():
            assert time.monotonic() < until, f"no read from rank {rank} succeeded at the end, for {NOTICE_S} s"
            self._with_peer(rank, self._read_one)

    def _read_one(self, rank: int, peer: Peer) -> None:
        self._open_what_is_listed(rank, peer)
        for lane in self._usable(rank, peer):
            if "r" not in lane.access:
                continue
            place = Extent(0, FIXED_NUM_BYTES)
            into = np.empty(FIXED_NUM_BYTES, dtype=np.uint8)
            error = lane.peer.read(lane.remote[place.slice], into, timeout=TIMEOUT_S).exception()
            if isinstance(error, AccessDenied):
                self._check_denial(lane.peer, lane.number, error)
                continue
            if error is not None:
                raise error
            lane.check_fixed([place], [into])
            self.outcome.transfers["last read"] += 1
            return
