"""Threads that are in the runtime's frames, or in Python's code beneath them, when the interpreter ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
from processes import environment
from runtime_clients import PROGRAMS


@pytest.mark.parametrize("program", ["ends_in_a_busy_function", "ends_with_daemon_threads_that_call"])
@pytest.mark.parametrize("attempt", range(3))  # what they are at differs
def test_a_process_ends_with_its_own_code_and_without_a_word(program: str, attempt: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAMS), program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "ready\n"
    assert not ended.stderr
