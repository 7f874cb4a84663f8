"""A rank fails, in several ways and at several moments: the others raise in time, name it, leave, and form another
group.

Each case strikes one rank, the victim, before it calls an operation, inside of it or after it. That is mostly the last
rank. A smaller matrix strikes other ranks, since algorithms treat ranks differently (roots, trees, neighbours). The
survivors are the same two processes in all cases, and the last test measures what the cases leave in them. Link faults
and those called remote strike a victim on another host. On GPUs a step includes the wait for its stream, which
completes whatever has happened; the next call raises.

The time limits are promises, and hold on a loaded machine too. They exclude the time in which the kernel had no
processor for the rank that should raise, or for a victim that announces its exit (fault_case.Stretch).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_case import FAULTS, LAST, MOMENTS, Case
from fault_journal import Journal, growth, resources
from fault_operations import OPERATIONS
from fault_ranks import Ranks

from support.devices import on
from support.pool import BACKEND

pytestmark = [
    pytest.mark.skipif(BACKEND != "axon", reason="what axon promises"),
    on("cpu", "cuda", scope="module"),
]

# The limit of growth per round: pools have filled by then, and each known peer leaves its address in memory.
MOST_KIB, MOST_KIB_A_ROUND = 4096, 8
# Two granules: less than the growth if every tenth round leaked a group.
MOST_GPU_KIB = 4 << 10

# Every case without a timeout runs every time; of the others, a part runs.
_THOROUGH = ("all_reduce", "all_gather", "large_send_recv", "barrier", "ddp_step", "fsdp_step", "reconfigure")
# Operations that leave work pending, each at another point.
_IN_ROUNDS = list(
    itertools.product(
        ("kill", "exception", "interrupt", "stop", "pause"),
        MOMENTS,
        ("all_reduce", "large_all_reduce", "large_send_recv", "barrier"),
    )
)


# Cases with other victims than the last rank: every fault in every operation for the first rank, and a kill for the
# middle one, each at another moment.
_OF_OTHERS = [
    (victim, fault, MOMENTS[(number + list(FAULTS).index(fault)) % len(MOMENTS)], operation)
    for victim, faults in ((0, list(FAULTS)), (1, ["kill"]))
    for fault in faults
    for number, operation in enumerate(OPERATIONS)
]


def _matrix(device: str) -> set[tuple[str, str, str]]:
    """Selects a part on GPUs, where groups take longer to form."""
    every = set(itertools.product(FAULTS, MOMENTS, OPERATIONS))
    return every if device == "cpu" else {each for each in every if each[0] != "pause" and each[2] in _THOROUGH}


@pytest.fixture(scope="module")
def journal(device: str, request: pytest.FixtureRequest) -> Iterator[Journal]:
    matrix = _matrix(device)
    journal = Journal(device, len(matrix) + sum(each[1:] in matrix for each in _OF_OTHERS))
    yield journal
    if path := request.config.getoption("--faults-json", default=None):
        journal.append_to(path, request.config.getoption("--faults-commit", default=None))


def _is_in_short_suite(case: Case) -> bool:
    """Selects one moment per operation for faults that take a timeout or resemble another fault.

    The moments alternate. Most of these faults run with every other operation only.
    """
    kind, is_thorough = case.kind, case.operation in _THOROUGH
    if case.victim != LAST:
        return case.victim == 0 and (case.fault == "kill" or (case.fault, case.operation) == ("stop", "barrier"))
    if is_thorough and not kind.takes_long:
        return True
    names = _THOROUGH if is_thorough else [name for name in OPERATIONS if name not in _THOROUGH]
    number = names.index(case.operation)
    if MOMENTS.index(case.moment) != number % len(MOMENTS):
        return False
    if case.fault in ("kill", "stop") and (is_thorough or case.fault == "kill"):
        return True
    return number % 2 == 0 and (is_thorough or case.fault == "stop")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_survivors_of_a_fault(
    fault: str, moment: str, operation: str, device: str, journal: Journal, tmp_path: Path, request
) -> None:
    _endure(Case(fault, moment, operation, str(tmp_path)), device, journal, request)


@pytest.mark.parametrize(("victim", "fault", "moment", "operation"), _OF_OTHERS)
def test_survivors_of_a_fault_of_an_earlier_rank(
    victim: int, fault: str, moment: str, operation: str, device: str, journal: Journal, tmp_path: Path, request
) -> None:
    _endure(Case(fault, moment, operation, str(tmp_path), victim), device, journal, request)


def _endure(case: Case, device: str, journal: Journal, request: pytest.FixtureRequest) -> None:
    if (case.fault, case.moment, case.operation) not in _matrix(device):
        pytest.skip("on CPUs only")
    if not request.config.getoption("--all-faults") and not _is_in_short_suite(case):
        pytest.skip("resembles another case, or takes a timeout or two hosts; --all-faults runs all cases")
    ranks: Ranks = request.getfixturevalue("ranks_of_two_hosts" if case.kind.crosses_hosts else "ranks")
    journal.num_run += 1
    ranks.endure(case, journal)
    journal.num_passed += 1


@pytest.mark.timeout(3600)  # for as many rounds as were requested; each round has its own deadlines
def test_rounds_leak_nothing(
    ranks: Ranks, device: str, journal: Journal, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Fails and regroups again and again in the same survivors.

    --fault-rounds sets the number of rounds, --round-fault the fault.
    """
    num_rounds: int = request.config.getoption("--fault-rounds")
    asked_for = request.config.getoption("--round-fault", default=None)
    cases = [each for each in _IN_ROUNDS if each in _matrix(device) and each[0] in (asked_for or FAULTS)]
    assert cases, f"--round-fault: none of {asked_for} strikes in rounds on {device}"
    measured = []
    for number in range(num_rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        ranks.endure(Case(*cases[number * 7 % len(cases)], str(folder)), journal)
        measured.append(ranks.survivors.run(resources))
    grown = [growth(history) for history in zip(*measured, strict=True)]
    journal.num_rounds, journal.round_faults = num_rounds, sorted({fault for fault, _, _ in cases})
    journal.growth = {name: max(each[name] for each in grown) for name in grown[0]}
    for name in ("descriptors", "threads", "abandoned files", "pieces of shared memory"):
        series = [[each[name] for each in history] for history in zip(*measured, strict=True)]
        assert journal.growth[name] <= 0, f"{name}: {series}"
    assert journal.growth["KiB of memory"] < MOST_KIB + MOST_KIB_A_ROUND * num_rounds
    assert journal.growth["KiB of GPU memory"] <= MOST_GPU_KIB
