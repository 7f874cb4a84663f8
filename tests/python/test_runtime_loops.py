"""How event loops hear of answers."""

from __future__ import annotations

import asyncio

import pytest

from torch_axon.runtime import Peer, _wakeups


def test_a_loop_looks_for_quick_answers_itself_and_sleeps_for_slow_ones(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = 0
    on_finished = _wakeups.Wakeups._on_finished

    def count(wakeups: _wakeups.Wakeups) -> None:
        nonlocal woken
        woken += 1
        on_finished(wakeups)

    monkeypatch.setattr(_wakeups.Wakeups, "_on_finished", count)

    async def main() -> None:
        for number in range(1000):
            assert await peer.invoke("echo", number) == number
        assert woken < 500  # some, where the machine has other work
        before = woken
        assert await peer.invoke("sleepy", 0.05) == "awake"
        assert woken > before

    asyncio.run(main())
