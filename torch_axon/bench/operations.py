"""The table of measurable operations: one row per operation of c10d, with its bus factor and its buffers.

Sizes are defined as in nccl-tests. `size` is the largest buffer of a rank (all_gather's output, reduce_scatter's
input). `count` is the number of elements of one rank's shard of it. Bus factors are those of nccl-tests'
doc/PERFORMANCE.md. Uneven variants use the sizes of even shards.

On GPUs, timed calls of `broadcast` and `reduce` take each rank in turn as root, so that each call waits for the last.
Those of `broadcast_fixed_root` and `reduce_fixed_root` keep the root, as gather and scatter do. A root then runs ahead
of its peers as far as the backend lets it. On CPUs the root is always fixed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from torch_axon.bench.exercise import Exercise, Launch, Pending, Setting, Works

_COALESCED = 8  # tensors in a coalesced call; fewer if there are fewer elements


@dataclass(frozen=True)
class Operation:
    """A row of the table."""

    name: str
    bus_factor: Callable[[int], float]
    prepare: Callable[[Setting], Exercise]
    shares: bool = False  # the size is that of all ranks' shards together
    reduces: bool = False
    rooted: bool = False
    sized: bool = True
    hops: int = 1  # sequential messages in a synchronous call; the reported time is that of one

    def count(self, num_bytes: int, dtype: torch.dtype, num_ranks: int) -> int:
        """Returns the number of elements for a size in bytes, at least one, so small sizes are rounded up."""
        if not self.sized:
            return 0
        return max(1, num_bytes // (dtype.itemsize * (num_ranks if self.shares else 1)))

    def size(self, count: int, dtype: torch.dtype, num_ranks: int) -> int:
        return count * dtype.itemsize * (num_ranks if self.shares else 1)


def _all_reduce(s: Setting) -> Exercise:
    tensor = s.empty(s.count)
    return Exercise(
        lambda group, is_async: dist.all_reduce(tensor, op=s.op, group=group, async_op=is_async),
        inputs=[(tensor, s.contribution(s.count))],
        outputs=[(tensor, s.reduced(s.count))],
    )


def _all_reduce_coalesced(s: Setting) -> Exercise:
    """One call for several tensors that have the size in total."""
    num_tensors = min(_COALESCED, s.count)
    contributions, sums = (each.tensor_split(num_tensors) for each in (s.contribution(s.count), s.reduced(s.count)))
    tensors = [s.empty(len(each)) for each in contributions]

    def launch(group: dist.ProcessGroup, is_async: bool) -> Pending | None:
        with dist.distributed_c10d._coalescing_manager(group, async_ops=is_async) as calls:
            for tensor in tensors:
                dist.all_reduce(tensor, op=s.op, group=group)
        return calls if is_async else None

    return Exercise(
        launch,
        inputs=list(zip(tensors, contributions, strict=True)),
        outputs=list(zip(tensors, sums, strict=True)),
    )


def _reduce(s: Setting) -> Exercise:
    tensor = s.empty(s.count)

    def to(root: int) -> Launch:
        return lambda group, is_async: dist.reduce(tensor, root, op=s.op, group=group, async_op=is_async)

    return Exercise(
        to(s.root),
        inputs=[(tensor, s.contribution(s.count))],
        outputs=[(tensor, s.reduced(s.count))] if s.is_root else [],
        make_chain=lambda: [to(root) for root in range(s.num_ranks)],
    )


def _broadcast(s: Setting) -> Exercise:
    tensor = s.empty(s.count)

    def of(root: int) -> Launch:
        return lambda group, is_async: dist.broadcast(tensor, root, group=group, async_op=is_async)

    return Exercise(
        of(s.root),
        inputs=[(tensor, s.moved(s.rank))],
        outputs=[(tensor, s.moved(s.root))],
        make_chain=lambda: [of(root) for root in range(s.num_ranks)],
    )


def _from_fixed_root(prepare: Callable[[Setting], Exercise]) -> Callable[[Setting], Exercise]:
    """Keeps the root in back-to-back calls, too: training broadcasts parameters from one rank, and logs on one."""
    return lambda setting: replace(prepare(setting), make_chain=None)


def _all_gather(s: Setting) -> Exercise:
    source, target = s.empty(s.count), s.empty(s.count * s.num_ranks)

    def between(source: Tensor, target: Tensor) -> Launch:
        return lambda group, is_async: dist.all_gather_into_tensor(target, source, group=group, async_op=is_async)

    def chain() -> list[Launch]:
        """Each call gathers what the previous one received from the next rank."""
        other, following = torch.zeros_like(target), (s.rank + 1) % s.num_ranks
        shares = [each.chunk(s.num_ranks)[following] for each in (target, other)]
        return [between(shares[0], other), between(shares[1], target)]

    return Exercise(
        between(source, target),
        inputs=[(source, s.moved(s.rank))],
        outputs=[(target, torch.cat(s.moved_by_all()))],
        make_chain=chain,
    )


def _all_gather_list(s: Setting) -> Exercise:
    source, targets = s.empty(s.count), s.shares()
    return Exercise(
        lambda group, is_async: dist.all_gather(targets, source, group=group, async_op=is_async),
        inputs=[(source, s.moved(s.rank))],
        outputs=list(zip(targets, s.moved_by_all(), strict=True)),
    )


def _all_gather_uneven(s: Setting) -> Exercise:
    """Odd ranks contribute 1.5 times as much as even ones."""
    counts = [s.count + rank % 2 * -(-s.count // 2) for rank in range(s.num_ranks)]
    source, targets = s.empty(counts[s.rank]), [s.empty(count) for count in counts]
    expected = [s.moved(rank, count) for rank, count in enumerate(counts)]
    return Exercise(
        lambda group, is_async: dist.all_gather(targets, source, group=group, async_op=is_async),
        inputs=[(source, expected[s.rank])],
        outputs=list(zip(targets, expected, strict=True)),
    )


def _reduce_scatter(s: Setting) -> Exercise:
    total = s.count * s.num_ranks
    source, target = s.empty(total), s.empty(s.count)

    def between(source: Tensor, target: Tensor) -> Launch:
        return lambda group, is_async: dist.reduce_scatter_tensor(
            target, source, op=s.op, group=group, async_op=is_async
        )

    def chain() -> list[Launch]:
        """Each call writes its result into the input of the next."""
        other, following = torch.zeros_like(source), (s.rank + 1) % s.num_ranks
        shares = [each.chunk(s.num_ranks)[following] for each in (source, other)]
        return [between(source, shares[1]), between(other, shares[0])]

    return Exercise(
        between(source, target),
        inputs=[(source, s.contribution(total))],
        outputs=[(target, s.reduced(total).chunk(s.num_ranks)[s.rank])],
        make_chain=chain,
    )


def _gather(s: Setting) -> Exercise:
    source, targets = s.empty(s.count), s.shares() if s.is_root else None
    return Exercise(
        lambda group, is_async: dist.gather(source, targets, dst=s.root, group=group, async_op=is_async),
        inputs=[(source, s.moved(s.rank))],
        outputs=list(zip(targets, s.moved_by_all(), strict=True)) if targets else [],
    )


def _scatter(s: Setting) -> Exercise:
    target, sources = s.empty(s.count), s.shares() if s.is_root else None
    return Exercise(
        lambda group, is_async: dist.scatter(target, sources, src=s.root, group=group, async_op=is_async),
        inputs=list(zip(sources, s.moved_by_all(), strict=True)) if sources else [],
        outputs=[(target, s.moved(s.rank))],
    )


def _all_to_all(s: Setting) -> Exercise:
    return _all_to_all_with_counts(s, lambda _sender, _receiver: s.count)


def _all_to_all_uneven(s: Setting) -> Exercise:
    """Every second shard is 1.5 times as large."""
    return _all_to_all_with_counts(s, lambda sender, receiver: s.count + (sender + receiver) % 2 * -(-s.count // 2))


def _all_to_all_with_counts(s: Setting, share: Callable[[int, int], int]) -> Exercise:
    """Sends `share(sender, receiver)` elements from each sender to each receiver."""
    sent = [share(s.rank, peer) for peer in range(s.num_ranks)]
    received = [share(peer, s.rank) for peer in range(s.num_ranks)]
    source, target = s.empty(sum(sent)), s.empty(sum(received))
    is_even = len({*sent, *received}) == 1
    splits = {} if is_even else {"output_split_sizes": received, "input_split_sizes": sent}

    def values(sender: int, receiver: int) -> Tensor:
        return s.moved(sender * s.num_ranks + receiver, share(sender, receiver))

    def between(source: Tensor, target: Tensor) -> Launch:
        return lambda group, is_async: dist.all_to_all_single(target, source, group=group, async_op=is_async, **splits)

    return Exercise(
        between(source, target),
        inputs=[(source, torch.cat([values(s.rank, peer) for peer in range(s.num_ranks)]))],
        outputs=[(target, torch.cat([values(peer, s.rank) for peer in range(s.num_ranks)]))],
        make_chain=lambda: [between(source, target), between(target, source)],  # shares are symmetric
    )


def _barrier(_: Setting) -> Exercise:
    return Exercise(lambda group, is_async: dist.barrier(group=group, async_op=is_async))


def _sendrecv(s: Setting) -> Exercise:
    """Ping-pong of ranks 0 and 1, 2 and 3 and so on; an odd last rank does nothing.

    Asynchronous calls send one message each way at once. The lower rank sends first, because with NCCL the calls of a
    pair wait for each other.
    """
    peer = s.rank ^ 1
    if peer >= s.num_ranks:
        return Exercise(lambda _group, _is_async: None)
    source, target = s.empty(s.count), s.empty(s.count)

    def ping(group: dist.ProcessGroup, is_async: bool) -> Pending | None:
        if is_async:
            return Works.of(dist.isend(source, peer, group=group), dist.irecv(target, peer, group=group))
        dist.send(source, peer, group=group)
        dist.recv(target, peer, group=group)
        return None

    def pong(group: dist.ProcessGroup, is_async: bool) -> Pending | None:
        if is_async:
            return Works.of(dist.irecv(target, peer, group=group), dist.isend(source, peer, group=group))
        dist.recv(target, peer, group=group)
        dist.send(source, peer, group=group)
        return None

    return Exercise(
        ping if s.rank < peer else pong,
        inputs=[(source, s.moved(s.rank))],
        outputs=[(target, s.moved(peer))],
    )


def _ring(s: Setting) -> Exercise:
    """Every rank sends to the next and receives from the previous one, in one batch."""
    source, target = s.empty(s.count), s.empty(s.count)
    following, preceding = (s.rank + 1) % s.num_ranks, (s.rank - 1) % s.num_ranks

    def between(source: Tensor, target: Tensor) -> Launch:
        def launch(group: dist.ProcessGroup, is_async: bool) -> Pending | None:
            send = dist.P2POp(dist.isend, source, following, group)
            receive = dist.P2POp(dist.irecv, target, preceding, group)
            works = Works(dist.batch_isend_irecv([send, receive]))
            if is_async:
                return works
            works.wait()
            return None

        return launch

    return Exercise(
        between(source, target),
        inputs=[(source, s.moved(s.rank))],
        outputs=[(target, s.moved(preceding))],
        make_chain=lambda: [between(source, target), between(target, source)],
    )


def _whole(_: int) -> float:
    return 1.0


def _twice_all_but_own(num_ranks: int) -> float:
    return 2 * (num_ranks - 1) / num_ranks


def _all_but_own(num_ranks: int) -> float:
    return (num_ranks - 1) / num_ranks


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", _twice_all_but_own, _all_reduce, reduces=True),
        Operation("all_reduce_coalesced", _twice_all_but_own, _all_reduce_coalesced, reduces=True),
        Operation("all_gather", _all_but_own, _all_gather, shares=True),
        Operation("all_gather_list", _all_but_own, _all_gather_list, shares=True),
        Operation("all_gather_uneven", _all_but_own, _all_gather_uneven, shares=True),
        Operation("reduce_scatter", _all_but_own, _reduce_scatter, shares=True, reduces=True),
        Operation("broadcast", _whole, _broadcast, rooted=True),
        Operation("broadcast_fixed_root", _whole, _from_fixed_root(_broadcast), rooted=True),
        Operation("reduce", _whole, _reduce, reduces=True, rooted=True),
        Operation("reduce_fixed_root", _whole, _from_fixed_root(_reduce), reduces=True, rooted=True),
        Operation("gather", _all_but_own, _gather, shares=True, rooted=True),
        Operation("scatter", _all_but_own, _scatter, shares=True, rooted=True),
        Operation("all_to_all", _all_but_own, _all_to_all, shares=True),
        Operation("all_to_all_uneven", _all_but_own, _all_to_all_uneven, shares=True),
        Operation("barrier", _whole, _barrier, sized=False),
        Operation("sendrecv", _whole, _sendrecv, hops=2),
        Operation("ring", _whole, _ring),
    )
}
