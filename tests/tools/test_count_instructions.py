import json
import pathlib
import shutil
import stat
import sys

import count_instructions
import pytest
from count_instructions import compiler_of, growth_error, instructions_by_place, last_of, place_of, table, vectors_of

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


def kind(path: str, compiler: str, vectors: str) -> "dict[str, str]":
    return {"path": path, "compiler": compiler, "vectors": vectors}


def test_counts_are_compared_with_the_latest_of_the_same_path_compiler_and_vectors() -> None:
    own = kind("rings", "a", "avx2")
    others = [kind("rings", "b", "avx2"), kind("ucx", "a", "avx2"), kind("rings", "a", "avx512")]
    lines = [others[0], own, own, *others, {"compiler": "a", "path": "rings"}, {"compiler": "a"}]
    history = [json.dumps({**line, "commit": str(number)}) for number, line in enumerate(lines)]
    latest = last_of(own, history)
    assert latest is not None
    assert latest["commit"] == "2"
    assert last_of(kind("rings", "a", "sse2"), history) is None


def test_vectors_are_those_that_the_cores_kernels_ask_for() -> None:
    avx2 = "processor\t: 0\nflags\t\t: fpu sse2 avx2 f16c avx512f"
    assert vectors_of(f"{avx2} avx512bw avx512dq avx512vl\nbugs\t\t: avx2") == "avx512"
    assert vectors_of(f"{avx2} avx512bw avx512dq\n") == "avx2"
    assert vectors_of("flags\t\t: fpu sse2 avx2\nbugs\t\t: f16c\n") == "sse2"


def test_two_percent_more_pass_and_not_one_instruction_above() -> None:
    before = {"commit": "abc", "instructions": {"all": 1000}}
    assert growth_error({"all": 900}, before) is None
    assert growth_error({"all": 1020}, before) is None
    error = growth_error({"all": 1021}, before)
    assert error is not None
    assert "2.1% more instructions than at abc" in error
    assert "RECORD=1" in error


def fake_build(folder: pathlib.Path, title: str = "a compiler 1.2") -> pathlib.Path:
    """Provides a build whose compiler reports its name, and an existing binary."""
    compiler = folder / "compiler"
    compiler.write_text(f"#!/bin/sh\necho '{title}'\necho and more\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    (folder / "CMakeCache.txt").write_text(f"OTHER:STRING=x\nCMAKE_CXX_COMPILER:FILEPATH={compiler}\n")
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "all_reduce_path").touch()
    return folder


@pytest.fixture
def history(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Provides the history of one benchmark with 1,000 instructions; each new count is 1,100."""
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/valgrind")
    monkeypatch.setattr(count_instructions, "count", lambda *_: {"all": 1100})
    monkeypatch.setattr(count_instructions, "vectors_of", lambda _: "avx2")
    path = tmp_path / "history.jsonl"
    line = {
        "instructions": {"all": 1000},
        **kind("rings", "a compiler 1.2", "avx2"),
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
    assert kind("rings", "a compiler 1.2", "avx2").items() <= recorded.items()


def test_another_path_is_not_compared(history: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--path", "ucx"])
    count_instructions.main()


def test_another_processors_counts_are_not_compared(history: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count_instructions, "vectors_of", lambda _: "avx512")
    count_instructions.main()


@pytest.mark.parametrize(
    ("title", "compiler"),
    [
        ("c++ (Debian 12.2.0) 12.2.0", "g++ (Debian 12.2.0) 12.2.0"),
        ("x86_64-linux-gnu-g++-12 (Debian 12.2.0) 12.2.0", "g++ (Debian 12.2.0) 12.2.0"),
        ("Debian clang version 14.0.6", "Debian clang version 14.0.6"),
    ],
)
def test_compiler_is_the_one_that_built_by_whatever_name(tmp_path: pathlib.Path, title: str, compiler: str) -> None:
    assert compiler_of(fake_build(tmp_path, title)) == compiler


def test_changes_stand_beside_what_was_counted_before() -> None:
    assert table({"UCX": 10, "all": 12}, {"all": 15}).split() == ["UCX", "10", "all", "12", "(-3)"]
