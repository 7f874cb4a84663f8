"""Steps in which ranks wait for each other: every operation by itself, small and large, training, and reconfiguring.

    step = make_step("large_all_to_all", victim=2)   # on every rank, once the group is formed
    step()                                           # no rank returns before each of the others has entered

Rooted operations use each rank as root in turn, so that each rank waits for the victim at least once, whichever way the
data goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

import torch_axon
from support.reference import synchronize

Step = Callable[[], object]

# Elements per rank, divisible by three. Small operations are sent at once. In large ones, even the part of a single
# peer exceeds the eager limit (docs/adr/0008-send-messages-up-to-64-kib-eagerly.md).
_SMALL, _LARGE = 900, 3 << 18


def _all_reduce(count: int) -> Step:
    return lambda: dist.all_reduce(torch.ones(count))


def _all_gather(count: int) -> Step:
    return lambda: dist.all_gather_into_tensor(torch.empty(count * dist.get_world_size()), torch.ones(count))


def _reduce_scatter(count: int) -> Step:
    return lambda: dist.reduce_scatter_tensor(torch.empty(count // dist.get_world_size()), torch.ones(count))


def _all_to_all(count: int) -> Step:
    return lambda: dist.all_to_all_single(torch.empty(count), torch.ones(count))


def _round_of_roots(call: Callable[[torch.Tensor, int], object]) -> Callable[[int], Step]:
    def make(count: int) -> Step:
        def step() -> None:
            for root in range(dist.get_world_size()):
                call(torch.ones(count), root)

        return step

    return make


def _gather(data: torch.Tensor, root: int) -> None:
    is_root = dist.get_rank() == root
    dist.gather(data, [torch.empty_like(data) for _ in range(dist.get_world_size())] if is_root else None, root)


def _scatter(data: torch.Tensor, root: int) -> None:
    is_root = dist.get_rank() == root
    dist.scatter(torch.empty_like(data), [data for _ in range(dist.get_world_size())] if is_root else None, root)


def _send_recv(count: int, victim: int) -> Step:
    """The victim exchanges with all others, which do not exchange with each other."""
    is_victim = dist.get_rank() == victim
    others = [rank for rank in range(dist.get_world_size()) if rank != victim] if is_victim else [victim]

    def step() -> None:
        messages = [dist.P2POp(dist.isend, torch.ones(count), other) for other in others]
        messages += [dist.P2POp(dist.irecv, torch.empty(count), other) for other in others]
        for work in dist.batch_isend_irecv(messages):
            work.wait()

    return step


def _train(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 32)).sum().backward()
        optimizer.step()

    return step


def _ddp() -> Step:
    return _train(nn.parallel.DistributedDataParallel(nn.Linear(32, 32)))


def _fsdp() -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    return _train(fully_shard(nn.Linear(32, 32), mesh=mesh))


_latest_instance = 100  # the number of the latest instance that a step has made, in any of this process's groups


def _exchange_handles() -> tuple[Sequence[str], Iterator[int]]:
    """Returns the handles of all ranks, and the numbers of the group's next instances: the same on all ranks."""
    offers: list[tuple[str, int]] = [("", 0)] * dist.get_world_size()
    dist.all_gather_object(offers, (torch_axon.reconfigure_handle(), _latest_instance))
    handles, latest = zip(*offers, strict=True)
    return handles, itertools.count(max(latest) + 1)


def _reconfigure_as(number: int, handles: Sequence[str]) -> None:
    """A rank to which the victim has sent all it must may succeed although another one fails. The barrier fails on
    both."""
    global _latest_instance
    _latest_instance = number
    torch_axon.reconfigure(number, handles)
    dist.barrier()


def _reconfigure() -> Step:
    """The members stay the same."""
    handles, numbers = _exchange_handles()
    return lambda: _reconfigure_as(next(numbers), handles)


def _join(victim: int) -> Step:
    """The victim leaves the others, for a group of its own, and joins them again."""
    handles, numbers = _exchange_handles()
    is_victim = dist.get_rank() == victim
    apart = [handle for rank, handle in enumerate(handles) if (rank == victim) == is_victim]

    def step() -> None:
        _reconfigure_as(next(numbers), apart)
        _reconfigure_as(next(numbers), handles)

    return step


_BY_SIZE: dict[str, Callable[..., Step]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _round_of_roots(dist.broadcast),
    "reduce": _round_of_roots(dist.reduce),
    "gather": _round_of_roots(_gather),
    "scatter": _round_of_roots(_scatter),
    "send_recv": _send_recv,
}

# By name, the function that makes the step of a rank.
OPERATIONS: dict[str, Callable[..., Step]] = {
    **{name: partial(make, _SMALL) for name, make in _BY_SIZE.items()},
    **{f"large_{name}": partial(make, _LARGE) for name, make in _BY_SIZE.items()},
    "barrier": lambda: dist.barrier,
    "ddp_step": _ddp,
    "fsdp_step": _fsdp,
    "reconfigure": _reconfigure,
    "join": _join,
}

# Other names that an error may use for the operation: the first operation for which a step waits.
_NAMES = {
    "send_recv": "receive|send",
    "ddp_step": "all_reduce|broadcast",
    "fsdp_step": "all_gather|reduce_scatter|all_reduce",
    "reconfigure": "reconfigure|barrier",
    "join": "reconfigure|barrier",
}


# A rank that leaves a group tells its members, and not processes that are about to make it a member of another one.
ARE_FORMED_ANEW = ("reconfigure", "join")
# The victim has another part in them than the other ranks.
_HAVE_VICTIMS = ("send_recv", "large_send_recv", "join")


def make_step(name: str, victim: int) -> Step:
    make = OPERATIONS[name]
    start = make(victim=victim) if name in _HAVE_VICTIMS else make()

    def step() -> None:
        start()
        synchronize()

    return step


def names_in_errors(operation: str) -> str:
    """Returns a regular expression."""
    name = operation.removeprefix("large_")
    return rf"\b(?:{_NAMES.get(name, name)})\b"
