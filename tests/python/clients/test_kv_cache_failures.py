"""The KV cache example when a prefill fails, or a notification is not one of its own."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

EXAMPLE = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "kv_cache_handover.py"))
NUM_LAYERS = 2
DEADLINE_S = 30.0


def _model() -> Any:
    return EXAMPLE["Model"](NUM_LAYERS, 32, torch.device("cpu"))


class _Owner:
    """The runtime and the peer of a Decode, whose notifications and prefills a test gives."""

    def __init__(self, prefill: Callable[[_Owner], Awaitable[Any]]) -> None:
        self.tags: asyncio.Queue[bytes] = asyncio.Queue()
        self._prefill = prefill

    async def notification(self) -> tuple[None, bytes]:
        return None, await self.tags.get()

    async def invoke(self, *_: Any) -> Any:
        return await self._prefill(self)


async def _tokens(decode: Any) -> list[int]:
    return [token async for token in decode.generate(b"a prompt", 3)]


async def _fails(owner: _Owner) -> None:
    owner.tags.put_nowait(b"0")
    await asyncio.sleep(0)
    raise ValueError("the prefill has failed")


async def _leaves_a_foreign_tag(owner: _Owner) -> dict[str, Any]:
    owner.tags.put_nowait(b"no number")
    return {}


async def _succeeds(owner: _Owner) -> dict[str, Any]:
    owner.tags.put_nowait(b"1")
    owner.tags.put_nowait(b"1")
    return {}


def _run(test: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        await asyncio.wait_for(test(), DEADLINE_S)

    asyncio.run(in_time())


def test_a_failed_prefill_leaves_nothing_but_its_pages_and_later_requests_go_on() -> None:
    async def test() -> None:
        owner = _Owner(_fails)
        decode = EXAMPLE["Decode"](owner, _model(), owner, 2)
        with pytest.raises(ValueError, match="the prefill has failed"):
            await _tokens(decode)
        assert not decode._arrived
        assert not decode._layers
        for _ in range(NUM_LAYERS):  # layers of the request that has failed
            owner.tags.put_nowait(b"0")
        owner._prefill = _succeeds
        assert len(await _tokens(decode)) == 3
        assert not decode._layers
        decode.taking.cancel()

    _run(test)


def test_a_foreign_notification_fails_requests_rather_than_making_them_wait() -> None:
    async def test() -> None:
        owner = _Owner(_leaves_a_foreign_tag)
        decode = EXAMPLE["Decode"](owner, _model(), owner, 2)
        with pytest.raises(ValueError, match="no number"):
            await _tokens(decode)

    _run(test)


class _Transfer:
    """A transfer that fails, and that releases its memory after it has been asked a few times."""

    num_asked = 0

    def exception(self) -> BaseException:
        return ConnectionError("lost")

    def result(self) -> None:
        raise self.exception()

    @property
    def released(self) -> bool:
        self.num_asked += 1
        return self.num_asked > 3


def test_a_failed_prefill_waits_until_its_cache_is_read_no_more() -> None:
    prefill = EXAMPLE["Prefill"](_model())
    posted: list[_Transfer] = []

    def post(*_: Any, **__: Any) -> _Transfer:
        posted.append(_Transfer())
        return posted[-1]

    prefill._plan = SimpleNamespace(post=post)
    with pytest.raises(ConnectionError, match="lost"):
        prefill.prefill(0, b"a prompt", torch.arange(2, dtype=torch.int32))
    assert [each.num_asked for each in posted] == [4] * NUM_LAYERS
