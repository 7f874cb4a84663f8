"""TORCH_DIST_NAN_CHECK=1: a call refuses inputs that contain NaN, whatever the version of torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_axon
from support.devices import on_every_path
from support.pool import RankPool
from support.processes import environment
from support.reference import failure, failure_or_nothing
from torch_axon import _compat

_needs_torchs_check = pytest.mark.skipif(
    not hasattr(dist.distributed_c10d, "NanCheckHook"), reason="needs torch 2.14 or newer, which checks Gloo's calls"
)

Group = dist.ProcessGroup
Tensor = torch.Tensor


def _checked_group(**keywords: Any) -> Group:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TORCH_DIST_NAN_CHECK", "1")
        group = dist.new_group(**keywords)
    assert isinstance(group, Group)
    return group


def _bad() -> Tensor:
    return torch.tensor([1.0, torch.nan])


def _two() -> list[Tensor]:
    return [torch.ones(2), torch.ones(2)]


# The calls that rank 1 of 2 makes. Each one sends the tensor.
_CALLS: dict[str, Callable[[Group, Tensor], object]] = {
    "all_reduce": lambda group, bad: dist.all_reduce(bad, group=group),
    "reduce": lambda group, bad: dist.reduce(bad, 0, group=group),
    "broadcast": lambda group, bad: dist.broadcast(bad, 1, group=group),
    "all_gather": lambda group, bad: dist.all_gather(_two(), bad, group=group),
    "all_gather_into_tensor": lambda group, bad: dist.all_gather_into_tensor(torch.ones(4), bad, group=group),
    "gather": lambda group, bad: dist.gather(bad, dst=0, group=group),
    "scatter": lambda group, bad: dist.scatter(torch.ones(2), [bad, torch.ones(2)], 1, group=group),
    "reduce_scatter": lambda group, bad: dist.reduce_scatter(torch.ones(2), [bad, torch.ones(2)], group=group),
    "reduce_scatter_tensor": lambda group, bad: dist.reduce_scatter_tensor(torch.ones(1), bad, group=group),
    "all_to_all": lambda group, bad: dist.all_to_all(_two(), [bad, torch.ones(2)], group=group),
    "all_to_all_single": lambda group, bad: dist.all_to_all_single(torch.ones(2), bad, group=group),
    "send": lambda group, bad: dist.send(bad, 0, group=group),
}


def _refused_calls() -> dict[str, str]:
    """The other rank calls nothing meanwhile, so nothing has begun. Later calls work as before."""
    group = _checked_group()
    texts: dict[str, str] = {}
    if dist.get_rank() == 1:
        texts = {name: failure(lambda call=call: call(group, _bad())) for name, call in _CALLS.items()}
        texts["all_reduce, async"] = failure(lambda: dist.all_reduce(_bad(), group=group, async_op=True))
        texts["send, async"] = failure(lambda: dist.isend(_bad(), 0, group=group))
    data = torch.ones(3)
    dist.all_reduce(data, group=group)
    assert data.tolist() == [2, 2, 2]
    return texts


@on_every_path
def test_an_error_names_the_call_the_rank_and_the_tensor(two_ranks: RankPool) -> None:
    _, texts = two_ranks.run(_refused_calls)
    for name, text in texts.items():
        operation = (
            name.removesuffix(", async").removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single")
        )
        assert text.startswith(f"RuntimeError: {operation}: input 0 of rank 1 (float32[2]) contains NaN"), text


def _accepted() -> None:
    """What a rank only receives may hold anything, and so may the gaps of a tensor."""
    group = _checked_group()
    rank = dist.get_rank()
    nan = torch.full((2,), torch.nan)
    dist.broadcast(torch.ones(2) if rank == 0 else nan.clone(), 0, group=group)
    dist.scatter(nan.clone(), _two() if rank == 0 else None, 0, group=group)
    dist.all_gather([nan.clone(), nan.clone()], torch.ones(2), group=group)
    if rank == 0:
        dist.send(torch.ones(2), 1, group=group)
    else:
        dist.recv(nan.clone(), 0, group=group)
    dist.all_reduce(torch.ones(3, dtype=torch.int64), group=group)
    dist.all_reduce(torch.empty(0), group=group)
    dist.all_reduce(torch.tensor([1.0, torch.nan, 2.0, torch.nan])[::2], group=group)
    dist.barrier(group=group)


@on_every_path
def test_only_what_is_sent_is_checked(two_ranks: RankPool) -> None:
    two_ranks.run(_accepted)


_FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)


def _forms() -> dict[str, str]:
    group = _checked_group()
    dtypes = (torch.float16, torch.bfloat16, torch.float64, *_FLOAT8)
    forms = {str(dtype): _bad().to(dtype) for dtype in dtypes}
    forms["complex"] = torch.tensor([1.0, complex(0, torch.nan)])
    forms["with gaps"] = torch.tensor([1.0, 1.0, 1.0, 1.0, torch.nan])[::2]
    forms["sparse"] = torch.sparse_coo_tensor([[3]], [torch.nan], (5,))
    texts = {
        name: failure(lambda tensor=tensor: dist.broadcast(tensor, dist.get_rank(), group=group))
        for name, tensor in forms.items()
        if not tensor.is_sparse
    }
    return texts | {"sparse": failure(lambda: dist.all_reduce(forms["sparse"], group=group))}


@on_every_path
def test_all_forms_of_tensors_are_checked(two_ranks: RankPool) -> None:
    for texts in two_ranks.run(_forms):
        assert {name for name, text in texts.items() if "contains NaN" not in text} == set()


def _nan_of_a_sum() -> str:
    """The values are infinite, and their sum at one index is NaN."""
    group = _checked_group()
    tensor = torch.sparse_coo_tensor([[3, 3]], [torch.inf, -torch.inf], (5,))
    text = failure(lambda: dist.all_reduce(tensor, group=group))
    dist.barrier(group=group)
    return text


@on_every_path
def test_a_sparse_tensor_is_refused_before_its_parts_are_gathered(two_ranks: RankPool) -> None:
    for rank, text in enumerate(two_ranks.run(_nan_of_a_sum)):
        assert text.startswith(f"RuntimeError: all_reduce: input 0 of rank {rank} "), text


def _coalesce() -> str:
    group = _checked_group()

    def reduce_all() -> None:
        with dist.distributed_c10d._coalescing_manager(group, async_ops=True):
            for tensor in (torch.ones(2), _bad()):
                dist.all_reduce(tensor, group=group)

    text = failure(reduce_all)
    dist.barrier(group=group)
    return text


@on_every_path
def test_coalesced_calls_are_checked(two_ranks: RankPool) -> None:
    for rank, text in enumerate(two_ranks.run(_coalesce)):
        assert f"input 1 of rank {rank}" in text


def _leave_the_other_alone() -> str:
    """The other rank waits as if this one had not called."""
    group = _checked_group(timeout=timedelta(milliseconds=300))
    if dist.get_rank() == 1:
        failure(lambda: dist.all_reduce(_bad(), group=group))
        dist.barrier()
        return ""
    text = failure(lambda: dist.all_reduce(torch.ones(2), group=group))
    dist.barrier()
    return text


def test_other_ranks_wait_until_their_timeout(fresh_ranks: Callable[..., RankPool]) -> None:
    text, _ = fresh_ranks(2).run(_leave_the_other_alone)
    assert "Timed out after 300 ms. Not entered by: rank 1" in text


def _abort_for_a_nan() -> str:
    group = _checked_group()
    if dist.get_rank() == 0:
        return failure(lambda: dist.all_reduce(torch.ones(2), group=group))
    text = failure(lambda: dist.all_reduce(_bad(), group=group))
    group.abort()
    return text


def test_a_rank_that_aborts_ends_their_wait(fresh_ranks: Callable[..., RankPool]) -> None:
    text, own = fresh_ranks(2).run(_abort_for_a_nan)
    assert "abort" in text
    assert "contains NaN" in own


def _same_as_over_gloo() -> dict[str, list[bool]]:
    groups = [_checked_group(backend=backend) for backend in ("axon", "gloo")]
    refused = {
        name: ["NaN" in failure_or_nothing(lambda group=group, call=call: call(group, _bad())) for group in groups]
        for name, call in _CALLS.items()
        if dist.get_rank() == 1
    }
    dist.barrier()
    return refused


@_needs_torchs_check
def test_gloo_refuses_the_same_calls(fresh_ranks: Callable[..., RankPool]) -> None:
    _, refused = fresh_ranks(2).run(_same_as_over_gloo)
    assert refused == {name: [True, True] for name in _CALLS}


def _call_beside_gloo() -> list[str]:
    group = _checked_group(backend="cpu:gloo,cuda:axon")
    texts = [failure(lambda: dist.all_reduce(_bad(), group=group)) for _ in range(2)]
    dist.barrier()
    return texts


@_needs_torchs_check
def test_tensors_of_another_backend_in_the_group_are_checked(fresh_ranks: Callable[..., RankPool]) -> None:
    for texts in fresh_ranks(2).run(_call_beside_gloo):
        assert all("NaN" in text for text in texts)


def _train() -> str:
    group = _checked_group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1), process_group=group)
    text = failure((model(torch.ones(1, 2)).sum() * torch.nan).backward)
    dist.barrier(group=group)
    return text


def test_the_gradients_of_ddp_are_checked(fresh_ranks: Callable[..., RankPool]) -> None:
    for rank, text in enumerate(fresh_ranks(2).run(_train)):
        assert "all_reduce" in text
        assert f"input 0 of rank {rank} (float32[3])" in text


def _swap_ranks() -> str:
    """The ranks change places, and rank 0 is the root from then on: former rank 1."""
    group = _checked_group()
    handles: list[Any] = [None, None]
    dist.all_gather_object(handles, torch_axon.reconfigure_handle(group), group=group)
    torch_axon.reconfigure(7, handles[::-1], group)
    text = failure_or_nothing(lambda: dist.broadcast(_bad(), group=group, group_src=0)) if group.rank() == 0 else ""
    dist.broadcast(torch.ones(2) if group.rank() == 0 else _bad(), group=group, group_src=0)
    return text


def test_reconfigured_groups_know_their_new_ranks(fresh_ranks: Callable[..., RankPool]) -> None:
    former_0, former_1 = fresh_ranks(2).run(_swap_ranks)
    assert former_0 == ""
    assert "input 0 of rank 0" in former_1


def _shrink() -> str:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TORCH_DIST_NAN_CHECK", "1")
        group = dist.shrink_group([1], group=dist.new_group()) if dist.get_rank() == 0 else dist.new_group()
    return failure(lambda: dist.all_reduce(_bad(), group=group)) if dist.get_rank() == 0 else ""


def test_shrunk_groups_are_checked(fresh_ranks: Callable[..., RankPool]) -> None:
    text, _ = fresh_ranks(2).run(_shrink)
    assert "input 0 of rank 0" in text


def _split() -> str:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TORCH_DIST_NAN_CHECK", "1")
        group = dist.split_group(split_ranks=[[0, 1]])
    return failure(lambda: dist.all_reduce(_bad(), group=group))


@pytest.mark.skipif(_compat.is_before(torch.__version__, "2.15"), reason="before torch 2.15, splitting needs a GPU")
def test_split_groups_are_checked(fresh_ranks: Callable[..., RankPool]) -> None:
    for rank, text in enumerate(fresh_ranks(2).run(_split)):
        assert f"input 0 of rank {rank}" in text


_LAUNCHES_WITH_NAN = """
import torch
import torch.distributed as dist
import torch_axon

dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1)
data = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    dist.all_reduce(data)
graph.replay()
torch.cuda.synchronize()
print("passed without NaN", flush=True)
data[2] = torch.nan
graph.replay()
torch.cuda.synchronize()
"""


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")
def test_each_launch_of_a_graph_checks() -> None:
    """An assertion on the device is all that a launch can do, and it ends the process's use of CUDA."""
    ended = subprocess.run(
        [sys.executable, "-c", _LAUNCHES_WITH_NAN],
        env=environment() | {"TORCH_DIST_NAN_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == "passed without NaN\n", ended.stderr
    assert ended.returncode != 0
    assert "device-side assert" in ended.stderr
