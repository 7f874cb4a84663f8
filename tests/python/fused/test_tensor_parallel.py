"""A Llama's block in tensor and sequence parallel, its communication hidden, matches one process's block."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from support.devices import on_every_path
from support.pool import RankPool
from support.reference import case, failure
from torch_axon.tensor_parallel import FusedColwiseParallel, FusedRowwiseParallel

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

from llama_block import Block, fused_plan, shard, torch_plan, whole

pytestmark = on_every_path

FEATURES, BATCH = 48, 2


def _mesh() -> DeviceMesh:
    return init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))


def _block() -> Block:
    torch.manual_seed(1)
    return Block(FEATURES, heads=12, kv_heads=12, hidden=96).double()


def _input(length: int) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(BATCH, length, FEATURES, dtype=torch.float64)


def _length() -> int:
    return 4 * dist.get_world_size()


def _close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-9)


def _compare(run: Callable[[nn.Module, Tensor], Tensor], plan: dict[str, ParallelStyle]) -> None:
    """Compares output, gradients and, after a step of the optimizer, parameters."""
    alone, block, mesh = _block(), _block(), _mesh()
    parallelize_module(block, mesh, plan)
    x = _input(_length())
    for _ in range(2):
        expected = alone(x)
        output = run(block, shard(x, mesh))
        _close(output, shard(expected, mesh))
        for module, result in ((alone, expected), (block, output)):
            module.zero_grad()
            result.square().sum().backward()
            torch.optim.SGD(module.parameters(), lr=1e-3, foreach=False).step()
        for mine, other in zip(block.parameters(), alone.parameters(), strict=True):
            _close(whole(mine.grad), whole(other.grad))
            _close(whole(mine.detach()), other.detach())


def _eager() -> None:
    for plan in (fused_plan(), torch_plan()):
        with case(plan=plan):
            _compare(lambda block, x: block(x), plan)


def test_a_block_computes_what_one_process_does(ranks: RankPool) -> None:
    ranks.run(_eager)


def _checkpointed() -> None:
    _compare(lambda block, x: checkpoint(block, x, use_reentrant=False), fused_plan())


def test_a_block_is_recomputed(two_ranks: RankPool) -> None:
    two_ranks.run(_checkpointed)


def _compiled() -> None:
    _compare(lambda block, x: torch.compile(block, backend="aot_eager", fullgraph=True)(x), fused_plan())


def test_a_block_is_compiled_as_one_graph(two_ranks: RankPool) -> None:
    two_ranks.run(_compiled, timeout_s=180)


class _Count(TorchDispatchMode):
    """Counts the calls of each of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "axon":
            self.calls[func.__name__] = self.calls.get(func.__name__, 0) + 1
        return func(*args, **(kwargs or {}))


def _count() -> dict[str, int]:
    block, mesh = _block(), _mesh()
    parallelize_module(block, mesh, fused_plan())
    with _Count() as count:
        block(shard(_input(_length()), mesh))
    return count.calls


def test_linears_of_one_input_gather_it_once(two_ranks: RankPool) -> None:
    for calls in two_ranks.run(_count):
        assert calls == {"all_gather_matmul.default": 2, "matmul_reduce_scatter.default": 2}


def _layers() -> None:
    """A pair of Linears with biases: other dimensions, sequences that do not divide, DTensors in and out, copies."""
    mesh = _mesh()
    for dim in (0, 1):
        for length in (_length(), _length() + 1):
            with case(dim=dim, length=length):
                torch.manual_seed(3)
                alone = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12)).double()
                plan = {
                    "0": FusedColwiseParallel(sequence_dim=dim),
                    "2": FusedRowwiseParallel(sequence_dim=dim, use_local_output=False),
                }
                layers = copy.deepcopy(parallelize_module(copy.deepcopy(alone), mesh, plan))
                x = torch.randn((length, 3, 12) if dim == 0 else (3, length, 12), dtype=torch.float64)
                expected = alone(x)
                own = x.chunk(mesh.size(), dim)[dist.get_rank()]
                shape_and_stride = {"shape": x.shape, "stride": x.stride()}
                output = layers(DTensor.from_local(own, mesh, [Shard(dim)], run_check=False, **shape_and_stride))
                assert output.placements == (Shard(dim),)
                _close(output.full_tensor(), expected)
                expected.square().sum().backward()
                output.to_local().square().sum().backward()
                for mine, other in zip(layers.parameters(), alone.parameters(), strict=True):
                    _close(whole(mine.grad), whole(other.grad))


def test_layers_of_any_length_and_dimension(ranks: RankPool) -> None:
    ranks.run(_layers)


def _interrupted() -> None:
    """Unused products are not returned in another pass, even for the same tensor."""
    block, mesh = _block(), _mesh()
    parallelize_module(block, mesh, fused_plan())
    x = shard(_input(_length()), mesh)
    attention = block.attention
    first = attention.wq(x)
    with torch.no_grad():
        attention.wk.weight.mul_(2)
    torch.testing.assert_close(attention.wq(x), first)
    _close(attention.wk(x).detach(), 2 * _untouched(x))


def _untouched(x: Tensor) -> Tensor:
    block = _block()
    parallelize_module(block, _mesh(), fused_plan())
    return block.attention.wk(x).detach()


def test_products_of_an_interrupted_pass_are_dropped(two_ranks: RankPool) -> None:
    two_ranks.run(_interrupted)


def _changed() -> None:
    """Another version of the same tensor, or a change of grad mode, makes another input."""
    block, mesh = _block(), _mesh()
    parallelize_module(block, mesh, fused_plan())
    attention, x = block.attention, shard(_input(_length()), mesh)
    attention.wq(x)
    x.mul_(2)
    changed = attention.wk(x)
    _close(changed, 2 * _untouched(shard(_input(_length()), mesh)))
    with torch.no_grad():
        attention.wq(x)
    assert attention.wk(x).requires_grad
    attention.wq(x)
    with torch.no_grad():
        assert not attention.wk(x).requires_grad
    with torch.inference_mode():
        y = x.clone()
        attention.wq(y)
        _close(attention.wk(y), changed)


def test_products_are_of_what_the_input_is_now(two_ranks: RankPool) -> None:
    two_ranks.run(_changed)


def _failing() -> None:
    """A pass that fails between the Linears keeps nothing alive, and a model can be copied during a pass."""
    block, mesh = _block(), _mesh()
    parallelize_module(block, mesh, fused_plan())
    attention, inputs = block.attention, []

    def interrupt(*_: object) -> None:
        raise ArithmeticError

    def fail() -> None:
        x = shard(_input(_length()), mesh)
        inputs.append(weakref.ref(x))
        attention(x)

    hook = attention.wk.register_forward_pre_hook(interrupt)
    assert "ArithmeticError" in failure(fail)
    gc.collect()
    assert inputs[0]() is None
    hook.remove()
    x = shard(_input(_length()), mesh)
    attention.wq(x)
    twin = copy.deepcopy(block)
    _close(twin(x), block(x))
    twin.attention.wk.weight.data.mul_(2)
    _close(twin.attention.wk(x), 2 * block.attention.wk(x))


def test_a_failed_pass_leaks_nothing(two_ranks: RankPool) -> None:
    two_ranks.run(_failing)


def _fully_sharded() -> None:
    """Two ranks share each product, and two share the batch and all parameters."""
    mesh = init_device_mesh(torch.get_default_device().type, (2, 2), mesh_dim_names=("dp", "tp"))
    alone, block = _block(), _block()
    parallelize_module(block, mesh["tp"], fused_plan())
    fully_shard(block, mesh=mesh["dp"])
    batch = _input(_length())
    own = batch.chunk(2)[mesh["dp"].get_local_rank()]
    for _ in range(2):
        expected, output = alone(batch), block(shard(own, mesh["tp"]))
        _close(output, shard(expected.chunk(2)[mesh["dp"].get_local_rank()], mesh["tp"]))
        expected.square().sum().backward()
        (2 * output.square().sum()).backward()  # FSDP averages
        for mine, other in zip(block.parameters(), alone.parameters(), strict=True):
            _close(whole(mine.grad), whole(other.grad))
        for module in (alone, block):
            torch.optim.SGD(module.parameters(), lr=1e-3, foreach=False).step()
            module.zero_grad()
        for mine, other in zip(block.parameters(), alone.parameters(), strict=True):
            _close(whole(mine.detach()), other.detach())


def test_a_block_is_fully_sharded_as_a_whole(four_ranks: RankPool) -> None:
    four_ranks.run(_fully_sharded, timeout_s=120)


def _sharded_one_by_one() -> str:
    mesh = init_device_mesh(torch.get_default_device().type, (2, 2), mesh_dim_names=("dp", "tp"))
    block = _block()
    parallelize_module(block, mesh["tp"], fused_plan())
    for linear in (block.attention.wq, block.attention.wk):
        fully_shard(linear, mesh=mesh["dp"])
    return failure(lambda: block(shard(_input(_length()), mesh["tp"])))


def test_linears_fully_sharded_one_by_one_are_refused(four_ranks: RankPool) -> None:
    for message in four_ranks.run(_sharded_one_by_one, timeout_s=120):
        assert "apply fully_shard to the module that contains all of them" in message


def _other_modules() -> list[str]:
    styles: tuple[ParallelStyle, ...] = (FusedColwiseParallel(), FusedRowwiseParallel())
    return [failure(lambda style=style: parallelize_module(nn.Embedding(4, 4), _mesh(), style)) for style in styles]


def test_only_linears_are_taken(two_ranks: RankPool) -> None:
    for messages in two_ranks.run(_other_modules):
        for message, style in zip(messages, ("FusedColwiseParallel", "FusedRowwiseParallel"), strict=True):
            assert f"{style} is applied to a Embedding; allowed: nn.Linear" in message
