"""all_gather_matmul and matmul_reduce_scatter give the results of their parts, run one after the other."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from support.devices import on_every_path
from support.pool import RankPool
from support.products import FLOATING, Gathering, Scattering, check, factor, loss, uneven
from support.reference import case, eventual_failure, failure
from torch_axon import all_gather_matmul, matmul_reduce_scatter

pytestmark = on_every_path

# Shapes and a dimension, in which the sizes replace the shape's value.
_PLACES = (((0, 6), 0), ((4, 3, 6), 0), ((4, 3, 6), 1), ((4, 6), -1), ((4, 3, 6), -1))


def _places() -> list[tuple[tuple[int, ...], int, list[int]]]:
    """Returns every shape and dimension, with even and uneven sizes."""
    num_ranks = dist.get_world_size()
    shares = ([4] * num_ranks, uneven(num_ranks))
    return [(shape, dim % len(shape), sizes) for shape, dim in _PLACES for sizes in shares]


def _gather() -> None:
    for shape, dim, sizes in _places():
        for dtype in FLOATING:
            for return_gathered in (True, False):
                with case(shape=shape, dim=dim, sizes=sizes, dtype=dtype, return_gathered=return_gathered):
                    work = Gathering(shape, dim, sizes, widths=(5, 1, 8))
                    gathered, outputs = work.fused(work.own(dtype), return_gathered)
                    expected_gathered, expected = work.expected(dist.get_rank())
                    for output, other in zip(outputs, expected, strict=True):
                        check(output, other)
                    if return_gathered:
                        check(gathered, expected_gathered)
                    else:
                        assert gathered is None


def test_gathered_rows_are_multiplied(ranks: RankPool) -> None:
    ranks.run(_gather)


def _scatter() -> None:
    for shape, dim, sizes in _places():
        for dtype in FLOATING:
            for reduce_op in ("sum", "avg"):
                with case(shape=shape, dim=dim, sizes=sizes, dtype=dtype, reduce_op=reduce_op):
                    work = Scattering(shape, dim, sizes, reduce_op)
                    output = work.fused(work.own(dtype))
                    expected = work.expected(dist.get_rank())
                    if reduce_op == "avg":  # thirds are not exact
                        bound = 3 * torch.finfo(dtype).eps
                        torch.testing.assert_close(output.double(), expected, rtol=bound, atol=bound)
                    else:
                        check(output, expected)


def test_products_are_reduced_and_scattered(ranks: RankPool) -> None:
    ranks.run(_scatter)


def _sizes_of_random_factors() -> list[tuple[int, int, int]]:
    """Returns rows of a rank, depth and width; on GPUs also sizes that are overlapped."""
    small = [(5, 300, 7)]
    return small if torch.get_default_device().type == "cpu" else [*small, (2048, 2048, 2048)]


@contextlib.contextmanager
def _sums_in_float32() -> Iterator[None]:
    """Disables half-precision partial sums, which torch allows cuBLAS by default."""
    settings = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = [getattr(settings, name) for name in names]
    try:
        for name in names:
            setattr(settings, name, False)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(settings, name, value)


def _check_within(actual: Tensor, expected: Tensor, bound: Tensor) -> None:
    """The hundredth covers terms of second order."""
    assert int(((actual.double() - expected).abs() > 1.01 * bound).sum()) == 0


def _rounding_errors() -> None:
    """A sum of `depth` products in float32 or better, in any order, is rounded to the type.

    Each of several ranks' products is rounded, and each sum of them may be.
    """
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for (rows, depth, width), dtype in itertools.product(_sizes_of_random_factors(), FLOATING):
        with case(rows=rows, depth=depth, width=width, dtype=dtype), _sums_in_float32():
            unit = torch.finfo(dtype).eps / 2
            unit_of_sums = min(unit, torch.finfo(torch.float32).eps / 2)
            torch.manual_seed(0)
            inputs = torch.randn(num_ranks, num_ranks * rows, depth).to(dtype)
            weights = torch.randn(num_ranks, depth, width).to(dtype)
            exact = inputs.double() @ weights.double()
            of_sums = depth * unit_of_sums * (inputs.double().abs() @ weights.double().abs())
            _, product = all_gather_matmul(inputs[0].chunk(num_ranks)[rank], weights[0])
            _check_within(product, exact[0], unit * exact[0].abs() + of_sums[0])
            summed = matmul_reduce_scatter(inputs[rank], weights[rank])
            bound = num_ranks * unit * exact.abs().sum(0) + of_sums.sum(0)
            _check_within(summed, *(each.chunk(num_ranks)[rank] for each in (exact.sum(0), bound)))


def test_rounding_errors_stay_within_a_derived_bound(ranks: RankPool) -> None:
    ranks.run(_rounding_errors, timeout_s=120)


def _defaults() -> None:
    """Uses defaults: one weight, no bias, even shares, the default group, only the tensors."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    shard, weight = factor((2, 6), rank), factor((6, 5), rank, 1)
    gathered, output = all_gather_matmul(shard, weight)
    whole = torch.cat([factor((2, 6), other) for other in range(num_ranks)])
    check(gathered, whole)
    check(output, whole @ weight)
    x = factor((2 * num_ranks, 6), rank, 2)
    products = [factor((2 * num_ranks, 6), other, 2) @ factor((6, 5), other, 1) for other in range(num_ranks)]
    check(matmul_reduce_scatter(x, weight), torch.stack(products).sum(0).chunk(num_ranks)[rank])


def test_tensors_alone_are_enough(ranks: RankPool) -> None:
    ranks.run(_defaults)


def _strides() -> None:
    """Uses transposed weights as layers hold them, and inputs with gaps and with column-major rows."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    weight = factor((5, 6), rank, 1).t()
    for shard in (factor((6, 2), rank).t(), factor((2, 12), rank)[:, ::2], factor((4, 6), rank)[1:3]):
        gathered, output = all_gather_matmul(shard, weight)
        assert gathered is not None
        check(gathered[2 * rank : 2 * rank + 2], shard)
        check(output, gathered @ weight)
        whole = torch.cat([shard] * num_ranks)
        summed = matmul_reduce_scatter(whole, weight)
        parts = [torch.empty_like(summed) for _ in range(num_ranks)]
        dist.all_gather(parts, shard @ weight)
        check(summed, torch.stack(parts).sum(0))


def test_any_strides_will_do(two_ranks: RankPool) -> None:
    two_ranks.run(_strides)


def _subgroup() -> None:
    """Uses a group whose ranks have other numbers than in the world."""
    group = dist.new_group([1, 2])
    rank = dist.get_rank()
    if rank in (1, 2):
        shard, weight = factor((3, 4), rank), factor((4, 2), rank, 1)
        gathered, output = all_gather_matmul(shard, weight, group=group)
        check(gathered, torch.cat([factor((3, 4), 1), factor((3, 4), 2)]))
        check(output, gathered @ weight)  # type: ignore[operator]
    dist.destroy_process_group(group)


def test_groups_of_some_ranks(three_ranks: RankPool) -> None:
    three_ranks.run(_subgroup)


def _gradients() -> None:
    for shape, dim, sizes in _places():
        for return_gathered in (True, False):
            with case(operation="all_gather_matmul", shape=shape, dim=dim, sizes=sizes, returned=return_gathered):
                work = Gathering(shape, dim, sizes, widths=(5, 8))
                own = work.own()
                gathered, outputs = work.fused(own, return_gathered)
                loss([*outputs, *([gathered] if gathered is not None else [])], dist.get_rank()).backward()
                _check_gradients(work, own, lambda rank, w=work, g=return_gathered: _results(w, rank, g))
        for reduce_op in ("sum", "avg"):
            with case(operation="matmul_reduce_scatter", shape=shape, dim=dim, sizes=sizes, reduce_op=reduce_op):
                scattering = Scattering(shape, dim, sizes, reduce_op)
                own = scattering.own()
                loss([scattering.fused(own)], dist.get_rank()).backward()
                _check_gradients(scattering, own, lambda rank, w=scattering: [w.expected(rank)])


def _results(work: Gathering, rank: int, with_gathered: bool) -> list[Tensor]:
    gathered, outputs = work.expected(rank)
    return [*outputs, gathered] if with_gathered else outputs


def _check_gradients(work: Gathering | Scattering, own: list[Tensor], results: Callable[[int], list[Tensor]]) -> None:
    """Checks gradients of the sum of all ranks' losses, which every rank computes for itself."""
    rank = dist.get_rank()
    torch.stack([loss(results(each), each) for each in range(dist.get_world_size())]).sum().backward()
    for mine, leaf in zip(own, work.leaves(rank), strict=True):
        assert mine.grad is not None
        assert leaf.grad is not None
        torch.testing.assert_close(mine.grad, leaf.grad, atol=1e-12, rtol=1e-12)


def test_gradients_are_those_of_all_ranks_losses(ranks: RankPool) -> None:
    ranks.run(_gradients)


def _some_gradients() -> None:
    """Freezes inputs, weights and biases, in every combination."""
    num_ranks = dist.get_world_size()
    for mask in range(1, 8):
        for work in (Gathering((0, 6), 0, [2] * num_ranks), Scattering((0, 6), 0, [2] * num_ranks)):
            with case(mask=mask, work=type(work).__name__):
                complete, partial = work.own(), work.own()
                for index, tensor in enumerate(partial):
                    tensor.requires_grad_(bool(mask >> index & 1))
                for own in (complete, partial):
                    result = work.fused(own)
                    loss([result] if isinstance(result, Tensor) else result[1], dist.get_rank()).backward()
                for index, (whole, part) in enumerate(zip(complete, partial, strict=True)):
                    if mask >> index & 1:
                        torch.testing.assert_close(part.grad, whole.grad, atol=0, rtol=0)
                    else:
                        assert part.grad is None


def test_frozen_tensors_get_no_gradients(two_ranks: RankPool) -> None:
    two_ranks.run(_some_gradients)


def _unused_results() -> None:
    """Checks the gradient of one product of two, and of the gathered input alone."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for chosen in ([0], [1], [2], [0, 2]):
        with case(chosen=chosen):
            work = Gathering((0, 6), 0, uneven(num_ranks), widths=(5, 8))
            own = work.own()
            gathered, outputs = work.fused(own)
            loss([[*outputs, gathered][index] for index in chosen], rank).backward()  # type: ignore[misc]
            torch.stack(
                [loss([_results(work, each, True)[index] for index in chosen], each) for each in range(num_ranks)]
            ).sum().backward()
            for mine, leaf in zip(own, work.leaves(rank), strict=True):
                if leaf.grad is None:
                    assert mine.grad is None
                else:
                    torch.testing.assert_close(mine.grad, leaf.grad, atol=1e-12, rtol=1e-12)


def test_results_may_go_unused(two_ranks: RankPool) -> None:
    two_ranks.run(_unused_results)


def _bytes_kept(return_gathered: bool) -> int:
    """Returns the bytes that the forward pass keeps, without the leaves' own memory."""
    num_ranks = dist.get_world_size()
    work = Gathering((0, 64), 0, [16] * num_ranks)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    own = work.own()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        work.fused(own, return_gathered)
    for tensor in own[1:]:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def test_without_the_gathered_input_only_the_shard_is_kept(two_ranks: RankPool) -> None:
    shard = 16 * 64 * 8
    assert two_ranks.run(_bytes_kept, False) == [shard] * 2
    assert two_ranks.run(_bytes_kept, True) == [2 * shard] * 2


def _refusals() -> list[str]:
    num_ranks = dist.get_world_size()
    x, weight = torch.ones(4, 6), torch.ones(6, 5)
    calls: list[Callable[[], object]] = [
        lambda: all_gather_matmul(torch.ones(6), weight),
        lambda: all_gather_matmul(x, weight, gather_dim=2),
        lambda: all_gather_matmul(x, []),
        lambda: all_gather_matmul(x, [weight, weight], biases=[None]),
        lambda: all_gather_matmul(x, weight, sizes=[4] * (num_ranks + 1)),
        lambda: all_gather_matmul(x, weight, sizes=[3] * num_ranks),
        lambda: all_gather_matmul(x, weight.t()),
        lambda: all_gather_matmul(x, weight.to(torch.float16)),
        lambda: matmul_reduce_scatter(torch.ones(2 * num_ranks + 1, 6), weight),
        lambda: matmul_reduce_scatter(x, weight, sizes=[1] * num_ranks),
        lambda: matmul_reduce_scatter(x, weight, reduce_op="max", sizes=[4, *[0] * (num_ranks - 1)]),
    ]
    return [failure(call) for call in calls]


def test_what_cannot_be_multiplied_is_refused_at_once(two_ranks: RankPool) -> None:
    expected = (
        ("gather_dim", r"[6]", "2 dimensions"),
        ("gather_dim is 2", "-2 to 1"),
        ("weights is empty",),
        ("1 biases for 2 weights",),
        ("3 sizes for 2 ranks",),
        ("is 3", "has 4"),
        ("all_gather_matmul", "'weights' has shape [5, 6]", "[6, n]"),
        ("all_gather_matmul", "'weights' is of torch.float16"),
        ("5 does not divide evenly by 2 ranks", "sizes="),
        ("sum to 2", "allowed: 4"),
        ("matmul_reduce_scatter", "max", "avg"),
    )
    for messages in two_ranks.run(_refusals):
        for message, parts in zip(messages, expected, strict=True):
            for part in parts:
                assert part in message


def _disagree(other_operation: bool) -> str:
    """The last rank has another number of rows, or calls the other operation."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.barrier()
    deviates = dist.get_rank() == dist.get_world_size() - 1
    rows = 12 * dist.get_world_size()
    x, weight = torch.ones(rows, 6), torch.ones(6, 5)

    def call() -> object:
        if deviates and other_operation:
            return matmul_reduce_scatter(x, weight, group=group)
        return all_gather_matmul(x[: rows - deviates], weight, group=group)

    message = eventual_failure(call)
    dist.destroy_process_group(group)
    check(all_gather_matmul(x, weight)[0], torch.ones(rows * dist.get_world_size(), 6))
    return message


@pytest.mark.parametrize("other_operation", [False, True], ids=["rows", "operation"])
def test_a_disagreement_raises_on_every_rank(other_operation: bool, ranks: RankPool) -> None:
    for message in ranks.run(_disagree, other_operation):
        assert "mismatch" in message
