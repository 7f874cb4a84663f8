"""The fused products under torch.compile, autocast and activation checkpointing; torch's checks of operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torch_axon
from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.products import factor
from support.reference import case
from torch_axon import _native, all_gather_matmul, matmul_reduce_scatter

pytestmark = on_cpu_and_gpu


def _layer(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The feed-forward part of a Llama, its sequence split over the ranks: [batch, sequence, features]."""
    _, (gated, raised) = all_gather_matmul(x, [gate, up], gather_dim=1, return_gathered=False)
    return matmul_reduce_scatter(torch.nn.functional.silu(gated) * raised, down, scatter_dim=1)


def _inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = ((2, 3, 8), (8, 6), (8, 6), (6, 8))
    rank = dist.get_rank()
    return [factor(shape, rank, seed).to(dtype).requires_grad_() for seed, shape in enumerate(shapes)]


def _run(layer: Callable[..., Tensor], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Returns the output and all gradients."""
    inputs = _inputs(dtype)
    output = layer(*inputs)
    output.square().sum().backward()
    gradients = [tensor.grad for tensor in inputs]
    assert None not in gradients
    return [output.detach(), *gradients]  # type: ignore[list-item]


def _compare(actual: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def _compile(backend: str) -> None:
    expected = _run(_layer)
    compiled = torch.compile(_layer, backend=backend, fullgraph=True)
    tolerance = 1e-4 if backend == "inductor" else 1e-5  # its kernels for GPUs sum in an order of their own
    for _ in range(2):
        _compare(_run(compiled), expected, tolerance)
    with torch.no_grad():
        _compare([compiled(*_inputs())], expected[:1], tolerance)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_layer_is_compiled_as_one_graph(backend: str, two_ranks: RankPool) -> None:
    two_ranks.run(_compile, backend, timeout_s=240)


def _compile_for_any_length() -> None:
    """One graph serves every length of the sequence."""
    compilations = 0

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        nonlocal compilations
        compilations += 1
        return graph.forward

    compiled = torch.compile(_layer, backend=count, fullgraph=True, dynamic=True)
    _, *weights = _inputs()
    for length in (3, 4, 7):
        x = factor((2, length, 8), dist.get_rank()).float()
        torch.testing.assert_close(compiled(x, *weights), _layer(x, *weights))
    assert compilations == 1


def test_a_graph_serves_every_length(two_ranks: RankPool) -> None:
    two_ranks.run(_compile_for_any_length, timeout_s=120)


def _find_by_name() -> None:
    """Calls through the package, as users do, in a graph that is the first to use it."""
    vars(torch_axon).pop("all_gather_matmul", None)
    weight = factor((8, 6), 0, 1).float()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def multiply(x: Tensor) -> Tensor:
        return torch_axon.all_gather_matmul(x, weight)[1]

    x = factor((2, 8), dist.get_rank()).float()
    torch.testing.assert_close(multiply(x), all_gather_matmul(x, weight)[1])


def test_the_packages_functions_are_found_while_compiling(two_ranks: RankPool) -> None:
    two_ranks.run(_find_by_name, timeout_s=120)


def _autocast(compiled: bool) -> None:
    """Products are in bfloat16, gradients in the inputs' own type, as torch.matmul does it."""
    layer = torch.compile(_layer, backend="aot_eager", fullgraph=True) if compiled else _layer
    device = torch.get_default_device().type
    expected = _run(_layer, torch.bfloat16)
    with torch.autocast(device, torch.bfloat16):
        output, *gradients = _run(layer)
    _compare([output], expected[:1])
    _compare(gradients, [gradient.float() for gradient in expected[1:]], 2e-2)
    with torch.autocast(device, torch.float16):
        assert all_gather_matmul(*_inputs()[:2])[1].dtype == torch.float16
        assert all_gather_matmul(*_inputs(torch.float64)[:2])[1].dtype == torch.float64


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_autocast_chooses_the_products_type(compiled: bool, two_ranks: RankPool) -> None:
    two_ranks.run(_autocast, compiled, timeout_s=120)


def _checkpoint() -> None:
    expected = _run(_layer)
    for use_reentrant in (False, True):
        with case(use_reentrant=use_reentrant):
            _compare(_run(lambda *inputs, r=use_reentrant: checkpoint(_layer, *inputs, use_reentrant=r)), expected)


def test_layers_are_recomputed(two_ranks: RankPool) -> None:
    two_ranks.run(_checkpoint)


def _check_operators() -> None:
    """Runs torch's own checks: schema, fake kernel, autograd, tracing."""
    torch_axon.all_gather_matmul  # noqa: B018 - loads the operators
    name = dist.distributed_c10d._get_default_group().group_name
    x, weight, bias = (factor(shape, dist.get_rank()).float() for shape in ((4, 6), (6, 5), (5,)))
    for wanted in (False, True):
        for tensor in (x, weight, bias):
            tensor.requires_grad_(wanted)
        arguments = (x, [weight, weight[:, :2]], [bias, None], [4, 4], name, wanted)
        torch.library.opcheck(torch.ops.axon.all_gather_matmul.default, arguments)
        torch.library.opcheck(torch.ops.axon.matmul_reduce_scatter.default, (x, weight, bias, [3, 1], "sum", name))


def test_torch_finds_no_fault_with_the_operators(two_ranks: RankPool) -> None:
    two_ranks.run(_check_operators, timeout_s=120)


class _Watch(TorchDispatchMode):
    """Records the operators that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class _Marked(Tensor):
    pass


def _results(x: Tensor, weight: Tensor) -> list[Tensor]:
    gathered, product = all_gather_matmul(x, weight)
    assert gathered is not None
    return [gathered, product, matmul_reduce_scatter(gathered, weight, reduce_op="avg")]


def _observers_see_the_operators() -> None:
    x, weight = factor((4, 8), dist.get_rank()), factor((8, 6), 0, 1)
    expected = _results(x, weight)
    for wanting, is_direct in ((weight, True), (weight.clone().requires_grad_(), False)):
        done = _native.load().all_gather_matmul(x, [wanting], [None], dist.group.WORLD.group_name, True)
        assert (done is not None) == is_direct
    names = ["axon::all_gather_matmul", "axon::matmul_reduce_scatter"]
    with _Watch() as watch:
        _compare(_results(x, weight), expected, 0)
    assert [name for name in watch.names if name in names] == names
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _compare(_results(x, weight), expected, 0)
    assert {event.key for event in profile.key_averages()} >= set(names)
    marked = _results(x.as_subclass(_Marked), weight)
    assert all(type(result) is _Marked for result in marked)
    _compare([result.as_subclass(Tensor) for result in marked], expected, 0)


def test_observers_see_the_operators(two_ranks: RankPool) -> None:
    """Calls that no mode observes bypass torch's dispatcher."""
    two_ranks.run(_observers_see_the_operators)
