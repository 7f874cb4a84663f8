"""The committed results match the lists, and the lists quote upstream's source correctly. Runs no upstream test."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import lists
import pytest
import sources
from check_results import complaints

_COMMITTED = [lists.Host("2.11"), lists.Host("2.15"), lists.Host("2.11", num_gpus=2)]
_HERE = lists.Host()
_OF_THIS_TORCH = [host for host in _COMMITTED if host.results == lists.Host(num_gpus=host.num_gpus).results]


def _function_of(name: str, functions: Iterable[str]) -> str | None:
    """The name of a parametrized test consists of its function's name and its arguments."""
    return max((known for known in functions if name.startswith(known)), key=len, default=None)


@pytest.mark.parametrize("host", _COMMITTED, ids=lambda host: host.results.stem)
def test_committed_results_are_as_listed(host: lists.Host) -> None:
    assert lists.committed(host), host.results
    assert list(complaints(lists.committed(host), lists.expected(host))) == []


@pytest.mark.parametrize("num_gpus", [0, 2, 4, 8])
@pytest.mark.parametrize("version", ["2.11", "2.15"])
def test_no_test_is_in_two_lists(version: str, num_gpus: int) -> None:
    lists.expected(lists.Host(version, num_gpus))


@pytest.mark.parametrize("on_gpus", [False, True], ids=["cpus", "gpus"])
def test_upstream_has_the_lines_that_are_quoted(on_gpus: bool) -> None:
    decorators = sources.decorators_by_test()
    for gate in lists.gates(on_gpus):
        if all(_HERE.has(condition) for condition in gate.conditions if condition.startswith("torch")):
            line = ast.unparse(ast.parse(gate.line[1:], mode="eval"))
            functions = {name: _function_of(name, decorators) for name in gate.names}
            assert [name for name, known in functions.items() if line not in decorators.get(known, ())] == [], gate.line


@pytest.mark.parametrize("host", _OF_THIS_TORCH, ids=lambda host: host.results.stem)
def test_every_test_of_upstreams_with_a_group_is_listed(host: lists.Host) -> None:
    """Holds for whatever file and class this torch has the test in. Tests without a group need no backend."""
    expected, decorators = lists.expected(host), sources.decorators_by_test()
    listed = expected.to_pass | expected.not_to_pass.keys() | expected.not_to_run.keys()
    functions = {_function_of(name, decorators) for name in listed}
    assert [name for name in sources.names(on_gpus=host.num_gpus > 0) if name not in functions] == []


def test_what_upstream_refuses_in_one_place_passes_in_the_other() -> None:
    """Excludes tests that upstream always skips, that need more GPUs than there were, or that cannot pass."""
    passing, excused = set(), set()
    for host in (lists.Host("2.11"), lists.Host("2.11", num_gpus=2)):
        expected = lists.expected(host)
        passing |= expected.to_pass
        excused |= expected.not_to_pass.keys()
        for name, gates in expected.not_to_run.items():
            if any(gate.is_for_all or gate.wants_more_gpus for gate in gates):
                excused.add(name)
    refused = {row["name"] for host in _COMMITTED for row in lists.committed(host) if row["outcome"] == "skipped"}
    only_newer = {name for gate in lists.gates(False) if "torch >= 2.15" in gate.conditions for name in gate.names}
    assert refused - passing - excused - only_newer == set()


_GATE = lists.Gate('@skip_but_pass_in_sandcastle_if(BACKEND != "nccl", "NCCL only")', names=["test_refused"])
_EXPECTED = lists.Expected(
    {"test_passes"}, {"test_cannot": lists.Shortcoming("the reason", "1 != 2")}, {"test_refused": [_GATE]}
)
_AS_LISTED = [
    {"name": "test_passes", "outcome": "passed", "why": ""},
    {"name": "test_cannot", "outcome": "failed", "why": "AssertionError: 1 != 2"},
    {"name": "test_refused", "outcome": "skipped", "why": "NCCL only"},
]


def test_results_as_listed_give_no_complaint() -> None:
    assert list(complaints(_AS_LISTED, _EXPECTED)) == []


@pytest.mark.parametrize(
    ("name", "outcome", "why", "complaint"),
    [
        ("test_new", "skipped", "MPI only", "no list says under which line"),
        ("test_new", "passed", "", "is in no list"),
        ("test_new", "failed", "ValueError", "no list says why"),
        ("test_passes", "skipped", "NCCL only", "has to pass"),
        ("test_passes", "failed", "ValueError", "has to pass"),
        ("test_cannot", "passed", "", "passes by now, though listed as: the reason"),
        ("test_cannot", "skipped", "NCCL only", "though listed as: the reason"),
        ("test_cannot", "failed", "ValueError", "fails otherwise (ValueError), though listed as: the reason"),
        ("test_refused", "passed", "", "passed, though listed under @skip"),
        ("test_refused", "failed", "ValueError", "failed, though listed under @skip"),
        ("test_refused", "skipped", "MPI only", "is skipped (MPI only), though listed under @skip"),
    ],
)
def test_what_is_otherwise_gives_a_complaint(name: str, outcome: str, why: str, complaint: str) -> None:
    rows = [row for row in _AS_LISTED if row["name"] != name] + [{"name": name, "outcome": outcome, "why": why}]
    (found,) = complaints(rows, _EXPECTED)
    assert found.startswith(f"{name}: ")
    assert complaint in found


def test_tests_that_are_gone_and_results_without_any_give_complaints() -> None:
    assert list(complaints(_AS_LISTED[1:], _EXPECTED)) == ["test_passes: is listed, and torch has no such test"]
    not_run = [{"name": row["name"], "outcome": "not run", "why": ""} for row in _AS_LISTED]
    assert list(complaints(not_run, _EXPECTED)) == ["no test has run"]
