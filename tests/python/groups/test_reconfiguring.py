"""reconfigure(): processes join a group, leave it and replace others, while its object stays.

Each rank of a pool begins as a group of its own. The test passes their handles on, as a coordinator would.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_axon
from support.devices import on, on_cpu_and_gpu
from support.gpu import backend_of, exercise_all
from support.holdings import growth, memory_kib
from support.pool import RankPool, own_rank
from support.reference import eventual_failure, failure, same_bits, synchronize

SHORT = timedelta(seconds=2)


def _alone(timeout_s: float = 20.0) -> str:
    dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=timeout_s))
    return torch_axon.reconfigure_handle()


def _world() -> dist.ProcessGroup:
    return dist.distributed_c10d._get_default_group()


def _join(uuid: int, handles: Sequence[str], members: Sequence[int]) -> None:
    """Makes the default group one of these members, and uses it."""
    if own_rank() in members:
        torch_axon.reconfigure(uuid, [handles[member] for member in members])
        _use(members)


def _use(members: Sequence[int]) -> None:
    assert (dist.get_rank(), dist.get_world_size()) == (list(members).index(own_rank()), len(members))
    assert dist.get_process_group_ranks(_world()) == list(range(len(members)))
    data = torch.full((1000,), float(own_rank() + 1))
    dist.all_reduce(data)
    same_bits(data, torch.full((1000,), float(sum(member + 1 for member in members))))
    for root, member in enumerate(members):
        data = torch.full((10,), own_rank())
        dist.broadcast(data, root)
        same_bits(data, torch.full((10,), member))
    exercise_all(8, 100_000)


@on_cpu_and_gpu
def test_processes_join_leave_and_change_places(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(4, "none")
    handles = ranks.run(_alone)
    memberships = [[0, 1], [0, 1, 2, 3], [3, 1], [0, 1, 2, 3], [2, 0, 3, 1], [2, 0, 3, 1], [1], [1, 2]]
    for uuid, members in enumerate(memberships):
        ranks.run(_join, uuid, handles, members)


def _join_unordered(handles: Sequence[str]) -> tuple[int, int]:
    torch_axon.reconfigure(1, set(handles))
    exercise_all(8, 100_000)
    return dist.get_rank(), os.getpid()


def test_a_set_of_handles_has_one_order_on_all_members(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(3, "none")
    joined = ranks.run(_join_unordered, ranks.run(_alone))
    assert sorted(rank for rank, _ in joined) == [0, 1, 2]


def _lose_a_rank(handles: Sequence[str], lost: int, spare: int) -> None:
    """A rank is killed in the middle of the others' work. They go on with a spare process in its place."""
    members = [rank for rank in range(len(handles)) if rank != spare]
    _join(1, handles, members)
    if own_rank() == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    if own_rank() != spare:
        message = eventual_failure(lambda: dist.all_reduce(torch.ones(3)))
        assert f"rank {members.index(lost)} is gone" in message
        _join(2, handles, [member for member in members if member != lost])
    replaced = [spare if member == lost else member for member in members]
    _join(3, handles, replaced)


@on_cpu_and_gpu
def test_a_killed_rank_is_replaced(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(4, "none")
    ranks.run(_lose_a_rank, ranks.run(_alone), 1, 3, dying=[1])


def _train_on(handles: Sequence[str]) -> None:
    """A module that holds the group goes on with fewer members, and its gradients are the means over them."""
    _join(1, handles, [0, 1, 2])
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    parallel = DistributedDataParallel(model)
    for uuid, members in ((2, [0, 1, 2]), (3, [1, 2, 0]), (4, [2, 0]), (5, [0, 2])):
        _join(uuid, handles, members)
        _step(parallel, members)
    _join(6, handles, [0, 2, 1])
    parallel = DistributedDataParallel(model)  # its buckets are built alike on old and new members
    for _ in range(3):
        _step(parallel, [0, 2, 1])


def _step(parallel: DistributedDataParallel, members: Sequence[int]) -> None:
    if own_rank() not in members:
        return
    weight = parallel.module.weight
    weight.grad = None
    parallel(torch.full((2, 3), float(own_rank() + 1))).sum().backward()
    mean = sum(member + 1 for member in members) / len(members)
    same_bits(weight.grad, torch.full((1, 3), 2 * mean))


@on_cpu_and_gpu
def test_ddp_goes_on_with_other_members(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(3, "none")
    ranks.run(_train_on, ranks.run(_alone))


def _refused(handles: Sequence[str]) -> list[str]:
    _join(1, handles, [0, 1])
    own = handles[own_rank()]
    texts = [
        failure(lambda: torch_axon.reconfigure(1, handles)),
        failure(lambda: torch_axon.reconfigure(2, [])),
        failure(lambda: torch_axon.reconfigure(2, [handles[1 - own_rank()]])),
        failure(lambda: torch_axon.reconfigure(2, [own, own])),
        failure(lambda: torch_axon.reconfigure(2, [own, "gloo:7"])),
        failure(lambda: torch_axon.reconfigure(2, [own, own[:-2]])),
        failure(lambda: torch_axon.reconfigure(2, [own, own[:-1] + "x"])),
        failure(lambda: torch_axon.reconfigure(2, [own, own.replace("axon:", "axon:x", 1)])),
        failure(lambda: torch_axon.reconfigure(2, handles, timeout=timedelta(0))),
    ]
    _use([0, 1])  # nothing has changed
    return texts


def test_bad_arguments_change_nothing(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(2, "none")
    (texts, _) = ranks.run(_refused, ranks.run(_alone))
    assert all(text.startswith("ValueError: ") for text in texts), texts
    expected = [
        "argument 'uuid' is 1, which this group has been given before; allowed: a new number",
        "argument 'handles' has 0 handles, none of which is this group's own",
        "argument 'handles' has 1 handles, none of which is this group's own",
        "argument 'handles'[1]: it appears twice",
        "argument 'handles'[1]: 'gloo:7' is not a handle of torch_axon",
        "bytes of transport address, expected",
        "pairs of hexadecimal digits",
        "its rank is not a number from 0 up",
        "argument 'timeout' is 0 ms; allowed: more than 0 ms",
    ]
    for text, words in zip(texts, expected, strict=True):
        assert words in text


def _forge(handles: Sequence[str]) -> list[str]:
    """A handle says that another process has this one's identity, so it cannot be reached. The group stays as it is."""
    _join(1, handles, [0, 1])
    start = handles[0].rindex(":") + 1
    pid = start + 2 * 40  # in hexadecimal digits; see docs/wire.md
    own, forged = handles[own_rank()], handles[own_rank()]
    forged = forged[: start + 16] + "0" * 16 + forged[start + 32 : pid] + "00000001" + forged[pid + 8 :]
    text = failure(lambda: torch_axon.reconfigure(2, [own, forged]))
    _use([0, 1])
    _join(3, handles, [1, 0])
    return [text]


def test_a_member_that_cannot_be_reached_changes_nothing(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(2, "none")
    for (text,) in ranks.run(_forge, ranks.run(_alone)):
        assert "reconfigure: " in text
        assert "cannot be reached: a peer claims to be this process, at another address" in text


def _disagree(handles: Sequence[str]) -> list[str]:
    """The three ranks disagree on the members in some way, three times. No group of some of them may form."""
    lists = {
        11: [[0, 1, 2], [0, 2, 1], [0, 1, 2]],
        12: [[0, 1, 2], [0, 1], [0, 1, 2]],
        13: [[0, 1, 2], [0, 1, 2], None],
    }
    texts = []
    for uuid, given in lists.items():
        members = given[own_rank()]
        if members is not None:
            chosen = [handles[member] for member in members]
            texts.append(failure(lambda: torch_axon.reconfigure(uuid, chosen, timeout=SHORT)))  # noqa: B023
            texts.append(failure(lambda: dist.all_reduce(torch.ones(3))))
    _join(14, handles, [0, 1, 2])
    return texts


def test_members_with_other_handles_never_form_a_group(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(3, "none")
    for texts in ranks.run(_disagree, ranks.run(_alone)):
        for text in texts:
            differ = "were given different handles, or the same in another order" in text
            late = "Every member must call it with uuid" in text or "reports: barrier #1: Timed out" in text
            assert differ or late, text


def _wait_for_one(handles: Sequence[str], absent: int) -> str:
    others = [rank for rank in range(len(handles)) if rank != absent]
    _join(1, handles, others)  # so that they call it at the same time
    if own_rank() == absent:
        return ""
    return failure(lambda: torch_axon.reconfigure(2, handles, timeout=SHORT))


def test_members_that_do_not_come_are_named(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(3, "none")
    texts = ranks.run(_wait_for_one, ranks.run(_alone), 2)
    named = f"rank 2 (process {ranks.pids[2]} on "
    first = [text for text in texts[:2] if "Every member must call it with uuid 2 and the same handles" in text]
    assert first, texts
    assert all("Not called by: " in text and named in text for text in first), texts


def _leave_in_flight(handles: Sequence[str]) -> list[str]:
    """Rank 0 reconfigures while it waits for a receive, and the others while they wait for rank 0."""
    _join(1, handles, [0, 1, 2])
    if own_rank() == 0:
        work = dist.irecv(torch.zeros(3, device="cpu"), 1, tag=5)
        started = dist.all_reduce(torch.zeros(3, device="cpu"), async_op=True)
        _join(2, handles, [0, 1, 2])
        assert work is not None
        return [failure(work.wait), failure(started.wait)]
    text = failure(lambda: dist.recv(torch.zeros(3, device="cpu"), 0, tag=6))
    _join(2, handles, [0, 1, 2])
    return [text]


@on_cpu_and_gpu
def test_what_is_in_flight_ends_with_the_former_members(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(3, "none")
    for texts in ranks.run(_leave_in_flight, ranks.run(_alone)):
        assert all("the group is being reconfigured" in text for text in texts), texts


def _go_on_without(handles: Sequence[str], pids: Sequence[int], stopped: int) -> str:
    """A rank is stopped, and the others go on without it. Once it continues, it learns that, and joins again."""
    _join(1, handles, [0, 1, 2])
    others = [rank for rank in range(3) if rank != stopped]
    if own_rank() == stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
        text = failure(lambda: (dist.all_reduce(torch.ones(3)), dist.barrier()))
        _join(3, handles, [0, 1, 2])
        return text
    while _state(pids[stopped]) != "T":
        time.sleep(0.01)
    _join(2, handles, others)
    if own_rank() == others[0]:
        os.kill(pids[stopped], signal.SIGCONT)
    _join(3, handles, [0, 1, 2])
    return ""


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


def test_a_stopped_rank_is_excluded_and_joins_again(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(3, "none")
    texts = ranks.run(_go_on_without, ranks.run(_alone), ranks.pids, 1)
    assert "the group is being reconfigured" in texts[1]


def _in_a_subgroup() -> None:
    """Ranks of a smaller group keep their numbers in the job."""
    group = dist.new_group([1, 2, 3])
    handles: list[str] = [""] * 4
    own = torch_axon.reconfigure_handle(group) if dist.get_rank() > 0 else ""
    dist.all_gather_object(handles, own)
    if dist.get_rank() in (1, 3):
        torch_axon.reconfigure(7, [handles[3], handles[1]], group)
        assert dist.get_process_group_ranks(group) == [3, 1]
        data = torch.full((3,), dist.get_rank())
        dist.broadcast(data, 3, group)
        same_bits(data, torch.full((3,), 3))
    dist.barrier()


def test_a_subgroup_is_reconfigured_by_itself(fresh_ranks: Callable[..., RankPool]) -> None:
    fresh_ranks(4).run(_in_a_subgroup)


def _with_gloo() -> str:
    return failure(lambda: torch_axon.reconfigure_handle(dist.new_group(backend="cpu:gloo,cuda:axon")))


def test_groups_with_other_backends_are_refused(fresh_ranks: Callable[..., RankPool]) -> None:
    (text,) = fresh_ranks(1).run(_with_gloo)
    assert "argument 'group' has the backends axon, gloo; allowed: axon alone" in text


def _prepared(handles: Sequence[str]) -> list[str]:
    _join(1, handles, [0, 1])
    peer = 1 - dist.get_rank()
    direction = "send" if dist.get_rank() == 0 else "recv"
    texts = []
    for uuid, partitions in ((2, 1), (3, 2)):
        with torch_axon.prepare(torch.ones(8), direction, peer=peer, partitions=partitions) as request:
            request.start()
            if direction == "send":
                request.ready()
            request.wait()
            synchronize()
            _join(uuid, handles, [1, 0])
            _join(10 * uuid, handles, [0, 1])
            texts.append(failure(request.start))
    return texts


@on_cpu_and_gpu
def test_a_prepared_request_belongs_to_its_members(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(2, "none")
    for texts in ranks.run(_prepared, ranks.run(_alone)):
        assert all("reconfigured after prepare()" in text for text in texts), texts


def _again_and_again(handles: Sequence[str], cycles: int) -> dict[str, int]:
    """The three members change places; each third time one of them is left out. In the first half, pools fill up."""
    history = []
    for cycle in range(cycles):
        members = [(cycle + place) % 3 for place in range(3 if cycle % 3 else 2)]
        if own_rank() in members:
            torch_axon.reconfigure(cycle + 1, [handles[member] for member in members])
            data = torch.full((5000,), 1.0)
            dist.all_reduce(data)
            assert data[-1] == len(members)
        if cycle >= cycles // 2 and cycle % 20 == 19:
            history.append(_holdings())
    return growth(history, {}, min)


def _holdings() -> dict[str, int]:
    (rss,) = memory_kib("VmRSS")
    return {
        "KiB": rss,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "GPU bytes": torch.cuda.memory_allocated() if torch.get_default_device().type == "cuda" else 0,
    }


@on_cpu_and_gpu
def test_hundreds_of_reconfigurations_hold_nothing(fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(3, "none")
    handles = ranks.run(_alone, 60.0)
    for grown in ranks.run(_again_and_again, handles, 600, timeout_s=300):
        assert grown.pop("KiB") < 256  # over a sixth of the cycles
        assert not any(grown.values()), grown


def _captured(handles: Sequence[str]) -> str:
    """A rank dies during replays. The others capture again once the group has other members."""
    _join(1, handles, [0, 1, 2])
    graph, data = _capture_all_reduce()
    if own_rank() == 1:
        graph.replay()
        torch.cuda.synchronize()
        os.kill(os.getpid(), signal.SIGKILL)
    text = eventual_failure(lambda: (graph.replay(), dist.all_reduce(torch.ones(3))))
    _join(2, handles, [0, 2])
    del graph
    graph, data = _capture_all_reduce()
    for _ in range(3):
        data.fill_(own_rank() + 1)
        graph.replay()
        torch.cuda.synchronize()
        same_bits(data, torch.full((1000,), 4.0))
    assert backend_of(_world()).get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    return text


def _capture_all_reduce() -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    data = torch.full((1000,), float(own_rank() + 1))
    dist.all_reduce(data)  # makes what a capture cannot
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(data)
    return graph, data


@pytest.mark.parametrize("again", range(2))
@on("cuda")
def test_a_program_captures_again_with_other_members(again: int, fresh_ranks: Callable[..., RankPool]) -> None:
    ranks = fresh_ranks(3, "none")
    texts = ranks.run(_captured, ranks.run(_alone), dying=[1])
    assert "rank 1" in texts[0]
    assert "rank 1" in texts[2]
