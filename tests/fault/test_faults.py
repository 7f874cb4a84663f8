"""What goes wrong with a rank, when, and in what: the others raise in time, name it, and form another group.

Each case strikes the last rank, the victim, before it calls an operation, inside of it or after it. The survivors are
the same two processes in all cases; what all that leaves behind in them is measured by the last test. Faults of links,
and those called remote, strike a victim on another host. On GPUs a step includes the wait for its stream, which goes on
whatever has happened; the call after it raises.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from devices import on
from hosts import Hosts, move_to, two_hosts
from pool import BACKEND, RankPool, own_rank
from processes import leftovers
from reference import same_bits, synchronize
from torch import nn

pytestmark = [
    pytest.mark.skipif(BACKEND != "axon", reason="what axon promises"),
    on("cpu", "cuda", scope="module"),
]

# The kernel tells of an end at once, a rank that aborts tells the others; this is for a loaded machine.
NOTICE_S = 5.0
# Of the group, where a rank stands still or is cut off.
TIMEOUT_S = 1.0
NUM_SURVIVORS = 2
FORMING_TIMEOUT_S = 30.0
# Pools fill in the first rounds; then each known peer leaves its card behind.
MOST_KIB, MOST_KIB_A_ROUND = 4096, 8

Step = Callable[[], object]


def _send_recv() -> Step:
    """The victim sends to all others what is too large to leave before it is received."""
    large, victim = torch.ones(1 << 18), dist.get_world_size() - 1
    if dist.get_rank() != victim:
        return lambda: dist.recv(large, victim)

    def send() -> None:
        for work in [dist.isend(large, rank) for rank in range(victim)]:
            work.wait()

    return send


def _train(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 32)).sum().backward()
        optimizer.step()

    return step


def _fsdp() -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    return _train(fully_shard(nn.Linear(32, 32), mesh=mesh))


# By name, what makes the step of a rank.
_OPERATIONS: dict[str, Callable[[], Step]] = {
    "all_reduce": lambda: lambda: dist.all_reduce(torch.ones(1000)),
    "all_gather": lambda: lambda: dist.all_gather([torch.ones(9) for _ in range(dist.get_world_size())], torch.ones(9)),
    "send_recv": _send_recv,
    "barrier": lambda: dist.barrier,
    "ddp_step": lambda: _train(nn.parallel.DistributedDataParallel(nn.Linear(32, 32))),
    "fsdp_step": _fsdp,
}
# And what an error may call it: the first thing that a step waits for.
_NAMES = {
    "send_recv": "receive|send",
    "ddp_step": "all_reduce|broadcast",
    "fsdp_step": "all_gather|reduce_scatter|all_reduce",
}
_MOMENTS = ("before", "inside", "after")


@dataclass(frozen=True)
class Fault:
    """What happens to the victim: a signal, or something that the test does to the link to it."""

    end: str  # of the victim's: "ends", "stands still" or "goes on"
    signal: int = 0
    link: Callable[[Hosts], None] | None = None
    is_remote: bool = False

    @property
    def crosses_hosts(self) -> bool:
        return self.is_remote or self.link is not None

    @property
    def is_silent(self) -> bool:
        """Nobody tells the survivors."""
        return self.end == "stands still" or self.link is not None

    @property
    def takes_long(self) -> bool:
        return self.is_silent or self.crosses_hosts


_FAULTS = {
    "kill": Fault("ends", signal.SIGKILL),
    "stop": Fault("stands still", signal.SIGSTOP),
    "exception": Fault("ends", signal.SIGUSR2),
    "interrupt": Fault("goes on", signal.SIGINT),
    "remote_kill": Fault("ends", signal.SIGKILL, is_remote=True),
    "remote_stop": Fault("stands still", signal.SIGSTOP, is_remote=True),
    "cut": Fault("goes on", link=Hosts.cut),
    "silence": Fault("goes on", link=Hosts.silence),
}


@dataclass(frozen=True)
class Case:
    """`folder`: the store, and files by which ranks and test tell each other how far they are."""

    fault: str
    moment: str
    operation: str
    folder: str

    @property
    def kind(self) -> Fault:
        return _FAULTS[self.fault]

    @property
    def timeout_s(self) -> float:
        return TIMEOUT_S if self.kind.is_silent else FORMING_TIMEOUT_S

    @property
    def limit_s(self) -> float:
        """In which survivors have to raise."""
        return TIMEOUT_S + 1 if self.kind.is_silent else NOTICE_S

    def leave(self) -> None:
        """Both ways out are tried."""
        dist.destroy_process_group() if self.moment == "after" else dist.distributed_c10d._abort_process_group()

    def tell(self, what: str) -> None:
        Path(self.folder, what).touch()

    def hear(self, *what: str) -> None:
        deadline = time.monotonic() + FORMING_TIMEOUT_S
        while not all(Path(self.folder, each).exists() for each in what):
            assert time.monotonic() < deadline, f"nobody has told {what}"
            time.sleep(0.001)


@dataclass(frozen=True)
class Place:
    """Of a pool's ranks in the group: from `first` on, of `size`."""

    first: int
    size: int

    def join(self, store: str) -> None:
        method, rank = f"file://{store}", self.first + own_rank()
        timeout = timedelta(seconds=FORMING_TIMEOUT_S)
        dist.init_process_group(BACKEND, init_method=method, rank=rank, world_size=self.size, timeout=timeout)


@contextmanager
def _once_at_rest(action: Callable[[], None]) -> Iterator[None]:
    """Calls `action`, beside this thread, as soon as it has come to rest in a call."""
    watched, is_over = threading.get_ident(), threading.Event()

    def watch() -> None:
        latest, num_equal = None, 0
        while num_equal < 10 and not is_over.wait(0.005):
            frame = sys._current_frames()[watched]
            now = (id(frame), frame.f_lasti, frame.f_code)
            num_equal = num_equal + 1 if now == latest else 0
            latest = now
        if not is_over.is_set():
            action()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _strike(case: Case) -> None:
    case.tell("struck")
    if case.kind.link:
        case.hear("link struck")
    else:
        os.kill(os.getpid(), case.kind.signal)


def _suffer(case: Case, step: Step) -> str:
    """The victim's part; what it is told if it goes on."""
    if case.moment == "inside":
        with _once_at_rest(lambda: _strike(case)):
            return _fail(step)[0]
    if case.moment == "after":
        step()
    case.hear(*(f"rank {rank}" for rank in range(dist.get_rank())))  # is inside, or through
    _strike(case)
    return _fail(step)[0]


def _raise_lookup_error(*_: object) -> None:
    raise LookupError("the program's own error")


def _be_victim(case: Case, place: Place) -> str:
    place.join(f"{case.folder}/store")
    step = _prepare(case)
    signal.signal(signal.SIGUSR2, _raise_lookup_error)
    try:
        return _suffer(case, step)
    except KeyboardInterrupt:
        dist.distributed_c10d._abort_process_group()
        return "interrupted"
    except LookupError:
        dist.destroy_process_group()
        os._exit(1)


def _be_survivor(case: Case, place: Place) -> tuple[str, float]:
    """What was raised, and how long that took."""
    place.join(f"{case.folder}/store")
    step, own_name = _prepare(case), f"rank {dist.get_rank()}"
    if case.moment == "before":
        with _once_at_rest(lambda: case.tell(own_name)):
            return _fail(step)
    if case.moment == "inside":
        case.hear("link struck" if case.kind.link else "struck")
    else:
        step()
        case.tell(own_name)
    return _fail(step)


def _prepare(case: Case) -> Step:
    start = _OPERATIONS[case.operation]()

    def step() -> None:
        start()
        synchronize()

    step()
    dist.barrier()
    group = dist.distributed_c10d._get_default_group()
    group._get_backend(torch.get_default_device())._set_default_timeout(timedelta(seconds=case.timeout_s))
    return step


def _fail(step: Step) -> tuple[str, float]:
    """A first call may have got all that it needs from the victim, and a GPU tells only the next one."""
    started = time.monotonic()
    for _ in range(4):
        try:
            step()
        except RuntimeError as error:
            return str(error), time.monotonic() - started
    raise AssertionError("nothing was raised")


def _regroup(case: Case, place: Place) -> float:
    """How long it took to leave the group that has failed."""
    started = time.monotonic()
    if dist.is_initialized():
        with suppress(RuntimeError):
            case.leave()
    seconds = time.monotonic() - started
    place.join(f"{case.folder}/again")
    data = torch.ones(1000)
    dist.all_reduce(data)
    same_bits(data, torch.full((1000,), float(place.size)))
    dist.destroy_process_group()
    return seconds


class Ranks:
    """Those that survive everything, and a victim that is made anew whenever it has not. Where there are two hosts, it
    has one of its own."""

    def __init__(self, device: str, hosts: Hosts | None = None) -> None:
        self._device = device
        self._hosts = hosts
        self._pools: dict[str, RankPool] = {}

    @property
    def survivors(self) -> RankPool:
        return self._pool("survivors", NUM_SURVIVORS, first=0)

    @property
    def victim(self) -> RankPool:
        return self._pool("victim", 1, first=NUM_SURVIVORS)

    def _pool(self, name: str, size: int, first: int) -> RankPool:
        if name not in self._pools or self._pools[name].broken:
            if name in self._pools:
                self._pools[name].close()
            self._pools[name] = RankPool(size, meeting="none", device=self._device, first_gpu=first)
            if self._hosts:
                self._pools[name].run(move_to, self._hosts.names[name == "victim"])
        return self._pools[name]

    def endure(self, case: Case) -> None:
        try:
            self._fail(case)
            self._regroup(case)
        except BaseException:
            for pool in self._pools.values():  # whatever they are in the middle of
                pool.broken = True
            raise

    def _fail(self, case: Case) -> None:
        end = case.kind.end
        culprit, victim = NUM_SURVIVORS, self.victim
        victim.start(_be_victim, case, Place(culprit, culprit + 1))
        self.survivors.start(_be_survivor, case, Place(0, culprit + 1))
        with self._link_struck(case):
            outcomes = self.survivors.finish()
            if end == "stands still":
                os.kill(victim.pids[0], signal.SIGKILL)
            victims = victim.finish(dying=[] if end == "goes on" else [0])
        for message, seconds in outcomes:
            assert f"rank {culprit}" in message
            assert seconds < case.limit_s, message
            assert ("Timed out" in message) <= case.kind.is_silent, message
            assert re.search(_NAMES.get(case.operation, case.operation), message), message
        assert not case.kind.link or re.search("rank [01]", victims[0])

    @contextmanager
    def _link_struck(self, case: Case) -> Iterator[None]:
        if self._hosts is None or case.kind.link is None:
            yield
            return
        case.hear("struck")
        case.kind.link(self._hosts)
        case.tell("link struck")
        try:
            yield
        finally:
            self._hosts.mend()

    def _regroup(self, case: Case) -> None:
        goes_on = case.kind.end == "goes on"
        size = NUM_SURVIVORS + goes_on
        if goes_on:
            self.victim.start(_regroup, case, Place(NUM_SURVIVORS, size))
        seconds = self.survivors.run(_regroup, case, Place(0, size))
        if goes_on:
            seconds += self.victim.finish()
        assert max(seconds) < NOTICE_S, "to leave took long"

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


@pytest.fixture(scope="module")
def ranks(device: str) -> Iterator[Ranks]:
    ranks = Ranks(device)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def ranks_of_two_hosts(device: str) -> Iterator[Ranks]:
    with two_hosts() as hosts:
        ranks = Ranks(device, hosts)
        yield ranks
        ranks.close()


@pytest.mark.parametrize("operation", _OPERATIONS)
@pytest.mark.parametrize("moment", _MOMENTS)
@pytest.mark.parametrize("fault", _FAULTS)
@pytest.mark.usefixtures("device")
def test_survivors_of_a_fault(fault: str, moment: str, operation: str, tmp_path: Path, request) -> None:
    case = Case(fault, moment, operation, str(tmp_path))
    if case.kind.takes_long and not request.config.getoption("--all-faults"):
        number = list(_OPERATIONS).index(operation)
        if number % len(_MOMENTS) != _MOMENTS.index(moment) or (case.kind.crosses_hosts and number % 2):
            pytest.skip("takes a timeout or two hosts: one moment an operation, unless --all-faults asks for all")
    request.getfixturevalue("ranks_of_two_hosts" if case.kind.crosses_hosts else "ranks").endure(case)


def _resources() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "abandoned files": len(leftovers()),
        "pieces of shared memory": sum("ucx_shm" in line for line in open("/proc/self/maps")),
        "KiB of memory": int(status["VmRSS"].split()[0]),
    }


def test_rounds_leave_nothing_behind(ranks: Ranks, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Of failure and regrouping, again and again in the same survivors. --fault-rounds says how often."""
    kinds = list(
        itertools.product(("kill", "exception", "interrupt"), _MOMENTS, ("all_reduce", "send_recv", "barrier"))
    )
    num_rounds: int = request.config.getoption("--fault-rounds")
    measured: list[list[dict[str, int]]] = []
    for number in range(num_rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        ranks.endure(Case(*kinds[number * 7 % len(kinds)], str(folder)))
        measured.append(ranks.survivors.run(_resources))
    for survivor in zip(*measured, strict=True):
        early, late = survivor[: num_rounds // 3], survivor[-num_rounds // 3 :]
        for name in ("descriptors", "threads", "abandoned files", "pieces of shared memory"):
            series = [each[name] for each in survivor]
            assert max(each[name] for each in late) <= max(each[name] for each in early), f"{name}: {series}"
        growth = late[-1]["KiB of memory"] - early[-1]["KiB of memory"]
        assert growth < MOST_KIB + MOST_KIB_A_ROUND * num_rounds
