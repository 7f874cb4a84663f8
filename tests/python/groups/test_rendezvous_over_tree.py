"""Ranks of a large group exchange their addresses over a tree, in a store that may hold entries of dead ranks.

Most ranks are threads of one process here, as in test_rendezvous.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.joining import JoiningRank, check_group, wait_until
from support.pool import BACKEND, own_rank

pytestmark = pytest.mark.skipif(BACKEND != "axon", reason="axon's way to join")

# More than exchange their addresses through one entry of the store.
_SIZE = 72


def _join(store: dist.Store, rank: int, size: int = _SIZE, extended: bool = True, **options: Any) -> JoiningRank:
    return JoiningRank(store, rank, size, extended=extended, **options)


def _start(store: dist.Store, ranks: Iterable[int], size: int = _SIZE, **options: Any) -> list[JoiningRank]:
    return [_join(store, rank, size, **options) for rank in ranks]


def _num_rounds(store: dist.Store, size: int = _SIZE) -> int:
    return store.add(f"axon/{size}/round", 0)


def _count_calls_and_bytes(size: int) -> None:
    store = dist.HashStore()
    num_keys = []
    for attempt in range(3):
        before = _num_rounds(store, size)
        ranks = _start(store, [0], size)
        wait_until(lambda n=before: _num_rounds(store, size) > n, "no round")  # type: ignore[misc]
        ranks += _start(store, range(1, size), size)
        check_group(ranks)
        # Where all this takes more than seconds, rank 0 opens further rounds: address, end and sweep.
        num_more = 3 * (_num_rounds(store, size) - before - 1)
        # A rank that has waited for a second reads in the store how the round has ended.
        most = max(rank.store.num_made - rank.store.num_outcomes_read for rank in ranks[1:])
        assert max(rank.store.num_outcomes_read for rank in ranks) <= 1 + num_more
        assert most <= (4 if attempt == 0 else 5) + num_more
        assert ranks[0].store.num_made <= (5 if attempt == 0 else 11) + 2 * num_more
        most_bytes = max(rank.store.num_bytes for rank in ranks)
        print(f"{size} ranks: {most} calls, rank 0 {ranks[0].store.num_made}; {most_bytes} bytes", file=sys.stderr)
        assert most_bytes <= 4096
        num_keys.append(store.num_keys())
    assert num_keys == num_keys[:1] * 3


def _count_for_72_ranks() -> None:
    _count_calls_and_bytes(_SIZE)


def _count_for_160_ranks() -> None:
    _count_calls_and_bytes(160)


def _read_the_outcome_where_rank_0_is_late() -> None:
    store = dist.HashStore()
    ranks = [_join(store, 0, pause_s=2.5), *_start(store, range(1, _SIZE))]
    check_group(ranks)
    assert {rank.store.num_outcomes_read for rank in ranks[1:]} <= {0, 1}
    assert any(rank.store.num_outcomes_read for rank in ranks[1:])


def _join_without_the_extended_calls() -> None:
    store = dist.HashStore()
    for _ in range(2):
        check_group(_start(store, range(_SIZE), extended=False))


def _arrive_in_any_order() -> None:
    store = dist.HashStore()
    for first in (0, 7, 39):
        check_group(_start(store, [*range(first, _SIZE), *range(first)]))


def _arrive_ten_seconds_late() -> None:
    store = dist.HashStore()
    ranks = _start(store, range(_SIZE - 1))
    time.sleep(10)
    check_group([*ranks, _join(store, _SIZE - 1)])
    assert _num_rounds(store) >= 2


def _kill_before_the_address() -> None:
    """Rank 5, an inner one, dies after it has read the round, and is replaced while the others wait."""
    store = dist.HashStore()
    dying = _join(store, 5, num_calls=1)
    ranks = _start(store, [rank for rank in range(_SIZE) if rank != 5])
    dying.end()
    check_group([*ranks, _join(store, 5)])


def _kill_after_the_address() -> None:
    """The same after it has stored its address; the last rank comes after a longer time than a short round."""
    store = dist.HashStore()
    dying = _join(store, 5, num_calls=2)
    ranks = _start(store, [rank for rank in range(_SIZE - 1) if rank != 5])
    dying.end()
    time.sleep(4)
    ranks.append(_join(store, _SIZE - 1))
    wait_until(lambda: _num_rounds(store) >= 2, "rank 0 takes a long round for a short one")
    check_group([*ranks, _join(store, 5)])


def _restart_after_a_death_at_every_call() -> None:
    """As an agent does: once a rank has died, it kills all, and starts them again."""
    for dying in (0, 1, 39):
        for num_calls in range(6 if dying == 0 else 4):
            store = dist.HashStore()
            ranks = [_join(store, rank, num_calls=num_calls if rank == dying else 1 << 30) for rank in range(_SIZE)]
            ranks[dying].end()
            for rank in ranks:
                rank.store.dead.set()
            for rank in ranks:
                rank.kill()
            order = [(dying + 1 + i) % _SIZE for i in range(_SIZE)]
            check_group(_start(store, order))


def _replace_rank_0_while_others_exchange() -> None:
    """Rank 0 dies after the exchange has begun. All others stay, and go to the round of its replacement."""
    for num_calls in (3, 4):  # before it reads its children's addresses; before it announces the outcome
        store = dist.HashStore()
        ranks = [_join(store, rank, num_calls=num_calls if rank == 0 else 1 << 30) for rank in range(_SIZE)]
        ranks[0].end()
        assert ranks[0].backend is None
        check_group([_join(store, 0), *ranks[1:]])


def _come_late_to_a_group() -> None:
    """A rank that finds an ended round waits for the next group of the name, and is killed or becomes a member."""
    store = dist.HashStore()
    check_group(_start(store, range(_SIZE)))
    killed = _join(store, 3)
    wait_until(lambda: killed.store.num_made >= 5, "it does not wait for the next round")
    killed.kill()
    early = _join(store, 3)
    wait_until(lambda: early.store.num_made >= 5, "it does not wait for the next round")
    check_group([early, *_start(store, [rank for rank in range(_SIZE) if rank != 3])])


def _name_absent_ranks() -> None:
    store = dist.HashStore()
    absent = (4, 17, 39)
    ranks = _start(store, [rank for rank in range(1, _SIZE) if rank not in absent])
    root = _join(store, 0, timeout_s=6)
    root.end()
    assert "Timed out after 6000 ms" in root.error
    assert root.error.split("Not joined by: ")[1].startswith("rank 4, rank 17, rank 39"), root.error
    for rank in ranks:
        rank.store.dead.set()
    for rank in ranks:
        rank.kill()
    check_group(_start(store, range(_SIZE)))
    alone = _join(store, 7, timeout_s=0.3)
    alone.end()
    assert alone.error.split("Not joined by: ")[1].startswith("rank 0"), alone.error


def _name_some_of_many_absent_ranks() -> None:
    alone = _join(dist.HashStore(), 0, 1000, timeout_s=0.3)
    alone.end()
    names = alone.error.split("Not joined by: ")[1]
    assert names.startswith("rank 1, rank 2, rank 3,")
    assert "rank 32 and others" in names


def _tell_all_of_a_failed_exchange() -> None:
    """Rank 9 cannot read the address of a child. All ranks name it, and can form the group again."""
    store = dist.HashStore()
    ranks = [_join(store, rank, damaged="/38" if rank == 9 else "") for rank in range(_SIZE)]
    for rank in ranks:
        rank.end()
        assert "The ranks could not exchange their addresses. Rank 9: the address of rank 38" in rank.error, rank.error
    check_group(_start(store, range(_SIZE)))


def _end_where_a_rank_stops_within_the_exchange() -> None:
    """Rank 9 stops unseen before it reads its neighbours' addresses: within a process, no connection breaks."""
    store = dist.HashStore()
    ranks = [_join(store, rank, num_calls=3 if rank == 9 else 1 << 30, timeout_s=8) for rank in range(_SIZE)]
    for rank in ranks:
        rank.end()
        assert rank.backend is None
    # Rank 2 is its parent, and rank 0 that of rank 2. Which of them gives up first is a matter of milliseconds. If the
    # ranks have taken seconds to arrive, rank 9 stops in the second round, before it has stored its address.
    texts = ("it waited for rank 2", "it waited for rank 9", "Not joined by: rank 9")
    assert any(text in ranks[0].error for text in texts), ranks[0].error
    check_group(_start(store, range(_SIZE)))


_SCENARIOS: list[Callable[[], None]] = [
    _count_for_72_ranks,
    _count_for_160_ranks,
    _read_the_outcome_where_rank_0_is_late,
    _join_without_the_extended_calls,
    _arrive_in_any_order,
    _arrive_ten_seconds_late,
    _kill_before_the_address,
    _kill_after_the_address,
    _restart_after_a_death_at_every_call,
    _replace_rank_0_while_others_exchange,
    _come_late_to_a_group,
    _name_absent_ranks,
    _name_some_of_many_absent_ranks,
    _tell_all_of_a_failed_exchange,
    _end_where_a_rank_stops_within_the_exchange,
]


@pytest.mark.parametrize("scenario", _SCENARIOS, ids=lambda scenario: scenario.__name__.strip("_"))
def test_ranks_exchange_addresses_over_a_tree(scenario: Callable[[], None], fresh_ranks) -> None:
    fresh_ranks(1, meeting="none").run(scenario, timeout_s=240)


class _Suicidal(dist.Store):
    """A store whose rank kills its process as it begins to read its neighbours' addresses."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.store = store

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        if key.rpartition("/")[2].isdigit():
            os.kill(os.getpid(), signal.SIGKILL)
        self.store.set_timeout(self.timeout)
        return self.store.get(key)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)


def _join_processes(folder: str, dying: int) -> str:
    """Joins through a TCP server, or returns why that fails. Rank `dying` kills itself within the exchange."""
    store: dist.Store = dist.TCPStore("127.0.0.1", int(Path(folder, "port").read_text()), is_master=False)
    rank = own_rank()
    if rank == dying:
        store = _Suicidal(store)
    try:
        dist.init_process_group(
            "axon", store=store, rank=rank, world_size=_NUM_PROCESSES, timeout=timedelta(seconds=90)
        )
    except dist.DistBackendError as error:
        return str(error)
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [_NUM_PROCESSES] * 3
    dist.destroy_process_group()
    return ""


# Processes take more memory and time than threads.
_NUM_PROCESSES = 66


def test_all_processes_name_one_that_dies_within_the_exchange(fresh_ranks, tmp_path: Path) -> None:
    dying = 7
    pool = fresh_ranks(_NUM_PROCESSES, meeting="none")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    (tmp_path / "port").write_text(str(server.port))
    pool.start(_join_processes, str(tmp_path), dying)
    errors = pool.finish(timeout_s=200, dying=[dying])
    for rank, error in enumerate(errors):
        if rank == dying:
            continue
        assert "The ranks could not exchange their addresses. Rank " in error, f"rank {rank}: {error}"
        assert f"rank {dying}: " in error, error
    pool.close()


def test_processes_join_through_a_tcp_server(fresh_ranks, tmp_path: Path) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    (tmp_path / "port").write_text(str(server.port))
    pool = fresh_ranks(_NUM_PROCESSES, meeting="none")
    assert pool.run(_join_processes, str(tmp_path), -1, timeout_s=200) == [""] * _NUM_PROCESSES
