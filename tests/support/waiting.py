"""Waits until something is true, for tests of what takes no defined time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 30.0


def until(condition: Callable[[], Any]) -> Any:
    """Asks again and again until the answer is true, and returns it."""
    deadline = time.monotonic() + DEADLINE_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.0005)
    return answer
