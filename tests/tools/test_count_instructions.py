import json
import pathlib
import stat

from count_instructions import compiler_of, instructions_by_place, last_of, place_of, table

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


def test_counts_are_compared_with_the_latest_of_the_same_compiler() -> None:
    history = [json.dumps({"compiler": name, "commit": str(number)}) for number, name in enumerate("abaab")]
    latest = last_of("a", history)
    assert latest is not None
    assert latest["commit"] == "3"
    assert last_of("c", history) is None


def test_compiler_is_the_one_that_built(tmp_path: pathlib.Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho my compiler 1.2\necho and more\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "CMakeCache.txt").write_text(f"OTHER:STRING=x\nCMAKE_CXX_COMPILER:FILEPATH={compiler}\n")
    assert compiler_of(tmp_path) == "my compiler 1.2"


def test_changes_stand_beside_what_was_counted_before() -> None:
    assert table({"UCX": 10, "all": 12}, {"all": 15}).split() == ["UCX", "10", "all", "12", "(-3)"]
