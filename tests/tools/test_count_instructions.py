from count_instructions import instructions_by_place, place_of

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
