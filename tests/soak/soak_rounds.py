"""The rounds of a soak: they are drawn one after the other until the time is over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Plan = TypeVar("Plan")


def rounds(draw: Callable[[int], Plan], minutes: float, first_round: int) -> Iterator[Plan]:
    """Draws the plans of rounds by their numbers.

    Draws those before the first one, too, without returning them, so that a failing round can be repeated.
    """
    deadline = time.monotonic() + minutes * 60
    for number in itertools.count():
        plan = draw(number)
        if number < first_round:
            continue
        if time.monotonic() > deadline:
            return
        yield plan
