"""GPU memory of groups and calls: contexts, slices, and no growth from call to call."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time

import torch
import torch.distributed as dist

from support.devices import on
from support.gpu import NAMES, exercise, meet
from support.pool import RankPool
from support.reference import finish
from torch_axon import all_gather_matmul, matmul_reduce_scatter

WARM_ROUNDS, ROUNDS = 30, 30


def _memory_of_groups() -> float:
    """Returns the KiB of this GPU that a further group takes."""
    data = torch.ones(10)
    dist.all_reduce(data)
    meet()
    before = torch.cuda.mem_get_info()[0]
    groups = [dist.new_group() for _ in range(20)]
    for group in groups:
        dist.all_reduce(data, group=group)
    meet()
    taken = before - torch.cuda.mem_get_info()[0]
    for group in groups:
        dist.destroy_process_group(group)
    return taken / 1024 / len(groups)


@on("cuda")
def test_further_groups_take_little_of_a_gpu(two_ranks: RankPool) -> None:
    two_ranks.run(_memory_of_groups)  # loads all that is loaded only once
    assert max(two_ranks.run(_memory_of_groups)) <= 1024


def _gpus_with_a_context() -> list[int]:
    """Returns the GPUs on which this process has a context, after its IPC cache threads have run."""
    data = torch.ones(1 << 20)
    for work in [dist.all_reduce(data, async_op=True) for _ in range(10)]:
        work.is_completed()
        work.wait()
    dist.all_reduce(data, group=dist.new_group())
    time.sleep(1.0)
    driver = ctypes.CDLL("libcuda.so.1")
    flags, is_active = ctypes.c_uint(), ctypes.c_int()
    found = []
    for gpu in range(torch.cuda.device_count()):
        assert driver.cuDevicePrimaryCtxGetState(gpu, ctypes.byref(flags), ctypes.byref(is_active)) == 0
        if is_active.value:
            found.append(gpu)
    return found


@on("cuda", "staged")
def test_a_process_has_a_context_on_its_own_gpu_alone(fresh_ranks) -> None:
    assert fresh_ranks(2).run(_gpus_with_a_context) == [[0], [1 % torch.cuda.device_count()]]


def _holdings() -> tuple[int, ...]:
    """Returns bytes free on this GPU, bytes of torch's allocator, and descriptors and threads of this process."""
    meet()
    gc.collect()
    free = torch.cuda.mem_get_info()[0]
    return free, torch.cuda.memory_reserved(), len(os.listdir("/proc/self/fd")), threading.active_count()


def _grow_in_rounds() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Measures before and after many calls of every kind, on tensors that stay."""
    group = dist.group.WORLD
    assert group is not None
    calls = [exercise(name, num_bytes) for name in NAMES for num_bytes in (8, 100_000, 3 << 20, 24 << 20)]
    x, weight = torch.randn(2048, 4096).half(), torch.randn(4096, 4096).half()
    whole = torch.randn(2048 * dist.get_world_size(), 4096).half()

    def run(num_rounds: int) -> None:
        for _ in range(num_rounds):
            for call in calls:
                for asynchronous in (False, True):
                    finish(call.launch(group, asynchronous))
            all_gather_matmul(x, weight)
            matmul_reduce_scatter(whole, weight)
            torch.cuda.synchronize()  # torch's allocator takes more for results the further the host runs ahead

    run(WARM_ROUNDS)  # the ranks map each other's tensors meanwhile
    before = _holdings()
    run(ROUNDS)
    return before, _holdings()


@on("cuda", "staged")
def test_calls_hold_nothing_more_in_steady_state(two_ranks: RankPool) -> None:
    for before, after in two_ranks.run(_grow_in_rounds, timeout_s=100):
        assert after == before
