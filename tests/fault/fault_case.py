"""A fault and how ranks react: it strikes the victim; the survivors raise, leave and form another group."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from fault_operations import ARE_FORMED_ANEW, Step, make_step

import torch_axon
from support.hosts import Hosts
from support.pool import BACKEND, own_rank
from support.reference import same_bits

# The promised limit on the victim's host. GPUs must finish enqueued work, and other ranks share this test's GPUs.
NOTICE_S = {"cpu": 1.0, "cuda": 5.0}
# The timeout of the group, for cases in which a rank is stopped or cut off.
TIMEOUT_S = 1.0
FORMING_TIMEOUT_S = 30.0

NUM_RANKS = 3
LAST = NUM_RANKS - 1

MOMENTS = ("before", "inside", "after")


@dataclass(frozen=True)
class Fault:
    """What happens to the victim: a signal, or an action of the test on the link to it.

    `then` is the signal that ends a stop, sent after the other ranks have left.
    """

    end: str  # the victim's end: "ends" or "goes on"
    signal: int = 0
    then: int = 0
    link: Callable[[Hosts], None] | None = None
    is_remote: bool = False

    @property
    def crosses_hosts(self) -> bool:
        return self.is_remote or self.link is not None

    @property
    def is_silent(self) -> bool:
        """Returns whether the survivors get no notice of the fault."""
        return self.then != 0 or self.link is not None

    @property
    def takes_long(self) -> bool:
        return self.is_silent or self.crosses_hosts


FAULTS = {
    "kill": Fault("ends", signal.SIGKILL),
    "stop": Fault("ends", signal.SIGSTOP, then=signal.SIGKILL),
    "pause": Fault("goes on", signal.SIGSTOP, then=signal.SIGCONT),
    "exception": Fault("ends", signal.SIGUSR2),
    "interrupt": Fault("goes on", signal.SIGINT),
    "remote_kill": Fault("ends", signal.SIGKILL, is_remote=True),
    "remote_stop": Fault("ends", signal.SIGSTOP, then=signal.SIGKILL, is_remote=True),
    "cut": Fault("goes on", link=Hosts.cut),
    "silence": Fault("goes on", link=Hosts.silence),
}


@dataclass(frozen=True)
class Moment:
    """A moment of a process. `starved_ns`: how long each thread of the call path has waited for a processor."""

    pid: int
    at: float
    starved_ns: dict[str, int]

    @staticmethod
    def now(pid: int = 0) -> Moment:
        """Returns the current moment of this process, or of process `pid`.

        The kernel counts the wait: it is the second number of schedstat, in ns
        (Documentation/scheduler/sched-stats.rst).
        """
        pid, at = pid or os.getpid(), time.monotonic()
        starved_ns = {}
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):  # the thread has ended
                if thread.name == str(pid) or thread.joinpath("comm").read_text() == "axon-progress\n":
                    starved_ns[thread.name] = int(thread.joinpath("schedstat").read_text().split()[1])
        return Moment(pid, at, starved_ns)


@dataclass(frozen=True)
class Stretch:
    """A stretch of a process's time."""

    started: Moment
    ended: Moment

    @staticmethod
    def since(started: Moment) -> Stretch:
        return Stretch(started, Moment.now())

    @property
    def seconds(self) -> float:
        return self.ended.at - self.started.at

    @property
    def starved_s(self) -> float:
        """Returns how long the most hindered thread was runnable without a processor."""
        before = self.started.starved_ns
        return max((ns - before.get(thread, 0) for thread, ns in self.ended.starved_ns.items()), default=0) / 1e9

    def is_within(self, limit_s: float, others_starved_s: float = 0.0) -> bool:
        """Returns whether the stretch is within the limit, without the time in which the machine starved its processes.

        Starvation of this process and of those it waited for counts, but at most `limit_s`: a stretch twice as long
        always fails.
        """
        return self.seconds - min(self.starved_s + others_starved_s, limit_s) < limit_s


@dataclass(frozen=True)
class Case:
    """`folder` holds the store, and files through which ranks and test report their progress and its moments."""

    fault: str
    moment: str
    operation: str
    folder: str
    victim: int = LAST

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(NUM_RANKS) if rank != self.victim)

    @property
    def kind(self) -> Fault:
        return FAULTS[self.fault]

    @property
    def is_silent(self) -> bool:
        """Returns whether the survivors get no notice of the fault."""
        leaves_former = self.fault == "interrupt" and self.moment != "inside" and self.operation in ARE_FORMED_ANEW
        return self.kind.is_silent or leaves_former

    @property
    def timeout_s(self) -> float:
        return TIMEOUT_S if self.is_silent else FORMING_TIMEOUT_S

    @property
    def strike(self) -> str:
        """Returns the name under which the strike is reported."""
        return "link struck" if self.kind.link else "struck"

    def limit_s(self, device: str) -> float:
        """Returns the limit within which survivors must raise."""
        return TIMEOUT_S + 1 if self.is_silent or self.kind.takes_long else NOTICE_S[device]

    def publish_handle(self) -> None:
        Path(self.folder, f"handle {dist.get_rank()}").write_text(torch_axon.reconfigure_handle())

    def handles_of(self, ranks: Sequence[int]) -> list[str]:
        """Returns the handles that these ranks published before the fault."""
        return [Path(self.folder, f"handle {rank}").read_text() for rank in ranks]

    def leave(self) -> None:
        """Leaves the group by one of the two ways, so that the cases test both."""
        dist.destroy_process_group() if self.moment == "after" else dist.distributed_c10d._abort_process_group()

    def tell(self, what: str) -> None:
        """Reports progress, with the moment of this process and of the ranks that have reported theirs."""
        ranks = [self.told(file.name)[0].pid for file in Path(self.folder).glob("rank ?")]
        new = Path(self.folder, f"{what}, half written")
        new.write_text(json.dumps([asdict(Moment.now(pid)) for pid in (os.getpid(), *ranks)]))
        new.rename(Path(self.folder, what))

    def is_told(self, what: str) -> bool:
        return Path(self.folder, what).exists()

    def hear(self, *what: str) -> None:
        deadline = time.monotonic() + FORMING_TIMEOUT_S
        while not all(map(self.is_told, what)):
            assert time.monotonic() < deadline, f"no process has reported all of {what}"
            time.sleep(0.001)

    def told(self, what: str) -> list[Moment]:
        """Returns the moments of a report; the first is that of the process that wrote it."""
        return [Moment(**moment) for moment in json.loads(Path(self.folder, what).read_text())]

    def since_strike(self, stretch: Stretch) -> Stretch:
        """Returns the part of a stretch after the strike."""
        own = [moment for moment in self.told(self.strike) if moment.pid == stretch.started.pid]
        return Stretch(max([stretch.started, *own], key=lambda moment: moment.at), stretch.ended)

    def victim_starved_s(self) -> float:
        """Returns the victim's starvation from the strike until it left, or 0 if it did not leave on its own."""
        return Stretch(self.told("struck")[0], self.told("left")[0]).starved_s if self.is_told("left") else 0.0


@dataclass(frozen=True)
class Place:
    """Maps the processes of a pool to their ranks in a group of `size`."""

    ranks: tuple[int, ...]
    size: int = NUM_RANKS

    def join(self, store: str) -> None:
        method, rank = f"file://{store}", self.ranks[own_rank()]
        timeout = timedelta(seconds=FORMING_TIMEOUT_S)
        dist.init_process_group(BACKEND, init_method=method, rank=rank, world_size=self.size, timeout=timeout)

    def group_after(self, case: Case) -> None:
        """Checks that a group of the remaining ranks works."""
        self.join(f"{case.folder}/again")
        data = torch.ones(1000)
        dist.all_reduce(data)
        same_bits(data, torch.full((1000,), float(self.size)))
        dist.destroy_process_group()


@contextmanager
def once_at_rest(action: Callable[[], None]) -> Iterator[None]:
    """Calls `action` in another thread as soon as this thread waits in a call."""
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


def strike(case: Case) -> None:
    """Strikes the victim: it signals itself, or lets the test strike its link."""
    case.tell("struck")
    if case.kind.link:
        case.hear("link struck")
    else:
        # A signal to the process may reach another thread, while this one goes on.
        signal.pthread_kill(threading.main_thread().ident, case.kind.signal)


def _suffer(case: Case, step: Step) -> str:
    """Runs the victim's part; returns the error that it gets if it goes on."""
    if case.moment == "inside":
        with once_at_rest(lambda: strike(case)):
            return _fail(case, step)
    if case.moment == "after":
        step()
    case.hear(*(f"rank {rank}" for rank in case.survivors))  # is inside the step, or has finished it
    strike(case)
    return _fail(case, step)


def _raise_lookup_error(*_: object) -> None:
    raise LookupError("the program's own error")


@contextmanager
def as_victim(case: Case) -> Iterator[None]:
    """Runs as a program that does not catch its own error, and that catches its interruption."""
    signal.signal(signal.SIGUSR2, _raise_lookup_error)
    try:
        yield
    except KeyboardInterrupt:
        dist.distributed_c10d._abort_process_group()
        case.tell("left")
    except LookupError:
        dist.destroy_process_group()
        case.tell("left")
        os._exit(1)


def be_victim(case: Case, place: Place) -> str:
    place.join(f"{case.folder}/store")
    step = _prepare(case)
    for rank in range(dist.get_world_size()):  # none still awaits a message of the barrier, which a cut would lose
        case.hear(f"rank {rank} is prepared")
    with as_victim(case):
        return _suffer(case, step)
    return "interrupted"


def be_survivor(case: Case, place: Place) -> tuple[str, Stretch]:
    """Returns the error, and how long it took."""
    place.join(f"{case.folder}/store")
    step, own_name = _prepare(case), f"rank {dist.get_rank()}"
    if case.moment == "inside":
        case.hear(case.strike)
    elif case.moment == "after":
        step()
        case.tell(own_name)
    started = Moment.now()

    def tell_from_inside() -> None:
        nonlocal started
        started = Moment.now()
        case.tell(own_name)

    if case.moment == "before":
        with once_at_rest(tell_from_inside):
            message = _fail(case, step)
    else:
        message = _fail(case, step)
    return message, Stretch.since(started)


def leave(case: Case) -> Stretch:
    """Leaves the group that has failed."""
    started = Moment.now()
    if dist.is_initialized():
        with suppress(RuntimeError):
            case.leave()
    return Stretch.since(started)


def regroup(case: Case, place: Place) -> None:
    place.group_after(case)


def set_timeout(timeout_s: float) -> None:
    """Sets the timeout of the default group."""
    group = dist.distributed_c10d._get_default_group()
    group._get_backend(torch.get_default_device())._set_default_timeout(timedelta(seconds=timeout_s))


def _prepare(case: Case) -> Step:
    case.publish_handle()
    step = make_step(case.operation, case.victim)
    step()
    dist.barrier()
    case.tell(f"rank {dist.get_rank()} is prepared")
    set_timeout(case.timeout_s)
    return step


def _fail(case: Case, step: Step) -> str:
    """Repeats the step until it fails; returns the error.

    The victim may have completed its part of the first call, and on a GPU only the next call raises.
    """
    began = now = time.monotonic()
    num_steps, longest_s = 0, 0.0
    while now < began + FORMING_TIMEOUT_S:
        try:
            step()
        except RuntimeError as error:
            return str(error)
        num_steps, longest_s, now = num_steps + 1, max(longest_s, time.monotonic() - now), time.monotonic()
    told = [word for word in ("struck", "left") if case.is_told(word)]
    raise AssertionError(f"nothing was raised by {num_steps} calls, of at most {longest_s:.3f} s; the victim: {told}")
