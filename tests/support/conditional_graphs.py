"""CUDA graphs that repeat what they hold, by a conditional node. torch has no interface for these.

launch = repeated(body, again)    # body() sets the scalar `again` to 0 on the GPU when it is to be the last
launch()
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_int, c_longlong, c_uint, c_uint64, c_void_p

import torch
from torch import Tensor

_CONDITIONAL_NODE, _WHILE, _ASSIGN_DEFAULT, _RELAXED = 13, 1, 1, 2  # constants of cuda.h

_SET_CONDITION = r"""
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned value);
extern "C" __global__ void set_condition(const unsigned long long* handle, const int* again) {
  cudaGraphSetConditional(*handle, *again != 0);
}
"""


class _Parameters(ctypes.Structure):
    """CUgraphNodeParams with CUDA_CONDITIONAL_NODE_PARAMS in its union, which has 232 bytes."""

    _fields_ = (
        ("type", c_int),
        ("reserved0", c_int * 3),
        ("handle", c_uint64),
        ("kind", c_int),
        ("size", c_uint),
        ("bodies", POINTER(c_void_p)),
        ("context", c_void_p),
        ("reserved1", c_longlong * 25),
        ("reserved2", c_longlong),
    )


def _call(name: str, *arguments: object) -> None:
    status = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert status == 0, f"{name} returned {status}"


@contextmanager
def _captured_into(graph: c_void_p) -> Iterator[None]:
    """Captures into a graph that exists, on a stream of its own. torch always makes one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        handle = c_void_p(stream.cuda_stream)
        _call("cuStreamBeginCaptureToGraph", handle, graph, None, None, c_uint64(0), _RELAXED)
        yield
        _call("cuStreamEndCapture", handle, byref(c_void_p()))


def capture_into_a_graph(body: Callable[[], object]) -> None:
    """Captures `body` into a graph that the program has made, and destroys it."""
    graph = c_void_p()
    _call("cuGraphCreate", byref(graph), 0)
    with _captured_into(graph):
        body()
    _call("cuGraphDestroy", graph)


@contextmanager
def repeated(body: Callable[[], object], again: Tensor) -> Iterator[Callable[[], None]]:
    """Yields a function that launches a graph on the current stream, which repeats `body` until `again` is 0.

    `again` is an int32 scalar on the GPU. `body` is captured, and may not allocate memory that it uses later. All
    launches must have ended when the context ends.
    """
    context, graph, handle, node = c_void_p(), c_void_p(), c_uint64(), c_void_p()
    _call("cuCtxGetCurrent", byref(context))
    _call("cuGraphCreate", byref(graph), 0)
    _call("cuGraphConditionalHandleCreate", byref(handle), graph, context, 1, _ASSIGN_DEFAULT)
    parameters = _Parameters(type=_CONDITIONAL_NODE, handle=handle.value, kind=_WHILE, size=1, context=context)
    _call("cuGraphAddNode_v2", byref(node), graph, None, None, c_uint64(0), byref(parameters))
    set_condition = torch.cuda._compile_kernel(_SET_CONDITION, "set_condition")
    on_gpu = torch.tensor([handle.value], device=again.device)
    with _captured_into(c_void_p(parameters.bodies[0])):
        body()
        set_condition((1, 1, 1), (1, 1, 1), [on_gpu, again])
    executable = c_void_p()
    _call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    _call("cuGraphDestroy", graph)  # as torch does
    yield lambda: _call("cuGraphLaunch", executable, c_void_p(torch.cuda.current_stream().cuda_stream))
    _call("cuGraphExecDestroy", executable)
