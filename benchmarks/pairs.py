"""Two processes of a side: one serves, one calls. Only one pair runs at a time; all others are stopped."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

DEADLINE_S = 90


class PairError(Exception):
    """The last output of a process of the pair."""


@dataclass(frozen=True)
class Place:
    """The hosts of both ends of all sides: the server's address, and the prefix of each end's command."""

    host: str = "127.0.0.1"
    prefixes: tuple[Sequence[str], Sequence[str]] = ((), ())


class _Process(subprocess.Popen[bytes]):
    stdin: IO[bytes]
    stdout: IO[bytes]

    def __init__(self, command: Sequence[str]) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        super().__init__(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)


class Pair:
    """`command` uses the protocol of worker.py, and may be `PYTHON worker.py SIDE`."""

    def __init__(self, command: Sequence[str], place: Place) -> None:
        self._processes: list[_Process] = []
        self._command = command
        try:
            address = self._start(place.prefixes[0], "serve", place.host)["address"]
            self._start(place.prefixes[1], "call", json.dumps(address))
        except PairError:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def measure(self, num_bytes: int, in_flight: int, seconds: float) -> dict[str, Any]:
        """Runs one sample round. Raises PairError if the side cannot do it."""
        self._signal(signal.SIGCONT)
        client = self._processes[1]
        command = {"num_bytes": num_bytes, "in_flight": in_flight, "seconds": seconds}
        try:
            os.write(client.stdin.fileno(), (json.dumps(command) + "\n").encode())
            return self._read(client)
        except BrokenPipeError as error:
            raise PairError(self._last_line()) from error
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        for process in reversed(self._processes):
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
            process.log.close()

    def _start(self, prefix: Sequence[str], role: str, argument: str) -> dict[str, Any]:
        self._processes.append(_Process([*prefix, *self._command, role, argument]))
        return self._read(self._processes[-1])

    def _read(self, process: _Process) -> dict[str, Any]:
        line, deadline = b"", time.monotonic() + DEADLINE_S
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not piece:
                raise PairError(f"no answer in {DEADLINE_S} s" if not ready else self._last_line())
            line += piece
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_line(self) -> str:
        for process in reversed(self._processes):
            process.log.seek(0)
            if words := process.log.read().decode(errors="replace").strip():
                return words.splitlines()[-1]
        return "ended without a word"

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)
