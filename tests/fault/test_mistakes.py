"""A rank reconfigures otherwise than the others: they raise in time, name it, go on without it, and then with it.

Faults of a rank within `reconfigure` are part of the matrices of test_faults.py and test_members.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from fault_case import LAST, NUM_RANKS, TIMEOUT_S
from fault_members import handle
from fault_mistakes import MISTAKES, Members, go_on_as, reconfigure_but_for

from support.devices import on
from support.pool import BACKEND, RankPool

pytestmark = [pytest.mark.skipif(BACKEND != "axon", reason="what axon promises"), on("cpu", "cuda", scope="module")]

_NUMBERS = itertools.count()  # of the groups' instances
_ALL = list(range(NUM_RANKS))


@pytest.fixture(scope="module")
def pool(device: str) -> Iterator[RankPool]:
    with RankPool(NUM_RANKS, meeting="none", device=device) as pool:
        yield pool


def _named(mistake: str, victim: int) -> str:
    """Returns what an error must name. A rank says its number in its own list, which may be another one here."""
    return rf"(?:rank {victim}|were given different handles)" if mistake == "names another order" else f"rank {victim}"


@pytest.mark.parametrize("victim", _ALL[::-1])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_ranks_name_the_one_that_reconfigures_otherwise(
    mistake: str, victim: int, pool: RankPool, request: pytest.FixtureRequest
) -> None:
    if victim != LAST and not request.config.getoption("--all-faults"):
        pytest.skip("resembles another case; --all-faults runs all cases")
    handles = pool.run(handle)
    pool.run(go_on_as, _ALL, Members(next(_NUMBERS), handles))
    # The victim may use up the next number, too.
    outcomes = pool.run(reconfigure_but_for, victim, mistake, Members(next(_NUMBERS), handles))
    next(_NUMBERS)
    survivors = [rank for rank in _ALL if rank != victim]
    starved_s = max(stretch.starved_s for _, stretch in outcomes)
    for text, stretch in (outcomes[rank] for rank in survivors):
        assert re.search(rf"\] reconfigure: .*\b{_named(mistake, victim)}\b", text), text
        assert stretch.is_within(TIMEOUT_S + 1, starved_s), f"{stretch}: {text}"
    pool.run(go_on_as, survivors, Members(next(_NUMBERS), handles))
    pool.run(go_on_as, _ALL, Members(next(_NUMBERS), pool.run(handle)))
