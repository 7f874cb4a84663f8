"""Threads are in the runtime's frames, or in Python code called from them, when the interpreter exits."""

from __future__ import annotations

import pytest

from support.runtime_clients import check_that_it_ends


@pytest.mark.parametrize("program", ["ends_in_a_busy_function", "ends_with_daemon_threads_that_call"])
@pytest.mark.parametrize("attempt", range(3))  # their positions differ
def test_a_process_ends_with_its_own_code_and_without_a_word(program: str, attempt: int) -> None:
    check_that_it_ends(program)
