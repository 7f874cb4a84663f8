"""Emulates hosts for a test, and skips the test where that is impossible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import two_hosts as network
from two_hosts import ADDRESSES, Hosts, move_to

__all__ = ["ADDRESSES", "Hosts", "move_to", "several_hosts", "two_hosts"]


@contextmanager
def _or_skip(hosts: AbstractContextManager[Hosts]) -> Iterator[Hosts]:
    try:
        with hosts as made:
            yield made
    except network.UnavailableError as reason:
        pytest.skip(str(reason))


def two_hosts() -> AbstractContextManager[Hosts]:
    return _or_skip(network.two_hosts())


def several_hosts(number: int) -> AbstractContextManager[Hosts]:
    return _or_skip(network.several_hosts(number))
