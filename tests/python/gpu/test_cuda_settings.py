"""Settings of the driver and of torch's allocator under which all results must stay correct."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.devices import needs_two_gpus, on
from support.gpu import backend_of, exercise_all, meet
from support.pool import BACKEND, RankPool, own_rank
from support.reference import case, failure, same_bits

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@on("launch_blocking")
def test_operations_where_every_launch_blocks(ranks: RankPool) -> None:
    ranks.run(exercise_all, 8, 1 << 20)


@on("eager_loading")
def test_operations_where_every_kernel_is_loaded_at_once(ranks: RankPool) -> None:
    ranks.run(exercise_all, 8, 1 << 20)


def _on_the_stream_of_each_thread() -> None:
    cuda_stream_per_thread = 2
    data = torch.ones(10)
    with torch.cuda.stream(torch.cuda.ExternalStream(cuda_stream_per_thread)):
        message = failure(lambda: dist.all_reduce(data))
    assert "the current stream is cudaStreamPerThread" in message
    dist.all_reduce(data)
    same_bits(data, torch.full((10,), float(dist.get_world_size())))


@on("cuda", "staged")
def test_a_stream_that_is_another_one_in_every_thread_is_refused(two_ranks: RankPool) -> None:
    two_ranks.run(_on_the_stream_of_each_thread)


def _with_expandable_segments(folder: str) -> None:
    """Uses tensors of the allocator's other mode, and frees and allocates its memory in between."""
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    dist.init_process_group(BACKEND, init_method=f"file://{folder}/store", rank=own_rank(), world_size=2)
    for size in (1, 1 << 10, 1 << 20, 30 << 20):
        with case(size=size):
            data = torch.full((size,), own_rank() + 1)
            dist.all_reduce(data)
            same_bits(data, torch.full((size,), 3))
        del data
        torch.cuda.empty_cache()
    dist.destroy_process_group()


def _see_one_gpu(folder: str) -> None:
    """Each rank sees its own GPU as GPU 0, as under schedulers that give each task one."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(own_rank())
    dist.init_process_group(BACKEND, init_method=f"file://{folder}/store", rank=own_rank(), world_size=2)
    data = torch.full((1 << 20,), own_rank() + 1, device="cuda")
    dist.all_reduce(data)
    same_bits(data, torch.full((1 << 20,), 3, device="cuda"))
    path = backend_of().path_to(1 - own_rank())
    assert path["kernels"], path
    dist.destroy_process_group()


@pytest.mark.gpu
@needs_two_gpus
def test_ranks_that_see_one_gpu_each_use_nvlink(fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_see_one_gpu, str(tmp_path))


@on("cuda")
def test_tensors_in_expandable_segments(fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_with_expandable_segments, str(tmp_path))


def _with_kernels(folder: str, kernels: dict[int, str]) -> str:
    """Runs every operation with the AXON_ALGO of this rank, and returns what the first one raises."""
    os.environ["AXON_ALGO"] = kernels[own_rank()]
    dist.init_process_group(BACKEND, init_method=f"file://{folder}/store", rank=own_rank(), world_size=2)
    message = ""
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        message = str(error)
    else:
        exercise_all(8, 4 << 10, 64 << 10, 4 << 20, 48 << 20)
        used = {row["operation"]: row["kernel"] for row in backend_of().selected(4 << 10)}
        named = dict(choice.split("=") for choice in kernels[own_rank()].split(";"))
        assert {name: used[name] for name in named} == named
    dist.destroy_process_group()
    return message


@on("cuda")
@pytest.mark.parametrize(
    "choices",
    [
        "all_reduce=ll_one_shot;all_gather=ll",
        "all_reduce=ll_two_shot",
        ";".join(f"{name}=ll128" for name in (*_COLLECTIVES, "send/recv")),
        ";".join(f"{name}=zero_copy" for name in (*_COLLECTIVES, "send/recv")),
    ],
)
def test_every_kernel_that_a_setting_may_name_gives_the_same_results(fresh_ranks, choices: str, tmp_path: Path) -> None:
    messages = fresh_ranks(2, meeting="none").run(_with_kernels, str(tmp_path), {0: choices, 1: choices})
    assert messages == ["", ""]


@on("cuda")
def test_ranks_that_name_different_kernels_are_told(fresh_ranks, tmp_path: Path) -> None:
    kernels = {0: "all_reduce=ll128", 1: "all_reduce=zero_copy"}
    for message in fresh_ranks(2, meeting="none").run(_with_kernels, str(tmp_path), kernels):
        assert "AXON_ALGO names other kernels" in message


def _bound_to_a_device(folder: str) -> None:
    """device_id= names the GPU; the group is for CUDA tensors alone, so objects and barriers use it too."""
    gpu = torch.get_default_device()
    dist.init_process_group(
        f"cuda:{BACKEND}",
        init_method=f"file://{folder}/store",
        rank=own_rank(),
        world_size=2,
        device_id=gpu,
        timeout=timedelta(seconds=30),
    )
    dist.barrier()
    gathered: list[object] = [None, None]
    dist.all_gather_object(gathered, {"rank": own_rank(), "text": "x" * 5000 * own_rank()})
    assert [len(one["text"]) for one in gathered] == [0, 5000]  # type: ignore[index]
    objects = [[1, 2], "three"] if own_rank() == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0, device=gpu)
    assert objects == [[1, 2], "three"]
    half = dist.new_group()
    data = torch.ones(1000)
    dist.all_reduce(data, group=half)
    same_bits(data, torch.full((1000,), 2.0))
    dist.destroy_process_group()


@on("cuda", "staged")
def test_a_group_for_one_device_alone(fresh_ranks, tmp_path: Path) -> None:
    fresh_ranks(2, meeting="none").run(_bound_to_a_device, str(tmp_path))


def _captured() -> None:
    data = torch.ones(10)
    dist.all_reduce(data)
    meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(data)
    for _ in range(3):
        data.fill_(1.0)
        graph.replay()
        same_bits(data, torch.full((10,), float(dist.get_world_size())))


@on("staged")
def test_a_way_through_the_host_can_be_captured(two_ranks: RankPool) -> None:
    two_ranks.run(_captured)
