"""A rank fails: others that do not wait for it go on undisturbed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from devices import on
from fault_bystanders import fail_beside, talk_beside
from fault_case import NOTICE_S, Case, Place
from fault_ranks import ALL, VICTIM, Ranks
from pool import BACKEND

pytestmark = [pytest.mark.skipif(BACKEND != "axon", reason="what axon promises"), on("cpu", scope="module")]


@pytest.fixture(scope="module")
def ranks(device: str) -> Iterator[Ranks]:
    ranks = Ranks(device)
    yield ranks
    ranks.close()


def _has_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _let_fail(case: Case, ranks: Ranks) -> tuple[list[str], list[float]]:
    victim, kind = ranks.victim, case.kind
    victim.start(fail_beside, case, Place(VICTIM, ALL))
    ranks.survivors.start(talk_beside, case, Place(0, ALL))
    if kind.then:
        case.hear("struck")
        while not _has_stopped(victim.pids[0]):
            os.sched_yield()
    else:
        victim.finish(dying=[0] if kind.end == "ends" else [])
    case.tell("over")
    outcomes = ranks.survivors.finish()
    if kind.then:
        os.kill(victim.pids[0], kind.then)
        victim.finish(dying=[0])
    messages = [message for messages, _ in outcomes for message in messages]
    return messages, [stretch.own_s() for _, stretches in outcomes for stretch in stretches]


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
        messages, rounds_s = _let_fail(case, ranks)
    for message in messages:
        assert f"rank {VICTIM}" in message
    assert max(rounds_s) < NOTICE_S["cpu"], "a round of the talk took long"
