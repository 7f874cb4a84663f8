"""The ends of a side: the owner of memory, and the initiator, which reads and writes it.

A side is a module of `sides` with the classes `Owner` and `Initiator`, which derive from those here.
"""

from __future__ import annotations

import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import torch
from cases import REUSED, Case

CUDA = "cuda"
DEADLINE_S = 60.0
_STEP = 37  # added to all bytes before a check, so that old data differ

Tensors = list[torch.Tensor]


class End:
    """An end's memory. `kind` is "plain", "mapped" (peers of this host map it, where a side has such memory) or "cuda".

    The owner's memory is on the first GPU, and the initiator's on the last one.
    """

    def __init__(self, num_bytes: int, kind: str, gpu: int) -> None:
        self.kind = kind
        self.device = torch.device(CUDA, gpu) if kind == CUDA else torch.device("cpu")
        if kind == CUDA:
            torch.cuda.set_device(self.device)
        self.memory = self.allocate(num_bytes).random_(0, 256)
        self.synchronize()

    def allocate(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def synchronize(self) -> None:
        """Waits until memory is as the program has made it, since not all sides know streams."""
        if self.kind == CUDA:
            torch.cuda.synchronize(self.device)

    def parts_of(self, case: Case) -> Tensors:
        """Returns the part of this end's memory for each operation in flight."""
        return list(self.memory[: case.num_bytes * case.in_flight].split(max(case.num_bytes, 1)))

    def change(self, tensors: Tensors) -> None:
        for tensor in tensors:
            tensor.add_(_STEP)
        self.synchronize()

    def digest_of(self, tensors: Tensors) -> int:
        self.synchronize()
        digest = 0
        for tensor in tensors:
            digest = zlib.crc32(tensor.cpu().numpy(), digest)
        return digest

    def close(self) -> None:
        """Ends what the side has started."""


class Owner(End):
    """The end whose memory is read and written. `address` is what the initiator needs to know.

    Attributes:
        address: passed to the initiator
    """

    address: Any = None

    def __init__(self, num_bytes: int, kind: str) -> None:
        super().__init__(num_bytes, kind, gpu=0)

    def meet(self, control: Connection) -> None:
        """Takes part in the initiator's start."""

    def serve(self, case: Case, num_windows: int) -> None:
        """Does the owner's part of windows of operations: nothing, unless the initiator awaits an answer."""

    def change_bytes(self, num_bytes: int) -> None:
        self.change([self.memory[:num_bytes]])

    def digest(self, num_bytes: int) -> int:
        return self.digest_of([self.memory[:num_bytes]])

    def core_percent(self, seconds: float) -> float:
        """Returns the share of a core that this process takes while its program does nothing."""
        time.sleep(seconds)  # a side may finish its preparations in the background
        began = time.process_time()
        time.sleep(seconds)
        return 100 * (time.process_time() - began) / seconds


class Initiator(End, ABC):
    """The end that starts operations.

    Attributes:
        path: how bytes move, if the side says so
        buffers: the local memory of the latest window: one tensor for each operation in flight
        held: what is released before another case
    """

    path = ""

    def __init__(self, num_bytes: int, kind: str) -> None:
        super().__init__(num_bytes, kind, gpu=torch.cuda.device_count() - 1)
        self.buffers: Tensors = []
        self.held = ExitStack()
        self._run: Callable[[], None] = self.synchronize

    def meet(self, control: Connection) -> None:
        """Passes to the owner what it needs."""

    @abstractmethod
    def prepare(self, case: Case) -> Callable[[], None]:
        """Returns what runs one window of operations on `buffers`, until all of them are done.

        Raises:
            CaseError: the side has no such operation
        """

    def make_ready(self, case: Case) -> None:
        """Prepares for windows of a case.

        Raises:
            CaseError: the side has no such operation
        """
        self.held.close()
        self.place(case)
        self._run = self.prepare(case)

    def windows(self, case: Case, count: int) -> list[float]:
        """Runs windows of the prepared case, and returns the seconds of each. No time includes making fresh buffers."""
        self.place(case)
        times = []
        for number in range(count):
            if number > 0 and case.buffers != REUSED:
                self.place(case)
            began = perf_counter()
            self._run()
            times.append(perf_counter() - began)
        return times

    def place(self, case: Case) -> None:
        """Makes the buffers of a window. Those of writes have the bytes of this end's memory."""
        parts = self.parts_of(case)
        if case.buffers == REUSED:
            self.buffers = parts
            return
        self.buffers = [self.allocate(case.num_bytes) for _ in parts]
        if not case.is_read:
            for buffer, part in zip(self.buffers, parts, strict=True):
                buffer.copy_(part)
        self.synchronize()
