"""A fault, and what ranks do about it: the victim suffers it, the survivors raise, leave and form another group."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from fault_operations import Step, make_step

from support.hosts import Hosts
from support.pool import BACKEND, own_rank
from support.reference import same_bits

# A promise to those on the victim's host. GPUs have to end what is enqueued, and share this test's with other ranks.
NOTICE_S = {"cpu": 1.0, "cuda": 5.0}
# Of the group, where a rank stands still or is cut off.
TIMEOUT_S = 1.0
FORMING_TIMEOUT_S = 30.0

NUM_RANKS = 3
LAST = NUM_RANKS - 1

MOMENTS = ("before", "inside", "after")


@dataclass(frozen=True)
class Fault:
    """What happens to the victim: a signal, or something that the test does to the link to it.

    `then`: the signal by which it stands still no longer, once the others have gone.
    """

    end: str  # of the victim's: "ends" or "goes on"
    signal: int = 0
    then: int = 0
    link: Callable[[Hosts], None] | None = None
    is_remote: bool = False

    @property
    def crosses_hosts(self) -> bool:
        return self.is_remote or self.link is not None

    @property
    def is_silent(self) -> bool:
        """Nobody tells the survivors."""
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
    """Of a process; `starved_ns`: what each thread that a call goes through had waited for a processor until then."""

    pid: int
    at: float
    starved_ns: dict[str, int]

    @staticmethod
    def now(pid: int = 0) -> Moment:
        """Of this process, or another. The kernel counts: the second number of schedstat, in ns
        (Documentation/scheduler/sched-stats.rst).
        """
        pid, at = pid or os.getpid(), time.monotonic()
        starved_ns = {}
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):  # a thread that has ended
                if thread.name == str(pid) or thread.joinpath("comm").read_text() == "axon-progress\n":
                    starved_ns[thread.name] = int(thread.joinpath("schedstat").read_text().split()[1])
        return Moment(pid, at, starved_ns)


@dataclass(frozen=True)
class Stretch:
    """Of a process's time."""

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
        """In which its most hindered thread wanted to run, and had no processor."""
        before = self.started.starved_ns
        return max((ns - before.get(thread, 0) for thread, ns in self.ended.starved_ns.items()), default=0) / 1e9

    def is_within(self, limit_s: float, others_starved_s: float = 0.0) -> bool:
        """But for what the machine had no time for, in this process or those it waited for; of that at most as much
        again, so that what takes twice as long never is.
        """
        return self.seconds - min(self.starved_s + others_starved_s, limit_s) < limit_s


@dataclass(frozen=True)
class Case:
    """`folder`: the store, and files by which ranks and test tell each other how far they are, and since when."""

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
    def timeout_s(self) -> float:
        return TIMEOUT_S if self.kind.is_silent else FORMING_TIMEOUT_S

    @property
    def strike(self) -> str:
        """What is told of it."""
        return "link struck" if self.kind.link else "struck"

    def limit_s(self, device: str) -> float:
        """In which survivors have to raise."""
        return TIMEOUT_S + 1 if self.kind.takes_long else NOTICE_S[device]

    def leave(self) -> None:
        """Both ways out are tried."""
        dist.destroy_process_group() if self.moment == "after" else dist.distributed_c10d._abort_process_group()

    def tell(self, what: str) -> None:
        """With the moment, of this process and of the ranks that have told where they are."""
        ranks = [self.told(file.name)[0].pid for file in Path(self.folder).glob("rank ?")]
        new = Path(self.folder, f"{what}, half written")
        new.write_text(json.dumps([asdict(Moment.now(pid)) for pid in (os.getpid(), *ranks)]))
        new.rename(Path(self.folder, what))

    def is_told(self, what: str) -> bool:
        return Path(self.folder, what).exists()

    def hear(self, *what: str) -> None:
        deadline = time.monotonic() + FORMING_TIMEOUT_S
        while not all(map(self.is_told, what)):
            assert time.monotonic() < deadline, f"nobody has told {what}"
            time.sleep(0.001)

    def told(self, what: str) -> list[Moment]:
        """First of whoever told it."""
        return [Moment(**moment) for moment in json.loads(Path(self.folder, what).read_text())]

    def since_strike(self, stretch: Stretch) -> Stretch:
        """What is left of a stretch that may have begun before."""
        own = [moment for moment in self.told(self.strike) if moment.pid == stretch.started.pid]
        return Stretch(max([stretch.started, *own], key=lambda moment: moment.at), stretch.ended)

    def victim_starved_s(self) -> float:
        """From the strike until it has left, if it has by itself."""
        return Stretch(self.told("struck")[0], self.told("left")[0]).starved_s if self.is_told("left") else 0.0


@dataclass(frozen=True)
class Place:
    """Of a pool's processes in the group: their ranks, of `size`."""

    ranks: tuple[int, ...]
    size: int = NUM_RANKS

    def join(self, store: str) -> None:
        method, rank = f"file://{store}", self.ranks[own_rank()]
        timeout = timedelta(seconds=FORMING_TIMEOUT_S)
        dist.init_process_group(BACKEND, init_method=method, rank=rank, world_size=self.size, timeout=timeout)

    def group_after(self, case: Case) -> None:
        """The group of those who are left works."""
        self.join(f"{case.folder}/again")
        data = torch.ones(1000)
        dist.all_reduce(data)
        same_bits(data, torch.full((1000,), float(self.size)))
        dist.destroy_process_group()


@contextmanager
def once_at_rest(action: Callable[[], None]) -> Iterator[None]:
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


def strike(case: Case) -> None:
    """What the victim does to itself, or lets the test do."""
    case.tell("struck")
    if case.kind.link:
        case.hear("link struck")
    else:
        # Not to the process, whose signals may reach another thread while this one goes on.
        signal.pthread_kill(threading.main_thread().ident, case.kind.signal)


def _suffer(case: Case, step: Step) -> str:
    """The victim's part; what it is told if it goes on."""
    if case.moment == "inside":
        with once_at_rest(lambda: strike(case)):
            return _fail(case, step)
    if case.moment == "after":
        step()
    case.hear(*(f"rank {rank}" for rank in case.survivors))  # is inside, or through
    strike(case)
    return _fail(case, step)


def _raise_lookup_error(*_: object) -> None:
    raise LookupError("the program's own error")


@contextmanager
def as_victim(case: Case) -> Iterator[None]:
    """A program that does not catch its own error, and one that catches its interruption."""
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
    with as_victim(case):
        return _suffer(case, step)
    return "interrupted"


def be_survivor(case: Case, place: Place) -> tuple[str, Stretch]:
    """What was raised, and how long that took."""
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
    """The group that has failed."""
    started = Moment.now()
    if dist.is_initialized():
        with suppress(RuntimeError):
            case.leave()
    return Stretch.since(started)


def regroup(case: Case, place: Place) -> None:
    place.group_after(case)


def set_timeout(timeout_s: float) -> None:
    """Of the default group."""
    group = dist.distributed_c10d._get_default_group()
    group._get_backend(torch.get_default_device())._set_default_timeout(timedelta(seconds=timeout_s))


def _prepare(case: Case) -> Step:
    step = make_step(case.operation, case.victim)
    step()
    dist.barrier()
    set_timeout(case.timeout_s)
    return step


def _fail(case: Case, step: Step) -> str:
    """A first call may have got all that it needs from the victim, and a GPU tells only the next one."""
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
