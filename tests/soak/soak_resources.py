"""Measures what a process holds, and whether that grows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from support import holdings
from support.gpu_memory import held_kib
from support.holdings import memory_kib


@dataclass(frozen=True)
class Resources:
    descriptors: int
    threads: int
    own_kib: int  # memory of this process alone
    shared_kib: int  # and its shared memory
    gpu_kib: int  # GPU memory of this process alone


def measure() -> Resources:
    own, shared = memory_kib("RssAnon", "RssShmem")
    return Resources(
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        own_kib=own,
        shared_kib=shared,
        gpu_kib=held_kib(),
    )


@dataclass(frozen=True)
class Limits:
    """The growth allowed from the second third of a process's rounds to the last: constant, per round and per death."""

    # Pools grow until they hold the maximum that concurrent operations have needed. GPU memory: four granules.
    constant: Resources = Resources(descriptors=8, threads=4, own_kib=96 << 10, shared_kib=16 << 10, gpu_kib=8 << 10)
    own_kib_a_round: int = 16
    # Memory that a dead process of this host had shared stays mapped if its queue was full (docs/adr/0021-…).
    shared_kib_a_death: int = 2 << 10

    def excess(self, growth: dict[str, int], num_rounds: int, num_deaths: int) -> list[str]:
        allowed = asdict(self.constant)
        allowed["own_kib"] += self.own_kib_a_round * num_rounds
        allowed["shared_kib"] += self.shared_kib_a_death * num_deaths
        return [
            f"{name} grew by {growth[name]}, allowed are {most}"
            for name, most in allowed.items()
            if growth[name] > most
        ]


def growth(history: Sequence[Resources]) -> dict[str, int]:
    """Returns the growth from the second third to the last, by their medians; in the first third, pools fill.

    GPU memory counts by its minimum: some stays mapped until a peer, too, has closed its handle (docs/cuda.md).
    """
    return holdings.growth([asdict(each) for each in history], {"gpu_kib": min}, otherwise=median)
