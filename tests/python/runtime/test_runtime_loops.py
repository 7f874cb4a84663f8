"""How event loops learn of answers."""

from __future__ import annotations

import asyncio

import pytest

from support.runtime_clients import Server
from torch_axon.runtime import Peer, Runtime, _wakeups


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


def test_a_loop_of_two_runtimes_hears_of_both(server: Server, peer: Peer) -> None:
    async def echo(peer: Peer, number: int) -> object:
        return await peer.invoke("echo", number)

    async def main(sleeper: Peer) -> None:
        for number in range(20):  # the first runtime polls for its calls, the second never does
            assert await peer.invoke("echo", number) == number
            assert await asyncio.wait_for(echo(sleeper, number), 20) == number

    with Runtime("sleeper", progress="block") as runtime:
        asyncio.run(main(runtime.connect(server.address)))


def test_quick_answers_leave_the_loop_time_for_others(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wakeups, "_AT_ONCE_S", 10)  # all of them, however busy the machine

    async def main() -> None:
        num_turns = 0

        async def other() -> None:
            nonlocal num_turns
            while True:
                num_turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for number in range(2000):  # which take a millisecond at the least
            assert await peer.invoke("echo", number) == number
        task.cancel()
        assert num_turns > 5

    asyncio.run(main())


def test_a_call_that_a_loop_shares_is_not_awaited_for_ever(peer: Peer) -> None:
    async def main() -> None:
        call = peer.invoke("sleepy", 0.05)
        assert await asyncio.gather(call, call) == ["awake", "awake"]
        await asyncio.sleep(0)
        assert _wakeups.of(asyncio.get_running_loop())._num_awaited == 0

    asyncio.run(main())
