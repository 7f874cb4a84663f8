"""Starts real interpreters, one per rank, to test what a pool cannot show: how processes start and how they end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    """How a process ended. `seconds` counts from its line "ready", or from its start."""

    code: int
    output: str
    errors: str
    seconds: float


def environment(**variables: str) -> dict[str, str]:
    """Returns this process's environment without the variables that configure the tests.

    Programs can import the package under test and `support`.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AXON_")}
    paths = [str(_package_folder()), str(HERE.parent), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **variables}


def output_of(command: Sequence[str], timeout_s: float = 200, **variables: str) -> str:
    """Returns the output of a program, which must exit with code 0."""
    env = environment(**variables)
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def printed() -> Iterator[Callable[[], str]]:
    """Keeps what this process prints to stderr, also from C++, and yields a function that returns it."""
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+") as errors:
        os.dup2(errors.fileno(), 2)

        def text() -> str:
            errors.seek(0)
            return errors.read()

        try:
            yield text
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def state_of(pid: int | str) -> str | None:
    """Returns the state that ps shows: "T" is stopped, "Z" is a zombie, None means that the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _package_folder() -> Path:
    """Returns the folder of the package under test, installed or not."""
    package = importlib.util.find_spec("torch_axon")
    assert package is not None, "torch_axon cannot be imported"
    assert package.origin is not None
    return Path(package.origin).parent.parent


def run_ranks(
    program: str,
    size: int,
    store: Path | str,
    *arguments: str,
    timeout_s: float = 60,
    when_ready: Callable[[Sequence[subprocess.Popen[str]]], None] = lambda _: None,
    prefixes: Sequence[Sequence[str]] = (),
) -> list[Ended]:
    """Runs `program` of programs.py as `size` ranks. Once all have printed "ready", calls `when_ready` with them."""
    processes = [
        subprocess.Popen(
            [
                *(prefixes[rank] if prefixes else ()),
                *(sys.executable, str(HERE / "programs.py"), program, str(rank), str(size), str(store), *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for rank in range(size)
    ]
    try:
        for process in processes:
            line = _first_line(process)
            if line != "ready\n":
                raise AssertionError(f"no 'ready' but {line!r}:\n{process.communicate(timeout=timeout_s)[1]}")
        started = time.monotonic()
        when_ready(processes)
        return [_end(process, started, timeout_s) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def _first_line(process: subprocess.Popen[str]) -> str:
    """Reads byte by byte: communicate() reads the pipe itself and would miss what a buffered reader has read ahead."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        line += byte
    return line.decode()


def _end(process: subprocess.Popen[str], started: float, timeout_s: float) -> Ended:
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGUSR1)  # programs.py prints its stacks
        time.sleep(0.5)
        process.kill()
        _, errors = process.communicate()
        raise AssertionError(f"still running after {timeout_s} s:\n{errors}") from None
    return Ended(process.returncode, output, errors, time.monotonic() - started)


def leftovers() -> set[str]:
    """Returns the shared memory of UCX and axon that no process maps any more, so that no process will remove it."""
    names = {name for name in os.listdir("/dev/shm") if name.startswith(("ucx", "axon"))}
    for maps in Path("/proc").glob("[0-9]*/maps") if names else ():
        with contextlib.suppress(OSError):
            mapped = maps.read_text()
            names = {name for name in names if f"/dev/shm/{name}" not in mapped}
    return names
