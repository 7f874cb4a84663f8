"""Ranks find each other in a store that holds entries of dead ranks and of destroyed groups.

Ranks are threads of one process here, each with a store of its own that may die.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch.distributed as dist

from support.joining import JoiningRank, check_group, wait_until
from support.pool import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "axon", reason="axon's way to join")

# Longer than rank 0 takes the ranks that have arrived for living ones (kShortRound).
_LONG_ROUND_S = 3.5


def _await_address(store: dist.Store, rank: JoiningRank, round_number: int = 1) -> None:
    key = f"axon/{rank.size}/{round_number}/{rank.rank}"
    wait_until(lambda: store.check([key]), f"rank {rank.rank} has left no address")


def _start(store: dist.Store, size: int, order: Iterable[int] | None = None) -> list[JoiningRank]:
    return [JoiningRank(store, rank, size) for rank in (range(size) if order is None else order)]


def _restart_after_a_death_at_every_call() -> None:
    for dying in range(3):
        for num_calls in range(4):
            store = dist.HashStore()
            ranks = [JoiningRank(store, rank, 3, num_calls if rank == dying else 1 << 30) for rank in range(3)]
            ranks[dying].end()
            for rank in ranks:  # as an agent does once a rank has died
                rank.kill()
            check_group(_start(store, 3, order=[dying, *(rank for rank in range(3) if rank != dying)]))


def _restart_again_and_again() -> None:
    """Several attempts fail before one succeeds, in which ranks arrive in any order; then further groups are formed."""
    store = dist.HashStore()
    for attempt in range(4):
        ranks = [JoiningRank(store, rank, 3) for rank in (attempt % 3, (attempt + 1) % 3)]
        if attempt % 3 == 0:
            wait_until(lambda r=ranks: r[1].store.num_made >= 3, "rank 1 does not join")  # type: ignore[misc]
        for rank in ranks:
            rank.kill()
    for order in ([2, 1, 0], [0, 2, 1], [1, 0, 2]):
        check_group(_start(store, 3, order))


def _replace_a_rank_that_waits() -> None:
    store = dist.HashStore()
    first, waits = JoiningRank(store, 1, 3), JoiningRank(store, 0, 3)
    _await_address(store, first)
    first.kill()
    replacement = JoiningRank(store, 1, 3)
    wait_until(lambda: replacement.store.num_made >= 3, "the replacement does not join")  # get, set, get
    check_group([waits, replacement, JoiningRank(store, 2, 3)])


def _replace_rank_0_while_others_wait() -> None:
    store = dist.HashStore()
    first, waits = JoiningRank(store, 0, 3), JoiningRank(store, 1, 3)
    _await_address(store, waits)
    first.kill()
    check_group([JoiningRank(store, 0, 3), waits, JoiningRank(store, 2, 3)])


def _complete_a_round_with_a_dead_rank() -> None:
    """The last rank arrives after another was killed, and before that one is replaced."""
    store = dist.HashStore()
    dead, waits = JoiningRank(store, 1, 3), JoiningRank(store, 0, 3)
    _await_address(store, dead)
    dead.kill()
    time.sleep(_LONG_ROUND_S)  # a replacement takes at least as long to start
    late = JoiningRank(store, 2, 3)
    _await_address(store, late, 2)
    check_group([waits, JoiningRank(store, 1, 3), late])


def _die_ahead_of_the_others() -> None:
    """A rank arrives at the next group of the name before the others, and is killed."""
    store = dist.HashStore()
    check_group(_start(store, 2))
    ahead = JoiningRank(store, 1, 2)
    wait_until(lambda: ahead.store.num_made >= 5, "it does not wait for the next round")  # get, set, get, delete, get
    ahead.kill()
    rank_0 = JoiningRank(store, 0, 2)
    wait_until(lambda: store.check(["axon/2/1/next"]), "rank 0 does not open a round")
    check_group([rank_0, JoiningRank(store, 1, 2)])


def _change_the_size() -> None:
    store = dist.HashStore()
    for size in (3, 2, 3, 1, 4, 2, 3):
        lone = JoiningRank(store, 1, 5)  # of a group that never forms
        check_group(_start(store, size, order=reversed(range(size))))
        lone.kill()


def _use_a_file_again(folder: str) -> None:
    def store() -> dist.Store:
        return dist.FileStore(f"{folder}/store", -1)

    for rank in (0, 1):
        dead = JoiningRank(store(), rank, 2)
        wait_until(lambda r=dead: r.store.num_made >= (2 if r.rank == 0 else 3), "it does not join")  # type: ignore[misc]
        dead.kill()
    for order in ([1, 0], [0, 1]):
        check_group([JoiningRank(store(), rank, 2) for rank in order])


def _count_calls() -> None:
    store = dist.HashStore()
    sizes = []
    for attempt in range(20):
        ranks = [JoiningRank(store, 0, 4)]
        wait_until(lambda n=attempt: store.add("axon/4/round", 0) > n, "no round")  # type: ignore[misc]
        ranks += [JoiningRank(store, rank, 4) for rank in (1, 2, 3)]
        check_group(ranks)
        assert [rank.store.num_made for rank in ranks[1:]] == [4, 4, 4]
        assert ranks[0].store.num_made <= (8 if attempt == 0 else 12)  # six count for one multi_get
        sizes.append(store.num_keys())
    assert sizes == sizes[:1] * 20


def _try_again_after_a_timeout() -> None:
    store = dist.HashStore()
    for rank, absent in ((0, "rank 1"), (1, "rank 0")):
        alone = JoiningRank(store, rank, 2, timeout_s=0.3)
        alone.end()
        assert "Timed out after 300 ms" in alone.error
        assert alone.error.split("Not joined by: ")[1].startswith(absent)
    check_group(_start(store, 2))


def _name_rank_0_where_a_group_was_formed_before() -> None:
    store = dist.HashStore()
    check_group(_start(store, 3))
    alone = JoiningRank(store, 1, 3, timeout_s=0.3)
    alone.end()
    assert alone.error.split("Not joined by: ")[1].startswith("rank 0"), alone.error
    assert "rank 2" not in alone.error
    check_group(_start(store, 3))


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
