"""Fixtures that tests of CUDA memory share: an owner and an initiator of one-sided transfers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.one_sided_cuda import Pair, Pairs, close_all


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    pairs = Pairs()
    yield pairs
    pairs.close()


@pytest.fixture(params=["mapped", "not mapped", "two hosts"])
def pair(request: pytest.FixtureRequest, pairs: Pairs) -> Iterator[Pair]:
    pair = pairs.get(request.param)
    yield pair
    if not pair.broken:
        pair.owner(close_all)
