"""Two processes of a side: one serves, one calls. Only one pair runs at a time; all others are stopped."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any

from torch_axon.bench.record import Machine, describe_machine

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
    """`command` uses the protocol of a benchmark's worker.py, and may be `PYTHON worker.py SIDE`."""

    def __init__(self, command: Sequence[str], place: Place) -> None:
        self._processes: list[_Process] = []
        self._command = command
        try:
            address = self._start(place.prefixes[0], "serve", place.host)["address"]
            self.greeting = self._start(place.prefixes[1], "call", json.dumps(address))
        except PairError:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def measure(self, **command: Any) -> dict[str, Any]:
        """Runs one sample round. Raises PairError if the side cannot do it."""
        self._signal(signal.SIGCONT)
        client = self._processes[1]
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


class Contest:
    """The pairs of all sides, and the reasons why some are left out."""

    def __init__(self, names: Sequence[str], command_of: Callable[[str], Sequence[str]], place: Place) -> None:
        self.names = names
        self.failures: dict[str, str] = {}
        self.greetings: dict[str, dict[str, Any]] = {}  # what each caller says once it is connected
        self._pairs: dict[str, Pair] = {}
        for name in names:
            try:
                self._pairs[name] = Pair(command_of(name), place)
                self.greetings[name] = self._pairs[name].greeting
            except (PairError, OSError) as error:
                self.failures[name] = str(error)

    def measure(self, rounds: int, **command: Any) -> dict[str, list[dict[str, Any]]]:
        """Returns what each side has measured in each sample round. The sides take turns in alternating order."""
        taken: dict[str, list[dict[str, Any]]] = {name: [] for name in self.names}
        for number in range(rounds):
            for name in self.names if number % 2 == 0 else reversed(self.names):
                if name not in self._pairs:
                    continue
                try:
                    taken[name].append(self._pairs[name].measure(**command))
                except PairError as error:
                    self.failures[name] = str(error)
                    self._pairs.pop(name).close()
        return taken

    def close(self) -> None:
        for pair in self._pairs.values():
            pair.close()


@contextmanager
def between_hosts() -> Iterator[Place]:
    """Makes two network namespaces, which needs root, and removes them at the end."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
    import two_hosts as network

    network.clean_up_when_told_to_end()
    with network.two_hosts() as hosts:
        yield Place(network.ADDRESSES[0], (hosts.prefix(0), hosts.prefix(1)))


@cache
def version_of(package: str, python: str) -> str:
    """Returns the version of a package in the environment of an interpreter, or an empty text."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def machine_of_run(device: str, commit: str | None) -> Machine:
    """Returns the machine, and this program's command line without folders that are the machine's own."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv]
    return replace(describe_machine(device, commit), command=f"python {shlex.join(words)}")
