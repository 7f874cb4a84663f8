"""A host that is cut off from another one, and comes back: each side goes on alone, and both join again.

The test process passes the handles on and lists the members, as a coordinator would that reaches both hosts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_axon
from support.gpu import backend_of
from support.hosts import Hosts, pools_on
from support.pool import RankPool, own_rank
from support.reference import failure, failure_or_nothing, same_bits

SHORT, LONG = timedelta(seconds=3), timedelta(seconds=60)
EVERYONE = (0, 1, 2, 3)  # two on each host
STRIKES = {"cut": Hosts.cut, "silence": Hosts.silence}

Strike = Callable[[Hosts], None]


class Sides:
    """Two processes on each host. Each process has a number, by which `handles` are sorted."""

    def __init__(self, pools: Sequence[RankPool]) -> None:
        self._pools = pools
        self.handles = self.run(_alone)

    def start(self, call: Callable[..., object], *arguments: object, host: int | None = None) -> None:
        for each, pool in enumerate(self._pools):
            if host in (None, each):
                pool.start(call, 2 * each, *arguments)

    def finish(self, host: int | None = None) -> list[str]:
        pools = self._pools if host is None else [self._pools[host]]
        return [value for pool in pools for value in pool.finish(timeout_s=120)]

    def run(self, call: Callable[..., object], *arguments: object, host: int | None = None) -> list[str]:
        self.start(call, *arguments, host=host)
        return self.finish(host)


@pytest.fixture
def sides(hosts: Hosts) -> Iterator[Sides]:
    with pools_on(hosts, 2) as pools:
        yield Sides(pools)


def _alone(_first: int) -> str:
    dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1, timeout=LONG)
    return torch_axon.reconfigure_handle()


def _join(first: int, uuid: int, handles: Sequence[str], members: Sequence[int]) -> None:
    torch_axon.reconfigure(uuid, [handles[member] for member in members])
    _use(first, members)


def _join_if_listed(first: int, uuid: int, handles: Sequence[str], members: Sequence[int]) -> None:
    if first + own_rank() in members:
        _join(first, uuid, handles, members)


def _try_to_join(first: int, uuid: int, handles: Sequence[str], members: Sequence[int]) -> str:
    """Returns the error, or an empty text."""
    return failure_or_nothing(lambda: _join(first, uuid, handles, members))


def _use(first: int, members: Sequence[int]) -> None:
    own = first + own_rank()
    assert (dist.get_rank(), dist.get_world_size()) == (list(members).index(own), len(members))
    for count in (1, 10_000, 3_000_000):
        data = torch.full((count,), float(own + 1))
        dist.all_reduce(data)
        same_bits(data, torch.full((count,), float(sum(member + 1 for member in members))))
    for root, member in enumerate(members):
        data = torch.full((100,), own)
        dist.broadcast(data, root)
        same_bits(data, torch.full((100,), member))


def _use_until_it_fails(_first: int, count: int) -> str:
    """Returns the error. The group's timeout is longer than what a silent host is given."""
    deadline = time.monotonic() + 100

    def all_reduce_again() -> None:
        while time.monotonic() < deadline:
            dist.all_reduce(torch.ones(count))

    return failure(all_reduce_again)


def _time_out(first: int) -> str:
    backend_of()._set_default_timeout(SHORT)
    text = _use_until_it_fails(first, 100)
    backend_of()._set_default_timeout(LONG)
    return text


def _fail_to_join(_first: int, uuid: int, handles: Sequence[str], timeout: timedelta) -> list[str]:
    return [
        failure(lambda: torch_axon.reconfigure(uuid, handles, timeout=timeout)),
        failure(lambda: dist.all_reduce(torch.ones(3))),
    ]


def _names_one_of(ranks: Sequence[int], text: str) -> None:
    named = re.findall(r"rank (\d) (?:is gone|cannot be reached|\(does not answer|\(process \d+ on)", text)
    assert any(int(each) in ranks for each in named), text


@pytest.mark.parametrize(("strike", "count"), [("cut", 1), ("silence", 3_000_000)])
def test_a_host_that_was_cut_off_joins_again(strike: str, count: int, hosts: Hosts, sides: Sides) -> None:
    handles = sides.handles
    sides.run(_join, 1, handles, EVERYONE)
    sides.start(_use_until_it_fails, count)
    STRIKES[strike](hosts)
    for number, text in enumerate(sides.finish()):
        _names_one_of((2, 3) if number < 2 else (0, 1), text)

    # The first host goes on alone. The other one does not believe that all of them are still a group.
    sides.start(_join, 2, handles, (0, 1), host=0)
    sides.start(_fail_to_join, 2, handles, SHORT, host=1)
    sides.finish(host=0)
    for texts in sides.finish(host=1):
        for text in texts:
            assert "reconfigure" in text
            _names_one_of((0, 1), text)

    # Now each is a group of its own, also once the link is back.
    sides.run(_join, 3, handles, (2, 3), host=1)
    hosts.mend()
    sides.start(_use, (0, 1), host=0)
    sides.start(_use, (2, 3), host=1)
    sides.finish()

    uuid = _join_in_the_end(sides, 4)
    for each, members in enumerate([(2, 0, 3, 1), (1, 3), EVERYONE]):
        sides.run(_join_if_listed, uuid + 1 + each, handles, members)


def test_two_sides_that_each_list_all_members_form_no_group(hosts: Hosts, sides: Sides) -> None:
    sides.run(_join, 1, sides.handles, EVERYONE)
    hosts.cut()
    for number, texts in enumerate(sides.run(_fail_to_join, 2, sides.handles, SHORT)):
        _names_one_of((2, 3) if number < 2 else (0, 1), texts[0])
    hosts.mend()
    _join_in_the_end(sides, 3)


def test_a_side_that_has_not_noticed_joins_again(hosts: Hosts, sides: Sides) -> None:
    """The second host sends nothing while the link is down, so only the first one finds the other host silent."""
    sides.run(_join, 1, sides.handles, EVERYONE)
    hosts.cut()
    for text in sides.run(_use_until_it_fails, 1, host=0):
        _names_one_of((2, 3), text)
    sides.run(_join, 2, sides.handles, (0, 1), host=0)
    hosts.mend()
    _join_in_the_end(sides, 3)


@pytest.mark.parametrize("network", ["rails", "ucx"], indirect=True)
def test_sides_that_have_only_timed_out_join_again(network: str, hosts: Hosts, sides: Sides) -> None:
    """The link is back before any connection has broken. UCX notices no silence, so its connections never break."""
    sides.run(_join, 1, sides.handles, EVERYONE)
    hosts.cut()
    for number, text in enumerate(sides.run(_time_out)):
        _names_one_of((2, 3) if number < 2 else (0, 1), text)
    sides.start(_join, 2, sides.handles, (0, 1), host=0)
    sides.start(_join, 2, sides.handles, (2, 3), host=1)
    sides.finish()
    hosts.mend()
    _join_in_the_end(sides, 3)


def _join_in_the_end(sides: Sides, uuid: int) -> int:
    """Lets all call reconfigure with a new number until none of them fails, and returns that number.

    A process that has not noticed the loss fails: its connections are those that others have given up.
    """
    deadline = time.monotonic() + 60
    while any(texts := sides.run(_try_to_join, uuid, sides.handles, EVERYONE)):
        assert time.monotonic() < deadline, texts
        uuid += 1
    return uuid
