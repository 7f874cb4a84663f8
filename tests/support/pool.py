"""Persistent worker processes, one per rank, that run the functions a test sends them.

    with RankPool(2) as ranks:
        sums = ranks.run(function, argument)     # on every rank; returns the results by rank

Importing torch takes seconds, so the ranks are forked from one server that has imported it, and live until the session
ends. A rank that raises fails the test with its traceback. A rank that hangs fails the test after `timeout_s` with the
stacks of all ranks. In both cases the pool is broken from then on, and its owner must create another one.

Functions must be defined at the top level of a module, and their arguments and results must be picklable.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from support.devices import settle

BACKEND = os.environ.get("AXON_TEST_BACKEND", "axon")

_PR_SET_PDEATHSIG = 1
# The time that the other ranks may take to notice that one has failed.
_GRACE_S = 10.0


class RankError(AssertionError):
    """Some rank raised, died or hung; the text holds every rank's traceback or stacks."""


# Each rank of a pool may have to import torch._dynamo first, which takes a minute on a busy machine.
_LONGEST_RUN_S = 150.0


@dataclass(frozen=True)
class Meeting:
    """How the ranks of a pool form their group: through a file, through a TCP server of the test process, or not at
    all."""

    kind: str
    folder: str
    size: int
    timeout_s: float
    port: int = 0
    # AXON_TRANSPORTS of this process; the server that forks the ranks may have begun with another value.
    transports: str | None = field(default_factory=lambda: os.environ.get("AXON_TRANSPORTS"))

    def join(self, rank: int) -> None:
        arguments: dict[str, Any] = {
            "rank": rank,
            "world_size": self.size,
            "timeout": timedelta(seconds=self.timeout_s),
        }
        if self.kind == "file":
            arguments["init_method"] = f"file://{self.folder}/store"
        elif self.kind == "tcp":
            arguments["store"] = dist.TCPStore("127.0.0.1", self.port, self.size, is_master=False)
        elif self.kind == "hash":
            arguments["store"] = dist.HashStore()
        if self.kind != "none":
            dist.init_process_group(BACKEND, **arguments)


@dataclass
class _Rank:
    process: Any
    connection: Connection
    stacks: Path
    outcome: str = ""
    value: Any = None


def own_rank() -> int:
    """Returns the rank of a process without a group, from the process name that the pool has given it."""
    return int(multiprocessing.current_process().name.split()[1])


def import_backend() -> None:
    if BACKEND == "axon":
        import torch_axon  # noqa: F401


def _serve(rank: int, meeting: Meeting, device: str, gpu: int, connection: Connection) -> None:
    """Runs a rank: joins the group, then runs tasks until the connection ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the rank must not outlive the session
    stacks = open(f"{meeting.folder}/stacks{rank}", "w")  # noqa: SIM115 - faulthandler writes to it until the end
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*deprecated.*")
    import_backend()
    if meeting.transports is not None:
        os.environ["AXON_TRANSPORTS"] = meeting.transports
    # Torch's flight recorder writes a file when a call fails, by default in the user's folder.
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", f"{meeting.folder}/trace")
    place = settle(device, gpu)
    meeting.join(rank)
    connection.send_bytes(pickle.dumps(("returned", None)))
    while True:
        try:
            task = connection.recv_bytes()
        except EOFError:
            break
        with place:
            answer = _perform(task)
        connection.send_bytes(answer)
    if dist.is_initialized():
        dist.destroy_process_group()


def _perform(task: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(task)
        return pickle.dumps(("returned", function(*arguments)))
    except BaseException:
        return pickle.dumps(("raised", traceback.format_exc()))


def server_context() -> Any:
    """Returns a context that forks processes from one server, which has already imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.tensor", "torch.testing", "numpy", "pytest"])
    return context


class RankPool:
    """`size` worker processes that share a process group of the backend under test.

    `group_timeout_s` is the group's own timeout. `device` is one of devices.py; the first rank uses `first_gpu`. The
    pool is not thread-safe: it runs one test at a time.
    """

    def __init__(
        self,
        size: int,
        meeting: str = "file",
        group_timeout_s: float = 60.0,
        device: str = "cpu",
        first_gpu: int = 0,
    ) -> None:
        self.size = size
        self.broken = False
        self._folder = tempfile.mkdtemp(prefix="ranks-")
        self._server: dist.TCPStore | None = None
        if meeting == "tcp":
            self._server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = self._server.port if self._server else 0
        self.meeting = Meeting(meeting, self._folder, size, group_timeout_s, port)
        self.device = device
        self._first_gpu = first_gpu
        self._ranks = [self._spawn(rank) for rank in range(size)]
        self.finish()

    def _spawn(self, rank: int) -> _Rank:
        context = server_context()
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve,
            args=(rank, self.meeting, self.device, self._first_gpu + rank, theirs),
            name=f"rank {rank}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Rank(process, ours, Path(self._folder) / f"stacks{rank}")

    @property
    def pids(self) -> list[int]:
        return [rank.process.pid for rank in self._ranks]

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float = _LONGEST_RUN_S,
        dying: Sequence[int] = (),
    ) -> list[Any]:
        """Returns the result of `function(*arguments)` per rank, or None for the ranks `dying`, which must not survive
        it."""
        self.start(function, *arguments)
        return self.finish(timeout_s, dying)

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        if self.broken:
            raise RankError("an earlier failure broke this pool")
        task = pickle.dumps((function, arguments))
        for rank in self._ranks:
            rank.outcome = ""
            try:
                rank.connection.send_bytes(task)
            except OSError:
                rank.outcome = "died"

    def finish(self, timeout_s: float = _LONGEST_RUN_S, dying: Sequence[int] = ()) -> list[Any]:
        self._collect(timeout_s)
        expected = ["died" if rank in dying else "returned" for rank in range(self.size)]
        self.broken = bool(dying) or [rank.outcome for rank in self._ranks] != expected
        if [rank.outcome for rank in self._ranks] != expected:
            raise RankError(self._report(timeout_s))
        return [rank.value for rank in self._ranks]

    def _collect(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        failed = False
        while pending := {rank.connection: rank for rank in self._ranks if not rank.outcome}:
            ready = wait(list(pending), max(0.0, deadline - time.monotonic()))
            for connection in ready:
                rank = pending[connection]  # type: ignore[index]
                rank.outcome, rank.value = self._receive(rank)
                if rank.outcome == "raised" and not failed:
                    failed = True
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
            if not ready:
                self._capture_stacks(list(pending.values()))
                return

    def _receive(self, rank: _Rank) -> tuple[str, Any]:
        try:
            outcome, value = pickle.loads(rank.connection.recv_bytes())
        except (EOFError, OSError):
            rank.process.join(10)
            return "died", None
        return outcome, value

    def _capture_stacks(self, hung: list[_Rank]) -> None:
        for rank in hung:
            os.kill(rank.process.pid, signal.SIGUSR1)
        time.sleep(0.5)  # faulthandler does not signal when it has finished writing
        for rank in hung:
            rank.outcome, rank.value = "hung", rank.stacks.read_text()

    def _report(self, timeout_s: float) -> str:
        lines = []
        for index, rank in enumerate(self._ranks):
            if rank.outcome == "returned":
                lines.append(f"rank {index} returned {rank.value!r:.200}")
            elif rank.outcome == "died":
                code = rank.process.exitcode
                lines.append(f"rank {index} died with exit code {code}\n{rank.stacks.read_text()}")
            elif rank.outcome == "hung":
                lines.append(f"rank {index} still ran after {timeout_s:g} s or when another had failed\n{rank.value}")
            else:
                lines.append(f"rank {index} raised\n{rank.value}")
        return "\n".join(lines)

    def close(self) -> None:
        """Ends the ranks; all ranks of a healthy pool must exit with code 0 on their own."""
        for rank in self._ranks:
            rank.connection.close()
        stuck = []
        for index, rank in enumerate(self._ranks):
            rank.process.join(0.2 if self.broken else 20)
            if rank.process.exitcode != 0:
                stuck.append(f"rank {index} (exit code {rank.process.exitcode})\n{self._stacks_of(rank)}")
                rank.process.kill()
                rank.process.join()
        shutil.rmtree(self._folder, ignore_errors=True)
        if stuck and not self.broken:
            raise RankError("ranks did not exit when told to: " + "\n".join(stuck))

    def _stacks_of(self, rank: _Rank) -> str:
        if rank.process.exitcode is None and not self.broken:
            self._capture_stacks([rank])
        return rank.stacks.read_text() if rank.stacks.exists() else ""

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_MEETINGS = {1: "hash", 2: "file", 3: "tcp", 4: "file"}


class Pools:
    """One pool per number of ranks and device, created at first use and again after a failure."""

    def __init__(self) -> None:
        self._pools: dict[tuple[int, str], RankPool] = {}

    def of(self, size: int, device: str = "cpu") -> RankPool:
        pool = self._pools.get((size, device))
        if pool is None or pool.broken:
            if pool is not None:
                pool.close()
            self._pools[size, device] = RankPool(size, _MEETINGS[size], device=device)
        return self._pools[size, device]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def __enter__(self) -> Pools:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
