"""Ranks that disagree about a collective all get an error that holds both sides."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.reference import eventual_failure, failure, failure_or_nothing, same_bits

Call = Callable[[dist.ProcessGroup], object]
SMALL, LARGE = 12, 12 << 17  # which every number of ranks divides evenly
TIMEOUT_S = 20.0


def _reduce(size: int, dtype: torch.dtype = torch.float32, op: dist.ReduceOp = dist.ReduceOp.SUM) -> Call:
    return lambda group: dist.all_reduce(torch.ones(size, dtype=dtype), op, group=group)


def _broadcast(size: int, root: int) -> Call:
    return lambda group: dist.broadcast(torch.ones(size), group=group, group_src=root)


def _gather(size: int) -> Call:
    return lambda group: dist.all_gather_into_tensor(torch.ones(size * group.size()), torch.ones(size), group=group)


def _scatter(size: int) -> Call:
    return lambda group: dist.reduce_scatter_tensor(torch.ones(size), torch.ones(size * group.size()), group=group)


def _exchange(size: int) -> Call:
    return lambda group: dist.all_to_all_single(torch.ones(size), torch.ones(size), group=group)


def _barrier(group: dist.ProcessGroup) -> None:
    dist.barrier(group)


def _objects(group: dist.ProcessGroup) -> None:
    dist.all_gather_object([None] * group.size(), "object", group=group)


def _both(first: Call, second: Call) -> Call:
    return lambda group: (first(group), second(group))


# The call of all ranks but the last, the call of the last, and what the error must name.
_DISAGREEMENTS: dict[str, tuple[Call, Call, tuple[str, ...]]] = {}
for _size, _label in ((SMALL, "small"), (LARGE, "large")):
    _DISAGREEMENTS |= {
        f"operation, {_label}": (_reduce(_size), _gather(_size), ("all_reduce", "all_gather")),
        f"other operation, {_label}": (_scatter(_size), _exchange(_size), ("reduce_scatter", "all_to_all")),
        f"barrier, {_label}": (_reduce(_size), _barrier, ("all_reduce", "barrier")),
        f"objects, {_label}": (_reduce(_size), _objects, ("all_reduce", "all_gather")),
        f"dtype, {_label}": (_reduce(_size), _reduce(_size, torch.int32), ("float32", "int32")),
        f"dtype and size, {_label}": (_reduce(_size), _reduce(_size // 2, torch.float64), ("float32", "float64")),
        f"size, {_label}": (_reduce(_size), _reduce(_size + 1), (str(_size), str(_size + 1))),
        f"gathered size, {_label}": (_gather(_size), _gather(_size + 1), ("all_gather", "elements")),
        f"reduction, {_label}": (_reduce(_size), _reduce(_size, op=dist.ReduceOp.MAX), ("SUM", "MAX")),
        f"root, {_label}": (_broadcast(_size, 0), _broadcast(_size, 1), ("root 0", "root 1")),
        f"order, {_label}": (
            _both(_reduce(_size), _reduce(_size * 2)),
            _both(_reduce(_size * 2), _reduce(_size)),
            (str(_size), str(_size * 2)),
        ),
    }
_DISAGREEMENTS["small against large"] = (_reduce(SMALL), _reduce(LARGE), (str(SMALL), str(LARGE)))


def _disagree(name: str) -> tuple[str, float]:
    """An operation may succeed if it completed before the other side's message arrived: then the next one fails."""
    usual, deviant, _ = _DISAGREEMENTS[name]
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    usual(group)
    dist.barrier()
    call = deviant if dist.get_rank() == dist.get_world_size() - 1 else usual
    started = time.monotonic()
    message = eventual_failure(lambda: call(group), lambda: _barrier(group))
    seconds = time.monotonic() - started
    failure(lambda: dist.barrier(group))  # a broken group stays broken
    dist.destroy_process_group(group)
    data = torch.ones(3)
    dist.all_reduce(data)  # and harms no other
    same_bits(data, torch.full((3,), float(dist.get_world_size())))
    return message, seconds


@on_cpu_and_gpu
@pytest.mark.parametrize("name", _DISAGREEMENTS)
def test_a_disagreement_raises_on_every_rank(name: str, ranks: RankPool) -> None:
    for message, seconds in ranks.run(_disagree, name):
        assert seconds < TIMEOUT_S, message
        assert "mismatch" in message
        assert ranks.device != "cpu" or re.search(r"#\d", message)
        assert re.search(rf"rank {ranks.size - 1}\b", message) or ranks.size > 2
        for part in _DISAGREEMENTS[name][2]:
            assert part in message


def _messages_disagree(size: int, when: str) -> list[str]:
    """Returns this rank's errors for three messages that do not fit. The group is unharmed."""
    told, heard = [], torch.zeros(1)
    for tag, wrong in enumerate((torch.ones(size + 1), torch.ones(size - 1), torch.ones(size, dtype=torch.int32))):
        if dist.get_rank() == 0:
            if when == "expected":
                dist.recv(heard, 1, tag=100)
            work = dist.isend(torch.ones(size), 1, tag=tag)
            dist.send(heard, 1, tag=200)  # arrives after the message
            told.append(failure_or_nothing(work.wait))
            continue
        if when == "expected":
            work = dist.irecv(wrong, 0, tag=tag)
            dist.send(heard, 0, tag=100)
            dist.recv(heard, 0, tag=200)
            told.append(failure(work.wait))
        else:
            dist.recv(heard, 0, tag=200)
            told.append(failure(lambda tag=tag, wrong=wrong: dist.recv(wrong, 0, tag=tag)))
    data = torch.ones(3)
    dist.all_reduce(data)
    same_bits(data, torch.full((3,), 2.0))
    return told


@pytest.mark.parametrize("when", ["expected", "unexpected"])
@pytest.mark.parametrize("size", [SMALL, 16_384, 16_385, 1_000_003])
def test_a_message_that_does_not_fit_raises_at_both_ends(size: int, when: str, two_ranks: RankPool) -> None:
    """The sender gets the error too, unless the message is sent at once however it is received: up to 64 KiB."""
    sent, received = two_ranks.run(_messages_disagree, size, when)
    is_awaited = size * 4 > 65_536
    for i, (count, dtype) in enumerate(((size + 1, "float32"), (size - 1, "float32"), (size, "int32"))):
        for message in [received[i], *([sent[i]] if is_awaited else [])]:
            assert "mismatched" in message
            assert f"the sender, rank 0 has {size} elements of float32" in message
            assert f"the receiver, rank 1 has {count} elements of {dtype}" in message
            assert "cannot be reached" not in message
        assert is_awaited or sent[i] == ""


def _splits_disagree(size: int, wrong: int) -> str:
    """Rank 0 sends `size` elements to rank 1, which expects another number; all other pairs agree."""
    num_ranks = dist.get_world_size()
    group = dist.new_group(timeout=timedelta(seconds=20))
    sent, received = [size] * num_ranks, [size] * num_ranks
    if dist.get_rank() == 1:
        received[0] = wrong
    output, data = torch.empty(sum(received)), torch.ones(sum(sent))
    dist.barrier()
    message = failure_or_nothing(lambda: dist.all_to_all_single(output, data, received, sent, group=group))
    dist.barrier()
    dist.destroy_process_group(group)
    return message


@pytest.mark.parametrize(("size", "wrong"), [(12, 13), (12, 0), (16_384, 16_385), (20_000, 16), (1_000_003, 1_048_583)])
def test_both_ranks_of_mismatched_splits_name_both_sizes(size: int, wrong: int, ranks: RankPool) -> None:
    """Other ranks may have finished by then; if they raise, it is this error."""
    for _ in range(4):
        messages = ranks.run(_splits_disagree, size, wrong)
        for rank, message in enumerate(messages):
            if rank > 1 and not message:
                continue
            assert "mismatched all_to_all" in message
            assert f"the sender, rank 0 has {size} elements" in message
            assert f"the receiver, rank 1 has {wrong} elements" in message
