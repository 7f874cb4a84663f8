"""After a fault, the survivors give the failed group other members, and use it.

The victim is left out, and then joins again: itself if it goes on, otherwise another process in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_case import FAULTS, LAST, MOMENTS, NUM_RANKS, Case
from fault_journal import Journal
from fault_members import DISAGREEMENTS, disagree, endure_as_members, handle, join_members
from fault_operations import OPERATIONS
from fault_ranks import Ranks

from support.devices import on
from support.pool import BACKEND, RankPool

pytestmark = [pytest.mark.skipif(BACKEND != "axon", reason="what axon promises"), on("cpu", scope="module")]


@pytest.fixture(scope="module")
def journal(device: str, request: pytest.FixtureRequest) -> Iterator[Journal]:
    journal = Journal(device, len(FAULTS) * len(MOMENTS) * len(OPERATIONS))
    yield journal
    if path := request.config.getoption("--faults-json", default=None):
        journal.append_to(path, request.config.getoption("--faults-commit", default=None))


def _short_suite() -> set[tuple[str, str, str]]:
    """Selects one operation for each fault and moment, each time another one. Faults that take a timeout have one
    moment."""
    operations = itertools.cycle(OPERATIONS)
    cases = {(fault, moment, next(operations)) for fault in FAULTS for moment in MOMENTS}
    numbers = {fault: number for number, fault in enumerate(FAULTS)}
    return {
        (fault, moment, operation)
        for fault, moment, operation in cases
        if not FAULTS[fault].takes_long or MOMENTS.index(moment) == numbers[fault] % len(MOMENTS)
    }


_SHORT_SUITE = _short_suite()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_survivors_go_on_in_the_same_group(
    fault: str, moment: str, operation: str, journal: Journal, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    case = Case(fault, moment, operation, str(tmp_path))
    if not request.config.getoption("--all-faults") and (fault, moment, operation) not in _SHORT_SUITE:
        pytest.skip("resembles another case; --all-faults runs all cases")
    journal.num_run += 1
    endure_as_members(
        request.getfixturevalue("ranks_of_two_hosts" if case.kind.crosses_hosts else "ranks"), case, journal
    )
    journal.num_passed += 1


@pytest.mark.parametrize("victim", range(LAST))
@pytest.mark.parametrize("fault", ["kill", "interrupt"])
def test_survivors_of_an_earlier_rank_go_on(
    fault: str, victim: int, ranks: Ranks, journal: Journal, tmp_path: Path
) -> None:
    endure_as_members(ranks, Case(fault, "inside", "all_reduce", str(tmp_path), victim), journal)


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_have_all_failed_go_on(name: str, fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(NUM_RANKS, "none")
    handles = ranks.run(handle)
    ranks.run(join_members, 0, handles)
    for number in (1, 2):
        texts = ranks.run(disagree, name)
        assert all(text.startswith("DistBackendError: ") for text in texts), texts
        ranks.run(join_members, number, handles[::-1] if number == 1 else handles)
