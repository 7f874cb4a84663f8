"""Ranks that join a group in threads of one process, each with a store of its own that may die.

From then on the store's calls have no effect, as if the rank had been killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_TIMEOUT_S = 90.0
_ENDLESS = 1 << 30


class _KilledError(Exception):
    pass


class MortalStore(dist.Store):
    """One rank's view of a store, which counts calls and bytes read. Serves `num_calls` calls, then dies.

    `check` does not count: ranks call it only after they have waited, after a failure, and where a name is used again.
    `extended`: whether the store has calls for several keys. The values of keys that end with `damaged` are garbled.
    `pause_s`: how long the rank pauses once it has announced how a round ended.
    """

    def __init__(
        self,
        store: dist.Store,
        num_calls: int = _ENDLESS,
        extended: bool = False,
        damaged: str = "",
        pause_s: float = 0,
    ) -> None:
        super().__init__()
        self.store, self.num_left, self.num_made, self.num_bytes = store, num_calls, 0, 0
        self.num_outcomes_read = 0
        self.extended, self.damaged, self.pause_s = extended, damaged, pause_s
        self.dead = threading.Event()

    def _live(self) -> None:
        if self.num_made == self.num_left:
            self.dead.set()
        if self.dead.is_set():
            raise _KilledError
        self.num_made += 1

    def _await(self, keys: list[str], timeout: timedelta) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.store.check(keys):  # not within the store, where a rank cannot be killed
            if self.dead.wait(0.005):
                raise _KilledError
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"timeout: {keys[0]}")

    def _read(self, key: str) -> bytes:
        value = self.store.get(key)
        self.num_bytes += len(value)
        return b"garbled" if self.damaged and key.endswith(self.damaged) else value

    def has_extended_api(self) -> bool:
        return self.extended

    def set(self, key: str, value: bytes) -> None:
        self._live()
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        self._live()
        self.num_outcomes_read += key.endswith("/outcome")
        self._await([key], self.timeout)
        return self._read(key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        assert self.extended
        self._live()
        self._await(keys, self.timeout)
        return [self._read(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        assert self.extended
        self._live()
        for key, value in zip(keys, values, strict=True):
            self.store.set(key, value)
        if any(key.endswith("/outcome") for key in keys):
            time.sleep(self.pause_s)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        assert self.extended
        self._live()
        self._await(keys, timeout or self.timeout)

    def add(self, key: str, amount: int) -> int:
        self._live()
        return self.store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        if self.dead.is_set():
            raise _KilledError
        return self.store.check(keys)

    def deleteKey(self, key: str) -> bool:  # noqa: N802 - what torch calls of a store in Python
        self._live()
        return self.store.delete_key(key)


class JoiningRank:
    """A rank that joins a group, in a thread."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        num_calls: int = _ENDLESS,
        timeout_s: float = _TIMEOUT_S,
        extended: bool = False,
        damaged: str = "",
        pause_s: float = 0,
    ) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.store = MortalStore(store, num_calls, extended, damaged, pause_s)
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


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def check_group(ranks: Iterable[JoiningRank]) -> None:
    """Checks that exactly these ranks have formed one group. Ends the group."""
    ranks = sorted(ranks, key=lambda rank: rank.rank)
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
