"""Groups whose ranks arrive and leave at different times."""

from __future__ import annotations

import multiprocessing
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.pool import BACKEND, RankPool
from support.reference import failure

# Well below the timeouts, and enough for a loaded machine.
PROMPT_S = 5.0


class _Delayed(dist.Store):
    """A store that answers a rank late: it forms its group long after the others."""

    def __init__(self, store: dist.Store, seconds: float) -> None:
        super().__init__()
        self.store, self.seconds = store, seconds

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        return self.store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)

    def delete_key(self, key: str) -> bool:
        return self.store.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        self.store.set_timeout(timeout)

    def get(self, key: str) -> bytes:
        value = self.store.get(key)
        time.sleep(self.seconds)
        return value


def _own_rank() -> int:
    """Returns this process's rank: a pool without a group numbers its processes by name."""
    return int(multiprocessing.current_process().name.split()[1])


def _fail_before_the_other_has_joined(how: str, folder: str) -> tuple[str, float]:
    """Rank 1 has published its address, so rank 0 forms the group, and fails before rank 1 has formed it."""
    rank = _own_rank()
    store = _Delayed(dist.FileStore(f"{folder}/store", 2), 1.0 if rank == 1 else 0.0)
    dist.init_process_group("axon", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=30))
    group = dist.distributed_c10d._get_default_group()
    started = time.monotonic()
    if rank == 0 and how == "abort":
        group.abort()
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=0.3 if rank == 0 else 30)
    message = failure(lambda: group.allreduce([torch.ones(3)], options).wait())
    seconds = time.monotonic() - started
    dist.destroy_process_group()
    return message, seconds


@pytest.mark.parametrize("how", ["abort", "timeout"])
@pytest.mark.skipif(BACKEND != "axon", reason="axon's way to join")
def test_a_failure_reaches_a_rank_that_joins_later(how: str, fresh_ranks, tmp_path) -> None:
    ranks: RankPool = fresh_ranks(2, meeting="none")
    message, seconds = ranks.run(_fail_before_the_other_has_joined, how, str(tmp_path), timeout_s=40)[1]
    assert "rank 0 reports: " in message
    assert ("aborted" if how == "abort" else "all_reduce #1 (float32[3], SUM): Timed out after 300 ms") in message
    assert seconds < PROMPT_S


def _drop_while_a_thread_waits(folder: str) -> tuple[str, float]:
    """Creates a backend without a process group, as libraries do, and keeps it only through a waiting thread."""
    from torch_axon import _registration

    options = dist.distributed_c10d._DistributedBackendOptions()
    options.store, options.group_id = dist.FileStore(f"{folder}/store", 2), "library's"
    options.group_rank, options.group_size = _own_rank(), 2
    options.timeout = timedelta(seconds=30)
    backend = _registration._create(options, None)
    backend.barrier(dist.BarrierOptions()).wait()
    work = backend.recv([torch.ones(3)], 1 - backend.rank(), 0)
    messages: list[str] = []
    waiter = threading.Thread(target=lambda: messages.append(failure(work.wait)), daemon=True)
    waiter.start()
    time.sleep(0.3)  # it waits, or will find it ended
    started = time.monotonic()
    del backend
    waiter.join(PROMPT_S)
    assert messages, "still waiting"
    return messages[0], time.monotonic() - started


@pytest.mark.skipif(BACKEND != "axon", reason="axon's own backend")
def test_dropping_a_backend_ends_a_wait_of_another_thread(fresh_ranks, tmp_path) -> None:
    for message, seconds in fresh_ranks(2, meeting="none").run(_drop_while_a_thread_waits, str(tmp_path)):
        assert "receive from rank" in message
        assert "the group was destroyed" in message
        assert seconds < PROMPT_S
