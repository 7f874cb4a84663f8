"""Measures how fast a process wakes up: from just before rank 0's call to the return of rank 1's call.

Both ranks read CLOCK_MONOTONIC of one host, and nothing is subtracted. The receiver is what is measured, so rank 0
warms up its own core, Python and backend before it calls. For comparison, the same rank writes a byte into a pipe while
the other one sleeps in epoll for the same time. This shows the time that the core itself needs to wake up.
"""

import contextlib
import os
import select
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import torch
import torch.distributed as dist

from torch_axon.bench.contenders import FLOOR, register

_HEAT_NS = 5_000_000  # a few hundred calls
_LATEST_S = 60.0  # how late rank 0's byte may arrive on a busy machine


@dataclass(frozen=True)
class Wakes:
    """Medians: of a message, of the part of it that is the sender's call, and of a byte through a pipe."""

    asleep_us: float
    call_us: float
    pipe_us: float


def measure_wakes(backend: str, nap_s: float, rounds: int) -> Wakes:
    """Measures messages from rank 0 to rank 1, which sleeps for `nap_s` before each; the other ranks do nothing."""
    tensor = torch.zeros(2)
    heater = _Heater(backend)
    rank = dist.get_rank()
    stamps: list[tuple[int, int, int]] = []
    with _open_pipe() as pipe:
        for _ in range(rounds):
            dist.barrier()  # no rank waits longer than a round
            if rank == 0:
                stamps.append(_send_both(pipe, tensor, heater, nap_s))
            elif rank == 1:
                stamps.append((*_receive_both(pipe, tensor, nap_s + _LATEST_S), 0))
    sent, received = (_stamps_of(source, stamps, rounds) for source in (0, 1))
    return Wakes(
        asleep_us=_median_us(sent[:, 1], received[:, 1]),
        call_us=_median_us(sent[:, 1], sent[:, 2]),
        pipe_us=_median_us(sent[:, 0], received[:, 0]),
    )


class _Heater:
    """Calls of rank 0 that involve no other rank. Creating it is a collective call."""

    def __init__(self, backend: str):
        register(FLOOR)
        self._floor = dist.new_group(backend=FLOOR)
        self._alone = dist.new_group([0], backend=backend)
        self._sent, self._received = torch.zeros(2), torch.zeros(2)
        self._sends_to_itself = dist.get_rank() == 0 and self._can_send_to_itself()

    def heat(self) -> None:
        end = perf_counter_ns() + _HEAT_NS
        while perf_counter_ns() < end:
            dist.send(self._sent, 1, group=self._floor)
            if self._sends_to_itself:
                self._send_to_itself()
            else:
                dist.all_reduce(self._sent, group=self._alone)

    def _can_send_to_itself(self) -> bool:
        """Returns whether the backend sends to itself; Gloo does not."""
        try:
            self._send_to_itself()
        except RuntimeError:
            return False
        return True

    def _send_to_itself(self) -> None:
        sent = dist.isend(self._sent, 0, group=self._alone)
        received = dist.irecv(self._received, 0, group=self._alone)
        for work in (received, sent):
            if work is not None:
                work.wait()


@contextlib.contextmanager
def _open_pipe() -> Iterator[int]:
    """Opens a pipe that ranks 0 and 1 of a host can both read and write. A collective call."""
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "pipe"]
        if rank == 1:
            os.mkfifo(paths[0])
        dist.broadcast_object_list(paths, 1)
        pipe = os.open(paths[0], os.O_RDWR) if rank < 2 else -1
        dist.barrier()  # before rank 1 removes the name
    try:
        yield pipe
    finally:
        if pipe >= 0:
            os.close(pipe)


def _send_both(pipe: int, tensor: torch.Tensor, heater: _Heater, nap_s: float) -> tuple[int, int, int]:
    """Returns when the byte was written, and when the message's call began and returned."""
    time.sleep(nap_s)
    heater.heat()
    written = perf_counter_ns()
    os.write(pipe, b"!")
    time.sleep(nap_s)
    heater.heat()
    begun = perf_counter_ns()
    dist.send(tensor, 1)
    return written, begun, perf_counter_ns()


def _receive_both(pipe: int, tensor: torch.Tensor, timeout_s: float) -> tuple[int, int]:
    with select.epoll() as sleep:
        sleep.register(pipe, select.EPOLLIN)
        events = sleep.poll(timeout_s)
        woken = perf_counter_ns()
    if not events:
        raise TimeoutError(f"rank 0 wrote no byte into the pipe within {timeout_s:g} s")
    os.read(pipe, 1)
    dist.recv(tensor, 0)
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return woken, perf_counter_ns()


def _stamps_of(source: int, stamps: Sequence[tuple[int, int, int]], rounds: int) -> torch.Tensor:
    """Returns the stamps `[rounds, 3]` of one rank on all ranks. A collective call."""
    table = torch.tensor(stamps) if dist.get_rank() == source else torch.zeros(rounds, 3, dtype=torch.int64)
    dist.broadcast(table, source)
    return table


def _median_us(begin: torch.Tensor, end: torch.Tensor) -> float:
    return float(median((end - begin).tolist())) / 1e3
