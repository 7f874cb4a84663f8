"""A rank fails: the traffic of ranks that do not wait for it is undisturbed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_bystanders import fail_beside, talk_beside
from fault_case import FORMING_TIMEOUT_S, NOTICE_S, Case, Place, Stretch
from fault_ranks import Ranks

from support.devices import on
from support.pool import BACKEND
from support.processes import state_of

pytestmark = [pytest.mark.skipif(BACKEND != "axon", reason="what axon promises"), on("cpu", scope="module")]


@pytest.fixture(scope="module")
def ranks(device: str) -> Iterator[Ranks]:
    ranks = Ranks(device)
    yield ranks
    ranks.close()


def _await_stop(pid: int) -> None:
    deadline = time.monotonic() + FORMING_TIMEOUT_S
    while (state := state_of(pid)) != "T":
        assert state not in (None, "Z"), "the victim has ended"
        assert time.monotonic() < deadline, f"the victim has not stopped, its state is {state}"
        os.sched_yield()


def _let_fail(case: Case, ranks: Ranks) -> tuple[list[str], list[list[Stretch]]]:
    """Returns the errors of the two ranks, and the rounds of each."""
    victim, kind = ranks.victim, case.kind
    victim.start(fail_beside, case, Place((case.victim,)))
    ranks.survivors.start(talk_beside, case, Place(case.survivors))
    if kind.then:
        case.hear("struck")
        _await_stop(victim.pids[0])
    else:
        victim.finish(dying=[0] if kind.end == "ends" else [])
    case.tell("over")
    outcomes = ranks.survivors.finish()
    if kind.then:
        os.kill(victim.pids[0], kind.then)
        victim.finish(dying=[0])
    messages = [message for messages, _ in outcomes for message in messages]
    return messages, [stretches for _, stretches in outcomes]


def _judge(rounds: list[Stretch], partners: list[Stretch]) -> None:
    """Checks the durations. A partner may begin a round late: its part lasts from the end of the previous round."""
    began = [partners[0].started, *(each.ended for each in partners)]
    for own, partner, since in zip(rounds, partners, began[:-1], strict=True):
        starved_s = Stretch(since, partner.ended).starved_s
        assert own.is_within(NOTICE_S["cpu"], starved_s), f"a round of the traffic took too long: {own}, {partner}"


@pytest.mark.parametrize(
    ("fault", "moment", "operation"),
    [
        ("kill", "before", "barrier"),
        ("kill", "inside", "all_reduce"),
        ("kill", "inside", "large_all_reduce"),
        ("kill", "inside", "large_send_recv"),
        ("stop", "inside", "large_send_recv"),
        ("stop", "before", "all_reduce"),
        ("exception", "inside", "all_reduce"),
        ("interrupt", "inside", "large_all_reduce"),
    ],
)
def test_ranks_that_do_not_wait_for_it_go_on(fault: str, moment: str, operation: str, ranks: Ranks, tmp_path: Path):
    case = Case(fault, moment, operation, str(tmp_path))
    with ranks.breaking():
        messages, (rounds, partners) = _let_fail(case, ranks)
    for message in messages:
        assert f"rank {case.victim}" in message
    _judge(rounds, partners)
    _judge(partners, rounds)
