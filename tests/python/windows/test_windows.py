"""Windows: puts, signals, arguments and failures; on the CPU and GPUs."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_axon
from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from support.reference import failure, same_bits, synchronize
from torch_axon.windows import Window

pytestmark = on_cpu_and_gpu

_HAS_C10D_WINDOWS = hasattr(dist, "_new_window")
_LONG = 3 << 20


def _values(seed: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(count) * 7 + seed * 1000).remainder(251).to(dtype)


def _exchange(count: int, dtype: torch.dtype) -> None:
    """Every rank has a part for each other one in its tensor, and writes into its own part of theirs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.zeros(size * count, dtype=dtype)
    window = torch_axon.new_window(tensor)
    for step in range(3):
        works = [
            window.put(_values(step + rank, count, dtype), other, rank * count, async_op=other % 2 == 0)
            for other in range(size)
        ]
        signals = [window.signal(other, async_op=step == 1) for other in range(size)]
        for other in range(size):
            window.wait_signal(other)
        synchronize()
        for other in range(size):
            same_bits(tensor[other * count : (other + 1) * count], _values(step + other, count, dtype))
        for work in works + signals:
            assert work.wait()
        dist.barrier()  # the next puts change the tensor
    window.tensor_deregister()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_puts_are_there_after_the_signal_that_follows_them(ranks: RankPool, dtype: torch.dtype) -> None:
    for count in (1, 5, 1000, 100_003):
        ranks.run(_exchange, count, dtype)


def test_long_puts(two_ranks: RankPool) -> None:
    two_ranks.run(_exchange, _LONG, torch.float32)


def _one_sided() -> None:
    """Rank 1 calls nothing while rank 0 writes."""
    window = torch_axon.new_window(torch.zeros(10, dtype=torch.int64))
    if dist.get_rank() == 0:
        for index in range(10):
            window.put(torch.tensor([index + 1]), 1, index)
    dist.barrier()
    if dist.get_rank() == 1:
        assert window.map_remote_tensor(1).tolist() == list(range(1, 11))


def test_the_owner_makes_no_call(two_ranks: RankPool) -> None:
    two_ranks.run(_one_sided)


def _counted() -> None:
    """Each wait takes one signal; those of other windows and other ranks do not count."""
    rank, size = dist.get_rank(), dist.get_world_size()
    first, second = torch_axon.new_window(torch.zeros(1)), torch_axon.new_window(torch.zeros(1))
    following, preceding = (rank + 1) % size, (rank - 1) % size
    for _ in range(5):
        first.signal(following)
    second.signal(following)
    for _ in range(5):
        first.wait_signal(preceding)
    second.wait_signal(preceding)
    for window, other in ((first, preceding), (second, preceding), (first, following)):
        if other == preceding or size > 2:
            text = failure(lambda window=window, other=other: window.wait_signal(other, timeout=timedelta(seconds=0.3)))
            assert f"wait for a signal of rank {other}, of a window: no signal has arrived in time" in text
    dist.barrier()


def test_each_wait_takes_one_signal(ranks: RankPool) -> None:
    ranks.run(_counted)


def _waits_asynchronously() -> None:
    rank = dist.get_rank()
    window = torch_axon.new_window(torch.zeros(3))
    if rank == 0:
        works = [window.wait_signal(1, async_op=True) for _ in range(3)]
        assert not works[0].is_completed()
        dist.barrier()
        for work in works:
            work.wait(timedelta(seconds=30))
        late = window.wait_signal(1, async_op=True, timeout=timedelta(seconds=0.2))
        assert "no signal has arrived in time" in failure(late.wait)
        assert "no signal has arrived in time" in failure(lambda: late.get_future().wait())
    else:
        dist.barrier()
        for _ in range(3):
            window.signal(0, async_op=True)
    dist.barrier()


def test_works_of_waits_complete_in_turn(two_ranks: RankPool) -> None:
    two_ranks.run(_waits_asynchronously)


def _signals_twice_after_a_long_put() -> None:
    """Neither of the two signals overtakes the put."""
    rank, count = dist.get_rank(), 24 << 20
    tensor = torch.zeros(count)
    window = torch_axon.new_window(tensor)
    if rank == 0:
        works = [window.put(torch.ones(count), 1, async_op=True)]
        works += [window.signal(1, async_op=True), window.signal(1, async_op=True)]
        for work in works:
            work.wait()
    else:
        window.wait_signal(0)
        synchronize()
        assert tensor[-1].item() == 1.0
        window.wait_signal(0)
    window.tensor_deregister()


def test_no_signal_overtakes_a_put(two_ranks: RankPool) -> None:
    two_ranks.run(_signals_twice_after_a_long_put)


def _waits_again_in_callbacks() -> None:
    """The callback of a wait begins the next wait."""
    rank, count = dist.get_rank(), 50
    window = torch_axon.new_window(torch.zeros(1))
    arrived = threading.Semaphore(0)

    def wait_again(future: torch.futures.Future[object]) -> None:
        future.wait()
        arrived.release()
        window.wait_signal(1, async_op=True).get_future().add_done_callback(wait_again)

    if rank == 0:
        window.wait_signal(1, async_op=True).get_future().add_done_callback(wait_again)
        dist.barrier()
        assert all(arrived.acquire(timeout=30) for _ in range(count))
    else:
        for _ in range(count):
            window.signal(0, async_op=True)
        dist.barrier()
        window.signal(0)
    dist.barrier()


def test_callbacks_wait_for_the_next_signal(two_ranks: RankPool) -> None:
    two_ranks.run(_waits_again_in_callbacks)


def _is_impatient() -> None:
    rank = dist.get_rank()
    window = torch_axon.new_window(torch.zeros(1))
    if rank == 0:
        assert "in time" in failure(lambda: window.wait_signal(1, timeout=timedelta(microseconds=1)))
    dist.barrier()
    if rank == 1:
        window.signal(0)
    else:
        window.wait_signal(1)
    dist.barrier()


def test_a_rank_that_is_late_is_not_lost(two_ranks: RankPool) -> None:
    two_ranks.run(_is_impatient)


def _drops_a_window_in_a_cycle() -> None:
    class Holder:
        pass

    holder: Any = Holder()
    holder.itself = holder
    holder.window = torch_axon.new_window(torch.zeros(1))
    work = holder.window.wait_signal(1 - dist.get_rank(), async_op=True)
    dist.barrier()
    del holder
    gc.collect()
    text = failure(lambda: work.wait(timedelta(seconds=20)))
    assert "wait for a signal of rank" in text
    dist.barrier()


def test_waits_end_with_a_window_that_is_collected(two_ranks: RankPool) -> None:
    two_ranks.run(_drops_a_window_in_a_cycle)


def _registers_again() -> None:
    rank = dist.get_rank()
    window = torch_axon.new_window()
    data = torch.full((4,), 1.0)
    with pytest.raises(ValueError, match="the window has no tensor; allowed: after tensor_register"):
        window.put(data, 1 - rank)
    with pytest.raises(ValueError, match="the window has no tensor"):
        window.tensor_deregister()
    for count in (4, 8):
        tensor = torch.zeros(count)
        window.tensor_register(tensor)
        with pytest.raises(ValueError, match="the window has a tensor"):
            window.tensor_register(tensor)
        window.put(data, 1 - rank, count - 4)
        dist.barrier()
        synchronize()
        assert tensor.tolist() == [0.0] * (count - 4) + [1.0] * 4
        window.tensor_deregister()


def test_tensors_are_registered_in_turn(two_ranks: RankPool) -> None:
    two_ranks.run(_registers_again)


def _mapped() -> None:
    rank = dist.get_rank()
    window = torch_axon.new_window(torch_axon.Runtime.empty(3, 4, dtype=torch.bfloat16))
    theirs = window.map_remote_tensor(1 - rank)
    assert (theirs.shape, theirs.dtype) == ((3, 4), torch.bfloat16)
    theirs[1] = rank + 1
    window.signal(1 - rank)
    window.wait_signal(1 - rank)
    assert window.map_remote_tensor(rank)[:, 0].tolist() == [0, 2 - rank, 0]
    with pytest.raises(dist.DistBackendError, match=f"rank {1 - rank} can still touch the tensor"):
        _deregister_within(window, 0.3)
    dist.barrier()
    del theirs
    gc.collect()
    window._region.close(30)
    dist.barrier()


def _deregister_within(window: Window, seconds: float) -> None:
    window._limit = lambda _: seconds  # type: ignore[method-assign]
    window.tensor_deregister()


def test_ranks_of_a_host_map_memory_that_was_made_for_it(two_ranks: RankPool) -> None:
    two_ranks.run(_mapped)


def _arguments() -> None:
    rank = dist.get_rank()
    window = torch_axon.new_window(torch.zeros(8 if rank == 0 else 5, dtype=torch.float32))
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: window.put(torch.zeros(3), 1, 3), ValueError, "elements 3 to 6; allowed: within the 5 elements there"),
        (lambda: window.put(torch.zeros(3), 0, -1), ValueError, "elements -1 to 2"),
        (lambda: window.put(torch.zeros(3, dtype=torch.int8), 0), ValueError, "torch.int8; allowed: torch.float32"),
        (lambda: window.put(torch.zeros(4, 2)[:, 0], 0), ValueError, "contiguous"),
        (lambda: window.put([1.0], 0), TypeError, "tensor is of type list"),  # type: ignore[arg-type]
        (lambda: window.put(torch.zeros(1), 2), ValueError, "put to rank 2: rank is 2; allowed: 0 to 1"),
        (lambda: window.signal(-1), ValueError, "signal: rank is -1"),
        (lambda: window.wait_signal(7), ValueError, "wait_signal: rank is 7"),
        (lambda: window.signal(0, timeout=timedelta(seconds=-1)), ValueError, "timeout"),
        (
            lambda: window.map_remote_tensor(1 - rank),
            ValueError,
            "cannot be mapped .* allowed: tensors of Runtime",
        ),
        (lambda: window.map_remote_tensor(2), ValueError, "rank is 2; allowed: 0 to 1"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()
    with pytest.raises(TypeError, match="tensor is of type int"):
        torch_axon.new_window(None).tensor_register(3)  # type: ignore[arg-type]
    dist.barrier()


def test_bad_arguments_are_named(two_ranks: RankPool) -> None:
    two_ranks.run(_arguments)


def _dies_while_others_wait() -> str:
    window = torch_axon.new_window(torch.zeros(1))
    if dist.get_rank() == 1:
        window.signal(0)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    if dist.get_rank() == 0:
        window.wait_signal(1)  # it came before the end
        began = time.monotonic()
        text = failure(lambda: window.wait_signal(1))
        assert time.monotonic() < began + 30  # the group's timeout is 60
        assert "put to rank 1, of a window" in failure(lambda: window.put(torch.zeros(1), 1))
        return text
    return failure(lambda: window.wait_signal(1))


def test_the_death_of_a_rank_ends_waits_for_it(fresh_ranks: Callable[..., RankPool]) -> None:
    texts = fresh_ranks(3).run(_dies_while_others_wait, dying=[1])
    for rank in (0, 2):
        assert "wait for a signal of rank 1, of a window" in str(texts[rank])


def _leaves_nothing() -> None:
    for _ in range(3):
        window = torch_axon.new_window(torch.zeros(1000))
        window.put(torch.ones(1), 1 - dist.get_rank())
        dist.barrier()
        del window
    gc.collect()
    until = time.monotonic() + 20
    while names := [thread.name for thread in threading.enumerate() if "window" in thread.name]:
        assert time.monotonic() < until, names
        time.sleep(0.05)


def test_a_window_that_is_dropped_ends_its_threads(two_ranks: RankPool) -> None:
    two_ranks.run(_leaves_nothing)


def _in_c10d() -> None:
    rank = dist.get_rank()
    assert dist._supports_window()
    tensor = torch.zeros(6)
    window = dist._new_window(tensor)
    assert not isinstance(window, Window)
    window.put(torch.full((2,), rank + 1.0), 1 - rank, 2 * rank, False)
    window.signal(1 - rank, True).wait()
    window.wait_signal(1 - rank, False)
    synchronize()
    expected = [0.0] * 6
    expected[2 * (1 - rank) : 2 * (1 - rank) + 2] = [2.0 - rank] * 2
    assert tensor.tolist() == expected
    assert window.map_remote_tensor(rank).data_ptr() == tensor.data_ptr()
    assert window.get_attr(1 - rank).access_type.name == "UNIFIED"
    options = torch._C._distributed_c10d.WaitSignalOptions()
    options.timeout = timedelta(seconds=0.2)
    assert "no signal has arrived in time" in failure(lambda: window.wait_signal(1 - rank, False, options))
    with pytest.raises(ValueError, match="allowed: within the 6 elements there"):
        window.put(torch.zeros(2), 0, 5, False)
    window.tensor_deregister()
    window.tensor_register(torch.zeros(2))
    dist.barrier()


@pytest.mark.skipif(not _HAS_C10D_WINDOWS, reason="c10d has windows since torch 2.14")
def test_c10d_has_the_same_windows(two_ranks: RankPool) -> None:
    two_ranks.run(_in_c10d)
