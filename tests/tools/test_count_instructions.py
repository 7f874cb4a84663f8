import json
import pathlib
import shutil
import stat
import sys

import count_instructions
import pytest
from count_instructions import compiler_of, growth_error, instructions_by_place, last_of, place_of, table

PROFILE = """\
events: Ir

ob=/build/all_reduce_path
fl=/src/csrc/comm/engine.cpp
fn=axon::Engine::drive()
10 5
+1 2
fi=/usr/include/c++/12/atomic
100 3
fe=/src/csrc/comm/engine.cpp
cob=/lib/libucp.so.0
cfi=/ucx/src/ucp/core/ucp_worker.c
cfn=ucp_worker_progress
calls=1 20
* 40
* 1

ob=/lib/libucp.so.0
fl=/ucx/src/ucp/core/ucp_worker.c
fn=ucp_worker_progress
20 40
"""


def test_costs_are_those_of_the_function_they_are_in_and_calls_are_counted_once() -> None:
    assert instructions_by_place(PROFILE.splitlines()) == {"axon comm": 11, "UCX": 40}


def test_places_are_the_layers_and_ucx_and_the_rest() -> None:
    assert place_of("/build/all_reduce_path", "../csrc/transport/ucx/ucx_transport.cpp") == "axon transport"
    assert place_of("/x/libuct.so.0", "mm_ep.c") == "UCX"
    assert place_of("/lib/libc.so.6", "memmove.S") == "libraries"


def test_counts_are_compared_with_the_latest_of_the_same_compiler_and_path() -> None:
    kinds = [("a", "rings"), ("b", "rings"), ("a", "rings"), ("a", "ucx"), ("b", "ucx")]
    history = [json.dumps({"compiler": c, "path": path, "commit": str(i)}) for i, (c, path) in enumerate(kinds)]
    latest = last_of("a", "rings", history)
    assert latest is not None
    assert latest["commit"] == "2"
    assert last_of("c", "rings", history) is None
    assert last_of("a", "rings", [json.dumps({"compiler": "a", "commit": "of_no_path"})]) is None


def test_two_percent_more_pass_and_not_one_instruction_above() -> None:
    before = {"commit": "abc", "instructions": {"all": 1000}}
    assert growth_error({"all": 900}, before) is None
    assert growth_error({"all": 1020}, before) is None
    error = growth_error({"all": 1021}, before)
    assert error is not None
    assert "2.1% more instructions than at abc" in error
    assert "RECORD=1" in error


def fake_build(folder: pathlib.Path) -> pathlib.Path:
    """A build of a compiler that says that it is one, and a binary that is there."""
    compiler = folder / "compiler"
    compiler.write_text("#!/bin/sh\necho a compiler 1.2\necho and more\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    (folder / "CMakeCache.txt").write_text(f"OTHER:STRING=x\nCMAKE_CXX_COMPILER:FILEPATH={compiler}\n")
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "all_reduce_path").touch()
    return folder


@pytest.fixture
def history(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Of one line with 1,000 instructions; whatever is counted now has 1,100."""
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/valgrind")
    monkeypatch.setattr(count_instructions, "count", lambda *_: {"all": 1100})
    path = tmp_path / "history.jsonl"
    line = {
        "instructions": {"all": 1000},
        "path": "rings",
        "compiler": "a compiler 1.2",
        "commit": "abc",
        "date": "2026",
    }
    path.write_text(json.dumps(line) + "\n")
    arguments = ["count_instructions.py", str(fake_build(tmp_path)), "--history", str(path)]
    monkeypatch.setattr(sys, "argv", arguments)
    return path


def test_what_costs_more_fails(history: pathlib.Path) -> None:
    with pytest.raises(SystemExit, match=r"10\.0% more instructions than at abc"):
        count_instructions.main()
    assert len(history.read_text().splitlines()) == 1


def test_what_costs_more_passes_where_it_is_recorded(history: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--record"])
    count_instructions.main()
    recorded = json.loads(history.read_text().splitlines()[-1])
    assert recorded["instructions"] == {"all": 1100}
    assert recorded["path"] == "rings"


def test_another_path_is_not_compared(history: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--path", "ucx"])
    count_instructions.main()


def test_compiler_is_the_one_that_built(tmp_path: pathlib.Path) -> None:
    assert compiler_of(fake_build(tmp_path)) == "a compiler 1.2"


def test_changes_stand_beside_what_was_counted_before() -> None:
    assert table({"UCX": 10, "all": 12}, {"all": 15}).split() == ["UCX", "10", "all", "12", "(-3)"]
