"""Notifications from several threads of one peer, to a runtime that lets its queue fill again and again."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from support.holdings import growth, memory_kib
from support.hosts import ADDRESSES, move_to, two_hosts
from support.pool import RankPool
from torch_axon.runtime import Peer, Remote, Runtime, Transfer

SECRET = b"what both processes know"
DEADLINE_S = 60.0
NUM_THREADS = 4
WINDOW = 512  # notifications of a thread that are under way
MOST_QUEUED = 65_536
PROBE = b"is there room?"
# More than the notifications that the receiver has yet to check: in its queue, and in the list that it has taken. So no
# slot is written again before its notification has been checked.
NUM_SLOTS = 4 * MOST_QUEUED
# A queue that fills and empties holds some 10 MiB, of which the allocator keeps more or less.
MOST_GROWTH_KIB = 32 << 10


class _Here:
    """The state of a process of these tests between its tasks."""

    runtime: Runtime
    slots: NDArray[np.int64]  # by thread: the number that each slot was given last
    is_full: threading.Event


@dataclass
class _Sender:
    """The numbers of one thread that have arrived."""

    all_below: int = 0
    others: set[int] = field(default_factory=set)

    def has(self, number: int) -> bool:
        return number < self.all_below or number in self.others

    def add(self, number: int) -> None:
        assert not self.has(number), f"notification {number} has arrived twice"
        self.others.add(number)
        while self.all_below in self.others:
            self.others.remove(self.all_below)
            self.all_below += 1


def _serve(host: str) -> tuple[int, bytes]:
    _Here.runtime = Runtime("receiver", secret=SECRET)
    _Here.is_full = threading.Event()
    _Here.runtime.register("queue_is_full")(lambda: _Here.is_full.set())
    _Here.slots = np.full((NUM_THREADS, NUM_SLOTS), -1, dtype=np.int64)
    return _Here.runtime.listen(host), _Here.runtime.expose(_Here.slots, "rw", name="slots").handle()


def _close() -> None:
    _Here.runtime.close()


# ---- The receiver


def _receive(total: int, num_pauses: int) -> dict[str, int]:
    """Takes all notifications, and checks them. Returns by how many KiB the memory of this process has grown."""
    itself = _Here.runtime.connect(_Here.runtime.address)
    senders = [_Sender() for _ in range(NUM_THREADS)]
    pauses = [total * i // (num_pauses + 1) for i in range(num_pauses)]
    history = []
    num_taken = 0
    while num_taken < total:
        is_full = bool(pauses) and num_taken >= pauses[0]
        if is_full:
            pauses.pop(0)
            _await_full_queue(itself)
            history.append(_memory())
        taken = _Here.runtime.notifications(timeout=DEADLINE_S)
        assert taken, f"only {num_taken} of {total} notifications have arrived"
        assert len(taken) == MOST_QUEUED if is_full else len(taken) <= MOST_QUEUED
        tags = [tag for _, tag in taken if tag != PROBE]
        for tag in tags:
            _check(tag, senders)
        num_taken += len(tags)
    assert _Here.runtime.notifications() == []
    assert [(each.all_below, each.others) for each in senders] == [(total // NUM_THREADS, set())] * NUM_THREADS
    return growth(history, {}, otherwise=min)


def _await_full_queue(itself: Peer) -> None:
    """Waits until the sender reports a full queue, and checks that: the report may speak of an earlier pause."""
    while (refusal := itself.notify(PROBE).exception(DEADLINE_S)) is None:
        assert _Here.is_full.wait(DEADLINE_S), "the queue has not filled"
        _Here.is_full.clear()
    assert isinstance(refusal, BufferError)


def _check(tag: bytes, senders: list[_Sender]) -> None:
    """Checks that the notification is new, follows its data, and follows those that were done when it was posted."""
    thread, number, num_done, follows_data = map(int, tag.split())
    sender = senders[thread]
    assert sender.all_below >= num_done, f"{number} has overtaken one of the first {num_done}, which were done before"
    sender.add(number)
    if follows_data:
        assert _Here.slots[thread, number % NUM_SLOTS] == number


def _memory() -> dict[str, int]:
    own, shared = memory_kib("RssAnon", "RssShmem")
    return {"own": own, "shared": shared}


# ---- The sender


@dataclass
class _Posted:
    number: int
    num_done: int  # all below it were done when it was posted
    transfer: Transfer


class _Thread:
    """Sends its share of the notifications: every second one follows a write."""

    def __init__(self, thread: int, peer: Peer, remote: Remote, total: int) -> None:
        self._thread, self._peer, self._total = thread, peer, total
        self._remote = remote[thread * 8 * NUM_SLOTS : (thread + 1) * 8 * NUM_SLOTS]
        self._posted: deque[_Posted] = deque()
        self.num_refused = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(self._total):
                if len(self._posted) == WINDOW:
                    self._settle()
                num_done = self._posted[0].number if self._posted else number
                self._posted.append(_Posted(number, num_done, self._post(number, num_done)))
            while self._posted:
                self._settle()
        except BaseException as failure:
            self.failure = failure

    def _post(self, number: int, num_done: int) -> Transfer:
        follows_data = number % 2
        tag = b"%d %d %d %d" % (self._thread, number, num_done, follows_data)
        if not follows_data:
            return self._peer.notify(tag, timeout=DEADLINE_S)
        slot = 8 * (number % NUM_SLOTS)
        data = number.to_bytes(8, "little")
        return self._peer.write(self._remote[slot : slot + 8], data, notify=tag, timeout=DEADLINE_S)

    def _settle(self) -> None:
        """Waits for the earliest notification, and sends it again and again while the queue is full."""
        posted = self._posted.popleft()
        until = time.monotonic() + DEADLINE_S
        while (error := posted.transfer.exception()) is not None:
            if not isinstance(error, BufferError) or "notification queue is full" not in str(error):
                raise error
            assert time.monotonic() < until, "the queue stays full"
            self.num_refused += 1
            self._peer.invoke("queue_is_full").result(DEADLINE_S)
            posted.transfer = self._post(posted.number, posted.num_done)


def _send(address: tuple[str, int], handle: bytes, total: int) -> tuple[int, dict[str, int]]:
    """Returns how often the queue was full, and by how many KiB the memory of this process has grown."""
    with Runtime("sender", secret=SECRET) as runtime:
        peer = runtime.connect(address)
        remote = peer.open(handle)
        senders = [_Thread(thread, peer, remote, total // NUM_THREADS) for thread in range(NUM_THREADS)]
        threads = [threading.Thread(target=each.run) for each in senders]
        for thread in threads:
            thread.start()
        history = []
        while any(thread.is_alive() for thread in threads):
            history.append(_memory())
            threads[-1].join(0.25)
        for each in senders:
            if each.failure is not None:
                raise each.failure
    return sum(each.num_refused for each in senders), growth(history, {}, otherwise=min)


@pytest.fixture(params=["one host", "two hosts"])
def pools(request: pytest.FixtureRequest) -> Iterator[tuple[RankPool, RankPool, str]]:
    with RankPool(1, meeting="none") as receiver, RankPool(1, meeting="none") as sender:
        if request.param == "one host":
            yield receiver, sender, "127.0.0.1"
            return
        with two_hosts() as hosts:
            for host, pool in enumerate((receiver, sender)):
                pool.run(move_to, hosts.names[host])
            yield receiver, sender, ADDRESSES[0]


def test_notifications_are_neither_lost_nor_repeated_while_the_queue_fills(
    pools: tuple[RankPool, RankPool, str], request: pytest.FixtureRequest
) -> None:
    receiver, sender, host = pools
    total, num_pauses = (1_000_000, 6) if request.config.getoption("--all-faults") else (200_000, 2)
    [(port, handle)] = receiver.run(_serve, host)
    receiver.start(_receive, total, num_pauses)
    sender.start(_send, (host, port), handle, total)
    [receiver_growth] = receiver.finish(600)
    [(num_refused, sender_growth)] = sender.finish(60)
    receiver.run(_close)
    assert num_refused >= num_pauses
    for grown in (receiver_growth, sender_growth):
        assert max(grown.values()) < MOST_GROWTH_KIB
