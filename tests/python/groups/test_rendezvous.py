"""Ranks find each other in a store that holds entries of dead ranks and of destroyed groups.

Ranks are threads of one process here, each with a store of its own that may die. From then on the store's calls have no
effect, as if the rank had been killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.pool import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "axon", reason="axon's way to join")

_TIMEOUT_S = 40.0
# Longer than rank 0 takes the ranks that have arrived for living ones (kShortRound).
_LONG_ROUND_S = 3.5


class _KilledError(Exception):
    pass


class _Mortal(dist.Store):
    """One rank's view of a store: serves `num_calls` calls, then dies. Counts them."""

    def __init__(self, store: dist.Store, num_calls: int = 1 << 30) -> None:
        super().__init__()
        self.store, self.num_left, self.num_made = store, num_calls, 0
        self.dead = threading.Event()

    def _live(self) -> None:
        if self.num_made == self.num_left:
            self.dead.set()
        if self.dead.is_set():
            raise _KilledError
        self.num_made += 1

    def set(self, key: str, value: bytes) -> None:
        self._live()
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        self._live()
        deadline = time.monotonic() + self.timeout.total_seconds()
        while not self.store.check([key]):  # not within the store, where a rank cannot be killed
            if self.dead.wait(0.001):
                raise _KilledError
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"timeout: {key}")
        return self.store.get(key)

    def add(self, key: str, amount: int) -> int:
        self._live()
        return self.store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        self._live()
        return self.store.check(keys)

    def deleteKey(self, key: str) -> bool:  # noqa: N802 - what torch calls of a store in Python
        self._live()
        return self.store.delete_key(key)


class _Rank:
    """A rank that joins a group, in a thread."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, num_calls: int = 1 << 30, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.store = _Mortal(store, num_calls)
        self.backend: Any = None
        self.error = ""
        self.thread = threading.Thread(target=self._join, daemon=True)
        self.thread.start()

    def _join(self) -> None:
        from torch_axon import _registration

        options = dist.distributed_c10d._DistributedBackendOptions()
        options.store, options.group_id = self.store, "group"
        options.group_rank, options.group_size = self.rank, self.size
        options.timeout = timedelta(seconds=self.timeout_s)
        try:
            self.backend = _registration._create(options, None)
        except Exception as error:
            self.error = str(error)

    def kill(self) -> None:
        self.store.dead.set()
        self.end()
        self.backend = None

    def end(self) -> None:
        self.thread.join(_TIMEOUT_S)
        assert not self.thread.is_alive(), f"rank {self.rank} of {self.size} hangs"


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def _await_address(store: dist.Store, rank: _Rank, round_number: int = 1) -> None:
    key = f"axon/{rank.size}/{round_number}/{rank.rank}"
    _await(lambda: store.check([key]), f"rank {rank.rank} has left no address")


def _check_group(ranks: Iterable[_Rank]) -> None:
    """Checks that exactly these ranks have formed one group. Ends the group."""
    ranks = list(ranks)
    for rank in ranks:
        rank.end()
        assert rank.backend is not None, f"rank {rank.rank} of {rank.size}: {rank.error}"
    tensors = [torch.full((3,), float(rank.rank + 1)) for rank in ranks]
    works = [rank.backend.allreduce([tensor]) for rank, tensor in zip(ranks, tensors, strict=True)]
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        assert tensor.tolist() == [float(sum(range(1, len(ranks) + 1)))] * 3
    for rank in ranks:
        rank.backend = None


def _start(store: dist.Store, size: int, order: Iterable[int] | None = None) -> list[_Rank]:
    return [_Rank(store, rank, size) for rank in (range(size) if order is None else order)]


def _restart_after_a_death_at_every_call() -> None:
    for dying in range(3):
        for num_calls in range(4):
            store = dist.HashStore()
            ranks = [_Rank(store, rank, 3, num_calls if rank == dying else 1 << 30) for rank in range(3)]
            ranks[dying].end()
            for rank in ranks:  # as an agent does once a rank has died
                rank.kill()
            _check_group(_start(store, 3, order=[dying, *(rank for rank in range(3) if rank != dying)]))


def _restart_again_and_again() -> None:
    """Several attempts fail before one succeeds, in which ranks arrive in any order; then further groups are formed."""
    store = dist.HashStore()
    for attempt in range(4):
        ranks = [_Rank(store, rank, 3) for rank in (attempt % 3, (attempt + 1) % 3)]
        if attempt % 3 == 0:
            _await(lambda r=ranks: r[1].store.num_made >= 3, "rank 1 does not join")  # type: ignore[misc]
        for rank in ranks:
            rank.kill()
    for order in ([2, 1, 0], [0, 2, 1], [1, 0, 2]):
        _check_group(_start(store, 3, order))


def _replace_a_rank_that_waits() -> None:
    store = dist.HashStore()
    first, waits = _Rank(store, 1, 3), _Rank(store, 0, 3)
    _await_address(store, first)
    first.kill()
    replacement = _Rank(store, 1, 3)
    _await(lambda: replacement.store.num_made >= 3, "the replacement does not join")  # get, set, get
    _check_group([waits, replacement, _Rank(store, 2, 3)])


def _replace_rank_0_while_others_wait() -> None:
    store = dist.HashStore()
    first, waits = _Rank(store, 0, 3), _Rank(store, 1, 3)
    _await_address(store, waits)
    first.kill()
    _check_group([_Rank(store, 0, 3), waits, _Rank(store, 2, 3)])


def _complete_a_round_with_a_dead_rank() -> None:
    """The last rank arrives after another was killed, and before that one is replaced."""
    store = dist.HashStore()
    dead, waits = _Rank(store, 1, 3), _Rank(store, 0, 3)
    _await_address(store, dead)
    dead.kill()
    time.sleep(_LONG_ROUND_S)  # a replacement takes at least as long to start
    late = _Rank(store, 2, 3)
    _await_address(store, late, 2)
    _check_group([waits, _Rank(store, 1, 3), late])


def _die_ahead_of_the_others() -> None:
    """A rank arrives at the next group of the name before the others, and is killed."""
    store = dist.HashStore()
    _check_group(_start(store, 2))
    ahead = _Rank(store, 1, 2)
    _await(lambda: ahead.store.num_made >= 5, "it does not wait for the next round")  # get, set, get, delete, get
    ahead.kill()
    rank_0 = _Rank(store, 0, 2)
    _await(lambda: store.check(["axon/2/1/next"]), "rank 0 does not open a round")
    _check_group([rank_0, _Rank(store, 1, 2)])


def _change_the_size() -> None:
    store = dist.HashStore()
    for size in (3, 2, 3, 1, 4, 2, 3):
        lone = _Rank(store, 1, 5)  # of a group that never forms
        _check_group(_start(store, size, order=reversed(range(size))))
        lone.kill()


def _use_a_file_again(folder: str) -> None:
    def store() -> dist.Store:
        return dist.FileStore(f"{folder}/store", -1)

    for rank in (0, 1):
        dead = _Rank(store(), rank, 2)
        _await(lambda r=dead: r.store.num_made >= (2 if r.rank == 0 else 3), "it does not join")  # type: ignore[misc]
        dead.kill()
    for order in ([1, 0], [0, 1]):
        _check_group([_Rank(store(), rank, 2) for rank in order])


def _count_calls() -> None:
    store = dist.HashStore()
    sizes = []
    for attempt in range(20):
        ranks = [_Rank(store, 0, 4)]
        _await(lambda n=attempt: store.add("axon/4/round", 0) > n, "no round")  # type: ignore[misc]
        ranks += [_Rank(store, rank, 4) for rank in (1, 2, 3)]
        _check_group(ranks)
        assert [rank.store.num_made for rank in ranks[1:]] == [4, 4, 4]
        assert ranks[0].store.num_made <= (8 if attempt == 0 else 12)  # six count for one multi_get
        sizes.append(store.num_keys())
    assert sizes == sizes[:1] * 20


def _try_again_after_a_timeout() -> None:
    store = dist.HashStore()
    for rank, absent in ((0, "rank 1"), (1, "rank 0")):
        alone = _Rank(store, rank, 2, timeout_s=0.3)
        alone.end()
        assert "Timed out after 300 ms" in alone.error
        assert alone.error.split("Not joined by: ")[1].startswith(absent)
    _check_group(_start(store, 2))


def _name_rank_0_where_a_group_was_formed_before() -> None:
    store = dist.HashStore()
    _check_group(_start(store, 3))
    alone = _Rank(store, 1, 3, timeout_s=0.3)
    alone.end()
    assert alone.error.split("Not joined by: ")[1].startswith("rank 0"), alone.error
    assert "rank 2" not in alone.error
    _check_group(_start(store, 3))


_SCENARIOS: list[Callable[[], None]] = [
    _restart_after_a_death_at_every_call,
    _restart_again_and_again,
    _replace_a_rank_that_waits,
    _replace_rank_0_while_others_wait,
    _complete_a_round_with_a_dead_rank,
    _die_ahead_of_the_others,
    _change_the_size,
    _count_calls,
    _try_again_after_a_timeout,
    _name_rank_0_where_a_group_was_formed_before,
]


@pytest.mark.parametrize("scenario", _SCENARIOS, ids=lambda scenario: scenario.__name__.strip("_"))
def test_ranks_find_each_other(scenario: Callable[[], None], fresh_ranks) -> None:
    fresh_ranks(1, meeting="none").run(scenario, timeout_s=100)


def test_ranks_find_each_other_in_a_file_that_is_used_again(fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(1, meeting="none").run(_use_a_file_again, str(tmp_path), timeout_s=100)
