"""Emulates hosts for a test, and skips the test where that is impossible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import two_hosts as network
from two_hosts import ADDRESSES, Hosts, move_to

from support.pool import RankPool

__all__ = ["ADDRESSES", "Hosts", "move_to", "pools_on", "run_on_hosts", "several_hosts", "two_hosts"]


@contextmanager
def _or_skip(hosts: AbstractContextManager[Hosts]) -> Iterator[Hosts]:
    try:
        with hosts as made:
            yield made
    except network.UnavailableError as reason:
        pytest.skip(str(reason))


def two_hosts() -> AbstractContextManager[Hosts]:
    return _or_skip(network.two_hosts())


def several_hosts(number: int) -> AbstractContextManager[Hosts]:
    return _or_skip(network.several_hosts(number))


@contextmanager
def pools_on(hosts: Hosts, num_ranks: int) -> Iterator[tuple[RankPool, RankPool]]:
    """Starts processes that are in no group yet, `num_ranks` on each of two hosts."""
    with RankPool(num_ranks, meeting="none") as one, RankPool(num_ranks, meeting="none") as other:
        for pool, name in zip((one, other), hosts.names, strict=True):
            pool.run(move_to, name)
        yield one, other


def run_on_hosts(
    num_local: Sequence[int],
    store: Path,
    function: Callable[..., object],
    *arguments: object,
    dying: Sequence[int] = (),
) -> list[object]:
    """Returns what `function(store, rank, size, *arguments)` returns on each rank: num_local[h] ranks are on host h.

    The `dying` ranks must end their processes meanwhile.
    """
    with several_hosts(len(num_local)) as hosts, ExitStack() as stack:
        pools = []
        for host, number in enumerate(num_local):
            for _ in range(number):
                pool = stack.enter_context(RankPool(1, meeting="none"))
                pool.run(move_to, hosts.names[host])
                pools.append(pool)
        for rank, pool in enumerate(pools):
            pool.start(function, str(store), rank, len(pools), *arguments)
        return [pool.finish(dying=[0] if rank in dying else ())[0] for rank, pool in enumerate(pools)]
