"""A group of 36 ranks on two hosts, of which not all are connected: collectives, deaths, and a host that is cut off."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.hosts import Hosts, pools_on
from support.pool import RankPool, own_rank
from support.reference import failure, failure_or_nothing

_RANKS_ON_A_HOST = 18
_SIZE = 2 * _RANKS_ON_A_HOST
_TIMEOUT = timedelta(seconds=100)

Pools = Sequence[RankPool]


@pytest.fixture
def pools(hosts: Hosts, tmp_path: Path) -> Iterator[Pools]:
    """Even ranks are on the first host, and odd ones on the second."""
    with pools_on(hosts, _RANKS_ON_A_HOST) as pools:
        _on_both(pools, _join, str(tmp_path / "store"))
        yield pools


def _on_both(
    pools: Pools, call: Callable[..., object], *arguments: object, dying: Sequence[int] = ()
) -> dict[int, object]:
    """Returns what the call returns, by rank. It gets the number of its host first."""
    for host, pool in enumerate(pools):
        pool.start(call, host, *arguments)
    results: dict[int, object] = {}
    for host, pool in enumerate(pools):
        ended = pool.finish(120, [rank // 2 for rank in dying if rank % 2 == host])
        results.update({2 * each + host: result for each, result in enumerate(ended) if 2 * each + host not in dying})
    return results


def _join(host: int, store: str) -> None:
    dist.init_process_group(
        "axon", store=dist.FileStore(store, _SIZE), rank=2 * own_rank() + host, world_size=_SIZE, timeout=_TIMEOUT
    )


def _num_connections(_host: int) -> int:
    """Returns how many TCP connections this process has to other hosts."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
        except OSError:  # the listing's own descriptor
            continue
        inodes.update([found[1]] if found else [])
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]]
    return sum(1 for row in rows if row[3] == "01" and row[9] in inodes)


def _descriptor_table(_host: int) -> int:
    """Returns for how many file descriptors the kernel has room before it must copy this process's table."""
    return int(Path("/proc/self/status").read_text().split("FDSize:")[1].split()[0])


def _use(_host: int) -> None:
    for count in (1, 5000, 400_000):
        data = torch.full((count,), float(dist.get_rank()))
        dist.all_reduce(data)
        assert data.unique().tolist() == [_SIZE * (_SIZE - 1) / 2]
    gathered = [torch.empty(3) for _ in range(_SIZE)]
    dist.all_gather(gathered, torch.full((3,), float(dist.get_rank())))
    assert [int(each[0]) for each in gathered] == list(range(_SIZE))
    data = torch.full((7,), float(dist.get_rank()))
    dist.broadcast(data, 5)
    assert data.tolist() == [5.0] * 7
    dist.barrier()


def _fail(_host: int) -> str:
    return failure(lambda: dist.all_reduce(torch.ones(4)))


def _fail_beside(host: int, victim: int) -> str:
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return _fail(host)


def _gather(_host: int) -> None:
    own = torch.full((2,), float(dist.get_rank()))
    outputs = [torch.empty(2) for _ in range(_SIZE)] if dist.get_rank() == 0 else None
    dist.gather(own, outputs)
    assert outputs is None or [int(each[0]) for each in outputs] == list(range(_SIZE))


def _gather_beside(_host: int, victim: int) -> str:
    """No rank waits for the victim but rank 0, to which the others only send."""
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    outputs = [torch.empty(2) for _ in range(_SIZE)] if dist.get_rank() == 0 else None
    return failure_or_nothing(lambda: dist.gather(torch.ones(2), outputs))


def _scatter_and_gather(_host: int) -> None:
    inputs = [torch.full((2,), float(_SIZE * dist.get_rank() + other)) for other in range(_SIZE)]
    outputs = [torch.empty(2) for _ in range(_SIZE)]
    dist.all_to_all(outputs, inputs)
    assert [int(each[0]) for each in outputs] == [_SIZE * other + dist.get_rank() for other in range(_SIZE)]


def test_the_table_of_file_descriptors_grows_before_the_first_operation(pools: Pools) -> None:
    sizes = _on_both(pools, _descriptor_table)
    assert min(int(str(size)) for size in sizes.values()) > 64  # it began with 64
    _on_both(pools, _use)
    assert _on_both(pools, _descriptor_table) == sizes


def test_ranks_connect_to_those_with_which_they_exchange_messages(pools: Pools) -> None:
    _on_both(pools, _use)
    counts = _on_both(pools, _num_connections)
    assert max(int(str(count)) for count in counts.values()) < _RANKS_ON_A_HOST
    _on_both(pools, _scatter_and_gather)
    counts = _on_both(pools, _num_connections)
    assert min(int(str(count)) for count in counts.values()) >= _RANKS_ON_A_HOST


@pytest.mark.parametrize("is_used_before", [True, False])
def test_a_rank_that_is_killed_is_named_on_all_ranks(pools: Pools, is_used_before: bool) -> None:
    if is_used_before:
        _on_both(pools, _use)
    victim = 11
    errors = _on_both(pools, _fail_beside, victim, dying=[victim])
    assert {rank: error for rank, error in errors.items() if f"rank {victim} is gone" not in str(error)} == {}


@pytest.mark.usefixtures("network")
def test_the_death_of_a_rank_that_has_only_sent_is_noticed(pools: Pools) -> None:
    _on_both(pools, _gather)
    errors = _on_both(pools, _gather_beside, 11, dying=[11])
    assert "rank 11 is gone" in str(errors[0])


def test_each_host_names_a_rank_of_the_one_that_is_cut_off(hosts: Hosts, pools: Pools) -> None:
    _on_both(pools, _use)
    hosts.cut()
    errors = _on_both(pools, _fail)
    named = {rank: re.search(r"rank (\d+) is gone", str(error)) for rank, error in errors.items()}
    assert [rank for rank, found in named.items() if found is None or int(found[1]) % 2 == rank % 2] == []
