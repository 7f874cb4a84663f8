"""Emulates hosts for a test, and skips the test where that is impossible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import two_hosts as network
from two_hosts import ADDRESSES, Hosts, move_to

__all__ = ["ADDRESSES", "Hosts", "move_to", "several_hosts", "two_hosts"]


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    try:
        with network.two_hosts() as hosts:
            yield hosts
    except network.UnavailableError as reason:
        pytest.skip(str(reason))


@contextmanager
def several_hosts(number: int) -> Iterator[Hosts]:
    try:
        with network.several_hosts(number) as hosts:
            yield hosts
    except network.UnavailableError as reason:
        pytest.skip(str(reason))
