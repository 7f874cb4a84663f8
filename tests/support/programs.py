"""Programs that a rank runs until it ends in some way: python programs.py PROGRAM RANK SIZE STORE [ARGUMENT …]"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import torch_axon  # noqa: F401
from support.processes import state_of

KEPT: list[object] = []  # outlives the interpreter's main module


def join(timeout_s: float = 30) -> None:
    _, _, rank, size, store, *_ = sys.argv
    method = store if "://" in store else f"file://{store}"
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("axon", init_method=method, rank=int(rank), world_size=int(size), timeout=timeout)
    dist.all_reduce(torch.ones(1))


def ready() -> None:
    print("ready", flush=True)


def start_work() -> None:
    """Leaves a receive and a collective in flight that never complete."""
    peer = (dist.get_rank() + 1) % dist.get_world_size()
    KEPT.append(dist.irecv(torch.ones(100), peer, tag=99))
    if dist.get_rank() == 0:
        KEPT.append(dist.all_reduce(torch.ones(1 << 20), async_op=True))


def meets_a_lookalike() -> None:
    """Runs ranks on emulated hosts whose boot ids and namespaces have equal numbers: the files of the last argument."""
    libc, ms_bind = ctypes.CDLL(None, use_errno=True), 4096
    if libc.mount(sys.argv[-1].encode(), b"/proc/self/ns", None, ms_bind, None) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    join()
    ready()
    other = 1 - dist.get_rank()
    data = torch.ones(300_000)
    dist.all_reduce(data)
    assert data.eq(2).all()
    if dist.get_rank() == 0:
        dist.send(data, other)
    else:
        dist.recv(data, other)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    numbers = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "net", "ipc")]
    print(json.dumps({"numbers": numbers, "pid": os.getpid(), **backend.path_to(other)}))
    message = ""
    sys.stdout.flush()
    if dist.get_rank() == 1:
        os._exit(9)  # a signal of its own cannot kill the first process of a namespace
    try:
        dist.all_reduce(data)
    except RuntimeError as error:
        message = str(error)
    print(message.splitlines()[0])
    dist.destroy_process_group()


def falls_off_the_end() -> None:
    join()
    ready()


def destroys_and_ends() -> None:
    join()
    ready()
    dist.destroy_process_group()


def was_profiled() -> None:
    join()
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    data = torch.ones(1000, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for _ in range(2):
        with torch.profiler.profile(activities=activities):
            dist.all_reduce(data)
            torch.cuda.synchronize()
    ready()
    dist.destroy_process_group()


def exits_with_work_in_flight() -> None:
    join()
    start_work()
    ready()
    sys.exit(3)


def raises_with_work_in_flight() -> None:
    join()
    start_work()
    ready()
    raise LookupError("the program's own error")


def ends_with_work_and_groups_in_globals() -> None:
    join()
    KEPT.extend([dist.new_group(), dist.new_group([0])])
    start_work()
    cycle: list[object] = [dist.distributed_c10d._get_default_group()]
    cycle.append(cycle)
    KEPT.append(cycle)
    ready()


def communicates_in_atexit() -> None:
    join()
    data = torch.ones(1)

    def all_reduce_at_exit() -> None:
        dist.all_reduce(data)
        print(f"sum {int(data)}", flush=True)
        dist.destroy_process_group()

    atexit.register(all_reduce_at_exit)
    ready()


def ends_while_a_thread_waits() -> None:
    join()
    threading.Thread(target=lambda: dist.recv(torch.ones(1), 1 - dist.get_rank()), daemon=True).start()
    time.sleep(0.2)
    ready()


def ends_amid_completion_hooks() -> None:
    join()
    dist.distributed_c10d._get_default_group()._register_on_completion_hook(lambda call: time.sleep(0.01))
    for _ in range(100):
        dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 0:
        KEPT.append(dist.all_reduce(torch.ones(3), async_op=True))
    ready()


def has_futures_that_never_come() -> None:
    join()
    if dist.get_rank() == 0:
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        KEPT.append(future.then(lambda done: done.value()))
    ready()


def waits_for_ever() -> None:
    """Rank 0 waits for a message that no rank sends; the others sleep."""
    join(timeout_s=1000)
    ready()
    if dist.get_rank() == 0:
        dist.recv(torch.ones(1), 1)
    else:
        time.sleep(1000)


def waits_in_a_collective_for_ever() -> None:
    join(timeout_s=1000)
    ready()
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(1000)


def waits_in_a_monitored_barrier_for_ever() -> None:
    join(timeout_s=1000)
    ready()
    if dist.get_rank() == 0:
        dist.monitored_barrier(timeout=timedelta(seconds=1000))
    else:
        time.sleep(1000)


def waits_for_a_completion_hook_for_ever() -> None:
    """The hook of each rank does not return."""
    join(timeout_s=1000)
    group = dist.distributed_c10d._get_default_group()
    group._register_on_completion_hook(lambda call: threading.Event().wait())
    dist.all_reduce(torch.ones(1))
    ready()
    group._wait_for_pending_works()


def catches_the_interrupt_and_goes_on() -> None:
    """Ctrl-C ends the wait, not the process; the other groups still work."""
    join(timeout_s=1000)
    other = dist.new_group()
    ready()
    with contextlib.suppress(KeyboardInterrupt):
        dist.recv(torch.ones(1), 1 - dist.get_rank(), tag=3)
    data = torch.ones(1)
    dist.all_reduce(data, group=other)
    print(f"sum {int(data)}", flush=True)
    dist.destroy_process_group()


def ends_right_after_its_message() -> None:
    _, _, rank, size, store, *_ = sys.argv
    dist.init_process_group("axon", init_method=f"file://{store}", rank=int(rank), world_size=int(size))
    ready()
    named = Path(f"{store}.sender")
    if dist.get_rank() == 1:
        named.with_suffix(".new").write_text(str(os.getpid()))
        named.with_suffix(".new").rename(named)
        dist.send(torch.tensor([1, 2, 3]), 0)
        os._exit(0)
    while not named.exists() or state_of(named.read_text()) not in (None, "Z"):
        time.sleep(0.01)
    received = torch.zeros(3, dtype=torch.int64)
    dist.recv(received, 1)
    print(received.tolist())


def outlives_its_peer() -> None:
    """Rank 1 exits without notice; rank 0 then waits for it."""
    join()
    ready()
    if dist.get_rank() == 0:
        try:
            dist.recv(torch.ones(1), 1)
        except Exception as error:
            print(f"raised {error}", flush=True)


def ends_within_an_abort_hook() -> None:
    """Rank 1 exits without notice. Rank 0 ends while the hook that this has called still runs."""
    join()
    begun = threading.Event()

    def hook() -> None:
        begun.set()
        time.sleep(0.5)
        print("the hook has ended", flush=True)

    dist.group.WORLD.register_abort_hook(7, hook)
    ready()
    if dist.get_rank() == 0:
        pending = dist.irecv(torch.ones(1), 1)  # noqa: F841 - its end must not be awaited here
        assert begun.wait(20)


def has_children() -> None:
    """Forked children, which share all memory that the engine has mapped, start and exit; the group still works."""
    join()
    for code in (0, 7):
        child = os.fork()
        if child == 0:
            sys.exit(code)  # runs the exit handlers that it inherited
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == code
        dist.all_reduce(torch.ones(1 << 18))
    numbers = torch.utils.data.DataLoader(range(8), batch_size=4, num_workers=1)
    assert [batch.tolist() for batch in numbers] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    dist.all_reduce(torch.ones(1 << 18))
    ready()
    dist.destroy_process_group()


class _Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Returns eight elements; each runs `also` in the worker that loads it."""

    def __init__(self, also: Callable[[], object]) -> None:
        self._also = also

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self._also()
        return torch.full((1 << 15,), float(index))


def loads_with_workers() -> None:
    """Forked workers load batches while the group works, with a receive in flight all the time."""
    join()
    peer = 1 - dist.get_rank()
    received = torch.zeros(3)
    pending = dist.irecv(received, peer, tag=7)
    for _ in range(3):
        loader = torch.utils.data.DataLoader(_Samples(os.getpid), batch_size=2, num_workers=2)
        for number, batch in enumerate(loader):
            works = [dist.all_reduce(batch, async_op=True), dist.all_reduce(torch.ones(1), async_op=True)]
            for work in works:
                work.wait()
            assert batch.mean() == 4.0 * number + 1
    dist.send(torch.arange(3.0), peer, tag=7)
    pending.wait()
    assert received.tolist() == [0, 1, 2]
    ready()
    dist.destroy_process_group()


def communicates_in_workers() -> None:
    """Uses a group in forked workers, which is an error; prints the errors of a new operation and of the parent's."""
    join()
    pending = dist.irecv(torch.zeros(1), 1 - dist.get_rank(), tag=7)
    told: list[str] = []
    for also in (lambda: dist.all_reduce(torch.ones(1)), pending.wait):
        try:
            list(torch.utils.data.DataLoader(_Samples(also), batch_size=4, num_workers=1))
        except dist.DistError as error:
            told.append(str(error).replace("\n", " "))
    dist.all_reduce(torch.ones(1 << 18))
    dist.send(torch.ones(1), 1 - dist.get_rank(), tag=7)
    pending.wait()
    ready()
    print(*told, sep="\n")
    dist.destroy_process_group()


def computes_every_size() -> None:
    """Sums and sends tensors of several sizes and checks every element; prints which paths they took."""
    join()
    rank = dist.get_rank()
    for size in (1, 1000, 1 << 14, 1 << 18, 1 << 22):
        values = torch.arange(size, dtype=torch.float32)
        data = values * (rank + 1)
        dist.all_reduce(data)
        assert torch.equal(data, values * 3)
        dist.send(data, 1) if rank == 0 else dist.recv(data.zero_(), 0)
        assert torch.equal(data, values * 3)
    ready()
    path = dist.group.WORLD._get_backend(torch.device("cpu")).path_to(1 - rank)
    print(json.dumps({"lanes": [name for name, _ in path["lanes"]]}), flush=True)
    dist.destroy_process_group()


def is_traced() -> None:
    """Runs operations of several kinds on two groups; one of them times out."""
    os.environ["AXON_TRACE"] = sys.argv[5]
    join()
    dist.all_reduce(torch.ones(1 << 20))
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), 1, tag=5)
    else:
        dist.recv(torch.ones(3), 0, tag=5)
    group = dist.new_group(timeout=timedelta(seconds=1))
    dist.barrier(group)
    if dist.get_rank() == 0:
        with contextlib.suppress(dist.DistBackendError):
            dist.broadcast(torch.ones(2), group=group, group_src=1)
    ready()
    dist.barrier()
    dist.destroy_process_group()


def is_probed_and_fails() -> None:
    """Runs under the doctor: rank 0 fails while the other one waits for its message."""
    from torch_axon.doctor import probe

    def fail(*_: object) -> None:
        raise RuntimeError("rank 0 fails")

    rank = int(sys.argv[2])
    if rank == 0:
        probe._probe_host = fail
    ready()
    found = probe.probe(dist.FileStore(sys.argv[4], 2), rank, 2, None, timedelta(seconds=60))
    print(f"{found.failure}, {len(found.views) or 'no'} views", flush=True)


def is_traced_in_pairs() -> None:
    """Runs four ranks whose first axon groups are pairs: each pair has a rank 0."""
    os.environ["AXON_TRACE"] = sys.argv[5]
    rank = int(sys.argv[2])
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[4], 4), rank=rank, world_size=4)
    pairs = [dist.new_group(pair, backend="axon") for pair in ([0, 1], [2, 3])]
    dist.barrier(pairs[rank // 2])
    ready()
    dist.destroy_process_group()


def uses_large_tensors() -> None:
    """Runs operations that need the tensors of all ranks, with one GPU each. Prints how many ran zero-copy."""
    from support.gpu import exercise, num_zero_copy

    torch.cuda.set_device(int(sys.argv[2]) % torch.cuda.device_count())
    join()
    ready()
    with torch.device("cuda", torch.cuda.current_device()):
        for name in ("all_reduce", "reduce_scatter", "reduce", "all_gather", "all_gather_uneven", "all_to_all"):
            for num_bytes in (12 << 20, 48 << 20):
                work = exercise(name, num_bytes)
                for turn in range(20):
                    work.fill()
                    if started := work.launch(dist.group.WORLD, turn % 2 == 1):
                        started.wait()
                    assert work.count_wrong() == 0, (name, num_bytes, turn)
        print(f"{num_zero_copy()} directly", flush=True)
    dist.destroy_process_group()


def _joins_once_forked(rank: int) -> None:
    store = sys.argv[4]
    dist.init_process_group("axon", init_method=f"file://{store}.forked", rank=rank, world_size=2)
    data = torch.full((1 << 18,), float(rank + 1))
    dist.all_reduce(data)
    assert data.tolist() == [3.0] * (1 << 18)
    other = dist.new_group()
    dist.all_reduce(data, group=other)
    assert data[0] == 6
    dist.destroy_process_group()


def forks_ranks() -> None:
    """Twice, forks ranks as notebook launchers do, after a group of the process's own, of which a Work remains."""
    ready()
    for _ in range(2):
        join()
        KEPT.append(dist.all_reduce(torch.ones(1), async_op=True))
        dist.destroy_process_group()
        torch.multiprocessing.start_processes(_joins_once_forked, nprocs=2, start_method="fork")
    join()
    dist.destroy_process_group()


def forks_beside_a_group() -> None:
    """Prints the error of a child that forms its own group while its parent has one."""
    join()
    child = os.fork()
    if child == 0:
        dist.destroy_process_group()
        try:
            dist.init_process_group("axon", store=dist.HashStore(), rank=0, world_size=1)
        except RuntimeError as error:
            os.write(1, str(error).replace("\n", " ").encode())
        os._exit(0)
    os.waitpid(child, 0)
    dist.all_reduce(torch.ones(1 << 18))
    ready()
    dist.destroy_process_group()


def forks_while_a_message_waits() -> None:
    """The child destroys its parent's group, which holds a message that has not been received yet."""
    join()
    large, small = torch.arange(1 << 20), torch.ones(1)
    if dist.get_rank() == 0:
        sent = dist.isend(large, 1, tag=5)
        dist.send(small, 1, tag=6)
        sent.wait()
    else:
        dist.recv(small, 0, tag=6)  # so the RTS of the other one has arrived
        child = os.fork()
        if child == 0:
            dist.destroy_process_group()
            os._exit(0)
        os.waitpid(child, 0)
        received = torch.zeros_like(large)
        dist.recv(received, 0, tag=5)
        assert torch.equal(received, large)
    for _ in range(100):
        dist.all_reduce(small)
    ready()
    dist.destroy_process_group()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    program: Callable[[], None] = globals()[sys.argv[1]]
    program()
