"""Another process, which a test stops and kills."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection

from support.waiting import DEADLINE_S


class OtherProcess:
    """A spawned process that serves this one over a pipe.

    Args:
        serve: runs in the process with its end of the pipe, whose other end is `pipe`
    """

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=serve, args=(there,))
        self.process.start()
        there.close()

    def signal(self, number: int) -> None:
        """Sends a signal. Returns once the process has stopped, if the signal stops it."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def close(self) -> None:
        self.process.kill()
        self.process.join(DEADLINE_S)
