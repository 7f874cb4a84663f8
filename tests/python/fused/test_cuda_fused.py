"""Fused products large enough to be overlapped on GPUs: between a stream's kernels, in graphs, beside other work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from support.devices import on
from support.gpu import busy, meet
from support.pool import RankPool
from support.products import Gathering, Scattering, loss
from support.products import factor as dense_factor
from support.reference import case, same_bits
from torch_axon import all_gather_matmul, matmul_reduce_scatter

pytestmark = on("cuda")

ROWS, DEPTH, WIDTH = 2048, 4096, 4096  # of a rank's own part
TYPES = (torch.bfloat16, torch.float16, torch.float32)


def factor(shape: Sequence[int], rank: int, seed: int = 0) -> Tensor:
    """Sums of DEPTH products over all ranks stay below 256: exact in 8 bits, in any order of summation."""
    return dense_factor(shape, rank, seed, one_in=4)


@dataclass(frozen=True)
class Product:
    """One operation with its data, whose results are exact, and twice as large for inputs twice as large."""

    launch: Callable[[], Tensor]
    x: Tensor
    base: Tensor
    expected: Tensor


def _gathering(dtype: torch.dtype, sizes: list[int]) -> Product:
    rank = dist.get_rank()
    base = factor((sizes[rank], DEPTH), rank).to(dtype)
    x, weight = torch.empty_like(base), factor((DEPTH, WIDTH), rank, 1)
    whole = torch.cat([factor((size, DEPTH), other) for other, size in enumerate(sizes)])
    expected = (whole @ weight).to(dtype)
    weight = weight.to(dtype)

    def launch() -> Tensor:
        return all_gather_matmul(x, weight, sizes=sizes, return_gathered=False)[1]

    return Product(launch, x, base, expected)


def _scattering(dtype: torch.dtype, sizes: list[int]) -> Product:
    rank = dist.get_rank()
    shape = (sum(sizes), DEPTH)
    base, weight = factor(shape, rank).to(dtype), factor((DEPTH, WIDTH), rank, 1).to(dtype)
    x = torch.empty_like(base)
    products = [factor(shape, other) @ factor((DEPTH, WIDTH), other, 1) for other in range(dist.get_world_size())]
    expected = torch.stack(products).sum(0).split(sizes)[rank].to(dtype)
    return Product(lambda: matmul_reduce_scatter(x, weight, sizes=sizes), x, base, expected)


_OPERATIONS = {"all_gather_matmul": _gathering, "matmul_reduce_scatter": _scattering}
_each_operation = pytest.mark.parametrize("name", _OPERATIONS)


def _even() -> list[int]:
    return [ROWS] * dist.get_world_size()


def _uneven() -> list[int]:
    """Returns sizes of which none is a multiple of a tile."""
    return [ROWS + 100 * (rank - 1) + 1 for rank in range(dist.get_world_size())]


def _scaled(tensor: Tensor, step: int) -> Tensor:
    """Returns a tensor with another result for each step, as exact as the first."""
    return tensor * 2 ** (step % 4)


def _repeat(name: str) -> None:
    for dtype in TYPES:
        for sizes in (_even(), _uneven()):
            with case(dtype=dtype, sizes=sizes):
                product = _OPERATIONS[name](dtype, sizes)
                wrong = torch.zeros((), dtype=torch.int64)
                for step in range(20):
                    product.x.copy_(_scaled(product.base, step))
                    output = product.launch()
                    product.x.fill_(7)  # as late as a stream's order allows
                    wrong += (output != _scaled(product.expected, step)).sum()
                assert int(wrong) == 0


@_each_operation
def test_every_call_is_right_between_kernels(name: str, ranks: RankPool) -> None:
    ranks.run(_repeat, name, timeout_s=120)


def _several_weights() -> None:
    """Checks all products of one gather, and the gathered tensor."""
    rank = dist.get_rank()
    sizes = _uneven()
    whole = torch.cat([factor((size, DEPTH), other) for other, size in enumerate(sizes)])
    shard = whole.split(sizes)[rank].bfloat16()
    weights = [factor((width, DEPTH), rank, seed).bfloat16().t() for seed, width in enumerate((1024, 256, 1), start=1)]
    biases = [factor((weight.shape[1],), rank, 9).bfloat16() for weight in weights]
    biases[1] = torch.stack([biases[1]] * 2, 1)[:, 0]  # its elements are strided
    for _ in range(5):
        gathered, outputs = all_gather_matmul(shard, weights, biases=biases, sizes=sizes)
        assert gathered is not None
        same_bits(gathered, whole.bfloat16())
        for output, weight, bias in zip(outputs, weights, biases, strict=True):
            same_bits(output, (whole @ weight.double() + bias.double()).bfloat16())


def test_one_gather_serves_several_weights(ranks: RankPool) -> None:
    ranks.run(_several_weights)


def _gradients() -> None:
    """Checks gradients of the sum of all ranks' losses, which are exact in float32, too."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for work in (
        Gathering((0, DEPTH), 0, _uneven(), widths=(1024, 512)),
        Scattering((0, DEPTH), 0, _uneven(), width=WIDTH),
    ):
        with case(operation=type(work).__name__):
            own = work.own(torch.float32)
            result = work.fused(own) if isinstance(work, Scattering) else work.fused(own, return_gathered=False)[1]
            loss([result] if isinstance(result, Tensor) else result, rank).backward()
            for each in range(num_ranks):
                expected = work.expected(each)
                loss([expected] if isinstance(expected, Tensor) else expected[1], each).backward()
            for mine, leaf in zip(own, work.leaves(rank), strict=True):
                assert mine.grad is not None
                assert leaf.grad is not None
                same_bits(mine.grad, leaf.grad.float())


def test_gradients_of_large_products(two_ranks: RankPool) -> None:
    two_ranks.run(_gradients, timeout_s=120)


def _replay(name: str) -> None:
    """The graph itself changes the data from step to step and checks the results."""
    product = _OPERATIONS[name](torch.bfloat16, _even())
    step, wrong = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)

    def run() -> None:
        scale = 2 ** (step % 4)
        torch.mul(product.base, scale, out=product.x)
        wrong.add_((product.launch() != product.expected * scale).sum())
        step.add_(1)

    run()
    meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
        run()
    _OPERATIONS[name](torch.bfloat16, [2 * size for size in _even()]).launch()  # what the graph uses must stay
    for turn in range(100):
        graph.replay()
        if turn % 10 == 0:
            run()
    torch.cuda.synchronize()
    assert int(step) == 1 + 2 * 100 + 10
    assert int(wrong) == 0
    del graph
    run()
    assert int(wrong) == 0


@_each_operation
def test_graphs_and_eager_calls_take_turns(name: str, ranks: RankPool) -> None:
    ranks.run(_replay, name, timeout_s=120)


def _captured_training() -> None:
    """Forward and backward pass in a graph, replayed with other inputs: the gradients are those of an eager step."""
    rank = dist.get_rank()
    x, first, second = (
        factor(shape, rank, seed).float() for seed, shape in enumerate(((ROWS, DEPTH), (DEPTH, WIDTH), (WIDTH, DEPTH)))
    )
    tensors = [tensor.requires_grad_() for tensor in (x, first, second)]

    gradient = factor((ROWS, DEPTH), rank, 3).float()

    def step() -> list[Tensor]:
        _, hidden = all_gather_matmul(x, first, return_gathered=False)
        output = matmul_reduce_scatter(hidden, second)
        return [output.detach(), *torch.autograd.grad(output, tensors, grad_outputs=gradient)]

    with torch.cuda.stream(torch.cuda.Stream()):
        step()
        meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for scale in (1, 2, 4):
        x.detach().mul_(scale)
        graph.replay()
        replayed = [tensor.clone() for tensor in captured]
        for mine, other in zip(replayed, step(), strict=True):
            same_bits(mine, other)


def test_training_steps_are_captured(two_ranks: RankPool) -> None:
    two_ranks.run(_captured_training, timeout_s=120)


def _host_goes_on(name: str) -> None:
    """Torch's synchronisation warnings stay silent, and a busy stream does not delay the host."""
    product = _OPERATIONS[name](torch.bfloat16, _even())
    product.x.copy_(product.base)
    product.launch()
    meet()
    torch.cuda.set_sync_debug_mode("error")
    try:
        product.launch()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    started = time.perf_counter()
    busy(1.0)
    output = product.launch()
    end = torch.cuda.Event()
    end.record()
    seconds = time.perf_counter() - started
    assert not end.query(), "the stream was not busy for long enough to show anything"
    assert seconds < 0.5
    same_bits(output, product.expected)


@_each_operation
def test_the_host_waits_for_nothing(name: str, two_ranks: RankPool) -> None:
    two_ranks.run(_host_goes_on, name)


def _cut_by_rows() -> None:
    """The last bit follows from the shape alone."""
    torch.manual_seed(dist.get_rank())
    x, weight = torch.randn(8192, DEPTH).bfloat16(), torch.randn(DEPTH, WIDTH).bfloat16()
    gathered, output = all_gather_matmul(x, weight)
    assert gathered is not None
    same_bits(output, torch.cat([piece @ weight for piece in gathered.split(4096)]))


def test_products_are_cut_by_rows(two_ranks: RankPool) -> None:
    two_ranks.run(_cut_by_rows)


def _long_sums() -> None:
    """Each rank's rows, and each half of them, form several products that differ in shape."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    sizes, depth, width = [9000] * num_ranks, 5000, 8192

    def draw(rows: int, columns: int, rank: int, seed: int = 0) -> Tensor:
        return dense_factor((rows, columns), rank, seed, one_in=8)

    x, weight, bias = draw(sizes[rank], depth, rank), draw(depth, width, rank, 1), draw(1, width, rank, 2)[0]
    gathered = torch.cat([draw(size, depth, other) for other, size in enumerate(sizes)])
    output = all_gather_matmul(x.half(), weight.half(), biases=bias.half())[1]
    same_bits(output, (gathered @ weight + bias).half())
    whole = draw(sum(sizes), depth, rank, 3)
    part = matmul_reduce_scatter(whole.bfloat16(), weight.bfloat16())
    products = [draw(sum(sizes), depth, other, 3) @ draw(depth, width, other, 1) for other in range(num_ranks)]
    same_bits(part, torch.stack(products).sum(0).split(sizes)[rank].bfloat16())


def test_products_of_long_sums_are_right(two_ranks: RankPool) -> None:
    two_ranks.run(_long_sums)


def _beside_others() -> None:
    """Two streams run products of two groups, with asynchronous collectives of the same group in between."""
    other = dist.new_group()
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    gathering, scattering = (make(torch.bfloat16, _even()) for make in _OPERATIONS.values())
    for product in (gathering, scattering):
        product.x.copy_(product.base)
    weight = factor((DEPTH, WIDTH), rank, 1).bfloat16()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    data = torch.empty(1 << 20)
    meet()
    wrong = torch.zeros(3, dtype=torch.int64)
    for step in range(20):
        with torch.cuda.stream(streams[0]):
            data.fill_(rank + step)
            work = dist.all_reduce(data, async_op=True)
            wrong[0] += (gathering.launch() != gathering.expected).sum()
            wrong[0] += (scattering.launch() != scattering.expected).sum()
            assert work is not None
            work.wait()
            wrong[1] += (data != num_ranks * step + sum(range(num_ranks))).sum()
        with torch.cuda.stream(streams[1]):
            output = all_gather_matmul(gathering.x, weight, group=other, return_gathered=False)[1]
            wrong[2] += (output != gathering.expected).sum()
    torch.cuda.synchronize()
    assert wrong.tolist() == [0, 0, 0]
    dist.destroy_process_group(other)


def test_streams_groups_and_other_collectives_mix(two_ranks: RankPool) -> None:
    two_ranks.run(_beside_others)


def _free_bytes() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def _memory() -> list[int]:
    """Returns the free memory after the first call of each operation, and after many calls of all smaller sizes."""
    for make in _OPERATIONS.values():
        make(torch.bfloat16, _even()).launch()
    free = [_free_bytes()]
    for rows in (8, 100, ROWS // 2, ROWS) * 10:
        for make in (_gathering, _scattering):
            make(torch.bfloat16, [rows] * dist.get_world_size()).launch()
    torch.cuda.empty_cache()
    return [*free, _free_bytes()]


def test_workspaces_are_used_again(two_ranks: RankPool) -> None:
    for first, last in two_ranks.run(_memory, timeout_s=120):
        assert last >= first - (64 << 20)
