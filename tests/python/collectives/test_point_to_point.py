"""send, recv, isend, irecv and their batches: tags, any source, self, sizes around the rendezvous threshold."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from support.devices import on_every_path
from support.pool import RankPool
from support.reference import LAYOUTS, MOVABLE, SIZES, case, contribution, garbage, same_bits, synchronize

pytestmark = on_every_path

LONG = 1 << 20  # elements: far above any eager limit
ALL_SIZES = (*SIZES, LONG)


def _ring_neighbours() -> tuple[int, int, int]:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    return rank, (rank + 1) % num_ranks, (rank - 1) % num_ranks


def _send_recv() -> None:
    """Rank 0 sends to all others, which answer with blocking calls only."""
    cases = [(dtype, 37) for dtype in MOVABLE] + [(torch.float32, size) for size in ALL_SIZES]
    for dtype, size in cases:
        for other in range(1, dist.get_world_size()):
            with case(dtype=dtype, size=size, other=other):
                data = garbage(size, dtype)
                if dist.get_rank() == 0:
                    dist.send(contribution(0, size, dtype), other)
                    assert dist.recv(data, other) == other
                    same_bits(data, contribution(other, size, dtype))
                elif dist.get_rank() == other:
                    assert dist.recv(data, 0) == 0
                    same_bits(data, contribution(0, size, dtype))
                    dist.send(contribution(other, size, dtype), 0)


def test_send_and_recv(ranks: RankPool) -> None:
    ranks.run(_send_recv)


def _isend_irecv() -> None:
    """All ranks send around the ring at once, receiving before and after sending."""
    rank, following, preceding = _ring_neighbours()
    for size in ALL_SIZES:
        for receive_first in (True, False):
            with case(size=size, receive_first=receive_first):
                data = garbage(size, torch.float32)
                outgoing = contribution(rank, size, torch.float32)
                calls = [lambda data=data: dist.irecv(data, preceding), lambda out=outgoing: dist.isend(out, following)]
                works = [call() for call in (calls if receive_first else reversed(calls))]
                for work in works:
                    work.wait()
                synchronize()
                assert all(work.is_completed() for work in works)
                same_bits(data, contribution(preceding, size, torch.float32))


def test_isend_and_irecv_round_a_ring(ranks: RankPool) -> None:
    ranks.run(_isend_irecv)


def _tags() -> None:
    """Messages are received in the opposite order of their sending; the tag identifies them."""
    rank, following, preceding = _ring_neighbours()
    tags = (0, 1, 7, 1000, 2**31 - 1)
    for size in ALL_SIZES:
        with case(size=size):
            sent = [
                dist.isend(contribution(rank, size, torch.int64, seed=tag % 11), following, tag=tag) for tag in tags
            ]
            for tag in reversed(tags):
                data = garbage(size, torch.int64)
                dist.recv(data, preceding, tag=tag)
                same_bits(data, contribution(preceding, size, torch.int64, seed=tag % 11))
            for work in sent:
                work.wait()


def test_tags_tell_messages_apart(ranks: RankPool) -> None:
    ranks.run(_tags)


def _order() -> None:
    """With one tag, messages arrive in order, small and long ones mixed."""
    rank, following, preceding = _ring_neighbours()
    sizes = [1, LONG, 7, 1000, LONG // 2, 2] * 3
    sent = [dist.isend(contribution(rank, size, torch.int64, seed=i), following) for i, size in enumerate(sizes)]
    for index, size in enumerate(sizes):
        data = garbage(size, torch.int64)
        dist.recv(data, preceding)
        same_bits(data, contribution(preceding, size, torch.int64, seed=index))
    for work in sent:
        work.wait()


def test_messages_of_one_tag_arrive_in_order(ranks: RankPool) -> None:
    ranks.run(_order)


def _any_source() -> None:
    num_ranks = dist.get_world_size()
    for size in ALL_SIZES:
        for tag in (0, 5):
            with case(size=size, tag=tag):
                if dist.get_rank() != 0:
                    dist.send(contribution(dist.get_rank(), size, torch.float32), 0, tag=tag)
                    continue
                seen = set()
                for _ in range(1, num_ranks):
                    data = garbage(size, torch.float32)
                    source = dist.recv(data, tag=tag)
                    same_bits(data, contribution(source, size, torch.float32))
                    seen.add(source)
                assert seen == set(range(1, num_ranks))
        dist.barrier()


def test_recv_from_any_source_says_who(ranks: RankPool) -> None:
    if ranks.device != "cpu":
        pytest.skip("a receiver on a GPU must name its peer: it cannot tell the host which rank sent")
    ranks.run(_any_source)


def _to_self() -> None:
    rank = dist.get_rank()
    for size in ALL_SIZES:
        for receive_first in (True, False):
            with case(size=size, receive_first=receive_first):
                data, outgoing = garbage(size, torch.float32), contribution(rank, size, torch.float32)
                calls = [
                    lambda data=data: dist.irecv(data, rank, tag=3),
                    lambda out=outgoing: dist.isend(out, rank, tag=3),
                ]
                for work in [call() for call in (calls if receive_first else reversed(calls))]:
                    work.wait()
                same_bits(data, outgoing)


def test_a_rank_sends_to_itself(one_rank: RankPool, two_ranks: RankPool) -> None:
    one_rank.run(_to_self)
    two_ranks.run(_to_self)


def _batch() -> None:
    """Messages go both ways with every peer at once, self included, with tags."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for size in ALL_SIZES:
        for receive_first in (True, False):
            with case(size=size, receive_first=receive_first):
                incoming = [garbage(size + peer, torch.float32) for peer in range(num_ranks)]
                receives = [dist.P2POp(dist.irecv, incoming[peer], peer, tag=peer) for peer in range(num_ranks)]
                sends = [
                    dist.P2POp(dist.isend, contribution(rank, size + rank, torch.float32, seed=peer), peer, tag=rank)
                    for peer in range(num_ranks)
                ]
                operations = receives + sends if receive_first else sends + receives
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
                for peer, data in enumerate(incoming):
                    same_bits(data, contribution(peer, size + peer, torch.float32, seed=rank))


def test_batches_in_both_directions(ranks: RankPool) -> None:
    ranks.run(_batch)


def _layouts() -> None:
    rank, following, preceding = _ring_neighbours()
    for name, lay_out in LAYOUTS.items():
        for rows in (3, 4000):
            with case(layout=name, rows=rows):
                data = lay_out(torch.zeros(rows, 8))
                sent = dist.isend(lay_out(contribution(rank, rows * 8, torch.float32).view(rows, 8)), following)
                dist.recv(data, preceding)
                sent.wait()
                same_bits(data, contribution(preceding, rows * 8, torch.float32).view(rows, 8))


def test_messages_of_any_layout(two_ranks: RankPool) -> None:
    two_ranks.run(_layouts)


def _beside_collectives() -> None:
    """All tensors are made first: on a GPU, a kernel that is launched for the first time would await the receive."""
    rank, following, preceding = _ring_neighbours()
    incoming, outgoing = garbage(LONG, torch.float32), contribution(rank, LONG, torch.float32)
    total = torch.ones(1000)
    receive = dist.irecv(incoming, preceding, tag=1)
    work = dist.all_reduce(total, async_op=True)
    send = dist.isend(outgoing, following, tag=1)
    dist.barrier()
    for pending in (work, send, receive):
        pending.wait()
    same_bits(incoming, contribution(preceding, LONG, torch.float32))
    same_bits(total, torch.full((1000,), float(dist.get_world_size())))


def test_messages_and_collectives_overlap(ranks: RankPool) -> None:
    ranks.run(_beside_collectives)


def _unexpected() -> None:
    """Messages without a matching receive do not delay others."""
    _, following, preceding = _ring_neighbours()
    for _ in range(3):
        sent = [dist.isend(torch.full((100,), float(i)), following, tag=9) for i in range(200)]
        dist.barrier()
        for index in range(200):
            data = torch.zeros(100)
            dist.recv(data, preceding, tag=9)
            same_bits(data, torch.full((100,), float(index)))
        for work in sent:
            work.wait()


def test_many_unexpected_messages_are_kept(ranks: RankPool) -> None:
    ranks.run(_unexpected)
