"""broadcast, all_gather, gather, scatter and all_to_all in all their forms, against NumPy."""

from __future__ import annotations

import torch
import torch.distributed as dist

from support.devices import on_every_path
from support.pool import RankPool
from support.reference import LARGE, LAYOUTS, MOVABLE, SIZES, case, contribution, dense, finish, garbage, same_bits

pytestmark = on_every_path

CASES = [
    *((dtype, 37) for dtype in MOVABLE),
    *((dtype, size) for size in SIZES for dtype in (torch.float32, torch.uint8)),
    (torch.float32, LARGE),
    (torch.bool, LARGE),
]


def _broadcast() -> None:
    for index, (dtype, size) in enumerate(CASES):
        for root in range(dist.get_world_size()):
            with case(dtype=dtype, size=size, root=root):
                expected = contribution(root, size, dtype)
                data = dense(expected) if dist.get_rank() == root else garbage(size, dtype)
                finish(dist.broadcast(data, root, async_op=index % 2 == 1))
                same_bits(data, expected)


def test_broadcast(ranks: RankPool) -> None:
    ranks.run(_broadcast)


def _all_gather() -> None:
    """Rank r contributes r * `uneven` elements more than rank 0."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for index, (dtype, size) in enumerate(CASES):
        for uneven in (0, 5):
            with case(dtype=dtype, size=size, uneven=uneven):
                outputs = [garbage(size + uneven * source, dtype) for source in range(num_ranks)]
                source = contribution(rank, size + uneven * rank, dtype)
                finish(dist.all_gather(outputs, source, async_op=index % 2 == 1))
                for other, output in enumerate(outputs):
                    same_bits(output, contribution(other, size + uneven * other, dtype))


def test_all_gather_lists_even_and_uneven(ranks: RankPool) -> None:
    ranks.run(_all_gather)


def _all_gather_into_tensor() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for index, (dtype, size) in enumerate(CASES):
        expected = torch.cat([contribution(other, size, dtype).view(torch.uint8) for other in range(num_ranks)])
        for aliased in (False, True):
            with case(dtype=dtype, size=size, aliased=aliased):
                output = garbage(size * num_ranks, dtype)
                source = contribution(rank, size, dtype)
                if aliased:  # as FSDP2 gathers
                    output[rank * size : (rank + 1) * size].copy_(source)
                    source = output[rank * size : (rank + 1) * size]
                finish(dist.all_gather_into_tensor(output, source, async_op=index % 2 == 1))
                same_bits(output, expected.view(dtype))
    stacked = torch.zeros(num_ranks, 6)
    dist.all_gather_into_tensor(stacked, torch.full((6,), float(rank)))
    same_bits(stacked, torch.arange(float(num_ranks))[:, None].expand(num_ranks, 6))


def test_all_gather_into_tensor_also_with_an_aliased_input(ranks: RankPool) -> None:
    ranks.run(_all_gather_into_tensor)


def _all_gather_aliased_list() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    outputs = [garbage(1000, torch.float32) for _ in range(num_ranks)]
    outputs[rank].copy_(contribution(rank, 1000, torch.float32))
    dist.all_gather(outputs, outputs[rank])
    for other, output in enumerate(outputs):
        same_bits(output, contribution(other, 1000, torch.float32))


def test_all_gather_of_a_tensor_of_its_own_outputs(ranks: RankPool) -> None:
    ranks.run(_all_gather_aliased_list)


def _all_gather_coalesced() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    sizes = (3, 0, 1000, 70_000)
    sources = [contribution(rank, size, torch.float32, seed=size) for size in sizes]
    outputs = [[garbage(size, torch.float32) for size in sizes] for _ in range(num_ranks)]
    finish(dist.all_gather_coalesced(outputs, sources, async_op=True))
    for other in range(num_ranks):
        for size, output in zip(sizes, outputs[other], strict=True):
            same_bits(output, contribution(other, size, torch.float32, seed=size))
    for device in (None, torch.get_default_device()):
        with case(device=device):
            joined = [garbage(size * num_ranks, torch.float32) for size in sizes]
            with dist._coalescing_manager(device=device, async_ops=True) as manager:
                for output, source in zip(joined, sources, strict=True):
                    dist.all_gather_into_tensor(output, source)
            manager.wait()
            for size, output in zip(sizes, joined, strict=True):
                blocks = [contribution(other, size, torch.float32, seed=size) for other in range(num_ranks)]
                same_bits(output, torch.cat(blocks))


def test_coalesced_all_gathers(ranks: RankPool) -> None:
    ranks.run(_all_gather_coalesced)


def _gather() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for index, (dtype, size) in enumerate(CASES):
        root = index % num_ranks
        with case(dtype=dtype, size=size, root=root):
            outputs = [garbage(size, dtype) for _ in range(num_ranks)] if rank == root else None
            finish(dist.gather(contribution(rank, size, dtype), outputs, root, async_op=index % 2 == 1))
            for other, output in enumerate(outputs or ()):
                same_bits(output, contribution(other, size, dtype))


def test_gather(ranks: RankPool) -> None:
    ranks.run(_gather)


def _scatter() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for index, (dtype, size) in enumerate(CASES):
        root = index % num_ranks
        with case(dtype=dtype, size=size, root=root):
            blocks = [contribution(to, size, dtype, seed=root) for to in range(num_ranks)] if rank == root else None
            output = garbage(size, dtype)
            finish(dist.scatter(output, blocks, root, async_op=index % 2 == 1))
            same_bits(output, contribution(rank, size, dtype, seed=root))


def test_scatter(ranks: RankPool) -> None:
    ranks.run(_scatter)


def _block(source: int, to: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return contribution(source, size, dtype, seed=10 * to)


def _all_to_all() -> None:
    """Rank s sends `size` + uneven * (s + 2 t) elements to rank t."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for index, (dtype, size) in enumerate(CASES):
        for uneven in (0, 3):
            sizes = [[size + uneven * (source + 2 * to) for to in range(num_ranks)] for source in range(num_ranks)]
            with case(dtype=dtype, size=size, uneven=uneven):
                outputs = [garbage(sizes[source][rank], dtype) for source in range(num_ranks)]
                sources = [_block(rank, to, sizes[rank][to], dtype) for to in range(num_ranks)]
                finish(dist.all_to_all(outputs, sources, async_op=index % 2 == 1))
                for source, output in enumerate(outputs):
                    same_bits(output, _block(source, rank, sizes[source][rank], dtype))


def test_all_to_all_lists_even_and_uneven(ranks: RankPool) -> None:
    ranks.run(_all_to_all)


def _all_to_all_single() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for index, (dtype, size) in enumerate(CASES):
        for uneven in (0, 3):
            sizes = [[size + uneven * ((source + to) % 3) for to in range(num_ranks)] for source in range(num_ranks)]
            incoming = [sizes[source][rank] for source in range(num_ranks)]
            with case(dtype=dtype, size=size, uneven=uneven):
                output = garbage(sum(incoming), dtype)
                blocks = [_block(rank, to, sizes[rank][to], dtype).view(torch.uint8) for to in range(num_ranks)]
                source = torch.cat(blocks).view(dtype)
                splits = (incoming, sizes[rank]) if uneven else (None, None)
                finish(dist.all_to_all_single(output, source, *splits, async_op=index % 2 == 1))
                got = output.split(incoming)
                for other in range(num_ranks):
                    same_bits(got[other], _block(other, rank, incoming[other], dtype))


def test_all_to_all_single_even_and_uneven(ranks: RankPool) -> None:
    ranks.run(_all_to_all_single)


def _all_to_all_empty_splits() -> None:
    """Everything goes to rank 0, in rows of three."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    outgoing = [2 if to == 0 else 0 for to in range(num_ranks)]
    incoming = [2 if rank == 0 else 0 for _ in range(num_ranks)]
    output = torch.zeros(sum(incoming), 3)
    dist.all_to_all_single(output, torch.full((2, 3), float(rank)), incoming, outgoing)
    expected = [torch.full((2, 3), float(other)) for other in range(num_ranks)] if rank == 0 else [torch.zeros(0, 3)]
    same_bits(output, torch.cat(expected))


def test_all_to_all_with_empty_splits_and_rows(ranks: RankPool) -> None:
    ranks.run(_all_to_all_empty_splits)


def _layouts() -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()

    def matrix(source: int, rows: int) -> torch.Tensor:
        return contribution(source, rows * 8, torch.float32).view(rows, 8)

    for name, lay_out in LAYOUTS.items():
        for rows in (0, 3, 300):
            with case(layout=name, rows=rows):
                data = lay_out(matrix(rank, rows))
                dist.broadcast(data, num_ranks - 1)
                same_bits(data, matrix(num_ranks - 1, rows))
                outputs = [lay_out(torch.zeros(rows, 8)) for _ in range(num_ranks)]
                dist.all_gather(outputs, lay_out(matrix(rank, rows)))
                for other, output in enumerate(outputs):
                    same_bits(output, matrix(other, rows))
                output = lay_out(torch.zeros(rows, 8))
                blocks = [lay_out(matrix(to, rows)) for to in range(num_ranks)]
                dist.scatter(output, blocks if rank == 0 else None, 0)
                same_bits(output, matrix(rank, rows))
                outputs = [lay_out(torch.zeros(rows, 8)) for _ in range(num_ranks)]
                dist.gather(lay_out(matrix(rank, rows)), outputs if rank == 0 else None, 0)
                if rank == 0:
                    for other, output in enumerate(outputs):
                        same_bits(output, matrix(other, rows))
                outputs = [lay_out(torch.zeros(rows, 8)) for _ in range(num_ranks)]
                dist.all_to_all(outputs, [lay_out(matrix(rank + to, rows)) for to in range(num_ranks)])
                for other, output in enumerate(outputs):
                    same_bits(output, matrix(other + rank, rows))


def test_movements_of_any_layout(ranks: RankPool) -> None:
    ranks.run(_layouts)


def _alone() -> None:
    data = contribution(0, 100, torch.float32)
    dist.broadcast(data, 0)
    outputs = [torch.zeros(100)]
    dist.all_gather(outputs, data)
    same_bits(outputs[0], data)
    output = torch.zeros(100)
    for move in (
        lambda: dist.all_gather_into_tensor(output, data),
        lambda: dist.gather(data, [output], 0),
        lambda: dist.scatter(output, [data], 0),
        lambda: dist.all_to_all_single(output, data),
        lambda: dist.all_to_all([output], [data]),
    ):
        output.zero_()
        move()
        same_bits(output, data)
    dist.barrier()


def test_movements_over_one_rank_copy(one_rank: RankPool) -> None:
    one_rank.run(_alone)
