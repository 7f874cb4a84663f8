"""Costs of waiting: CPU time of a process without calls, and wake-ups of a loop whose calls are answered."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.processes import environment
from support.runtime_clients import PROGRAMS, Server
from torch_axon.runtime import Runtime, _wakeups

holding_the_gil = ctypes.PyDLL(None)


def share_of_a_core(progress: str, server: Server) -> tuple[float, float]:
    """Returns the share of a core that an idle runtime uses, and the share that it uses or waits for."""
    measured = subprocess.run(
        [sys.executable, str(PROGRAMS), "idles"],
        input=f"{progress} {server.address.hex()}\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment(),
    )
    taken, wanted = map(float, measured.stdout.split())
    return taken, wanted


@pytest.mark.parametrize("progress", ["block", "adaptive"])
def test_a_runtime_without_calls_leaves_the_core_to_others(server: Server, progress: str) -> None:
    taken, _ = share_of_a_core(progress, server)
    assert taken < 0.01


def _check_that_it_spins(server: Server) -> None:
    """The runtime uses or waits for more than half a core, unless it yields to processes that take all cores."""
    shares = []
    for _ in range(5):
        shares.append(share_of_a_core("spin", server)[1])
        if shares[-1] > 0.5:
            return
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)):
        pytest.skip(
            f"other processes take all cores, to which the runtime yields: it used or waited for {shares} of a core"
        )
    raise AssertionError(f"the runtime used or waited for only {shares} of a core")


def test_a_runtime_that_spins_does_not(server: Server) -> None:
    _check_that_it_spins(server)


def _take_all_cores_now_and_then(until: threading.Event) -> None:
    busy = "import time; end = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass"
    while not until.wait(0.7):
        others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(len(os.sched_getaffinity(0)))]
        for other in others:
            other.wait()


def test_a_runtime_that_spins_does_so_again_once_others_have_left_its_core(server: Server) -> None:
    is_measured = threading.Event()
    with ThreadPoolExecutor() as pool:
        others = pool.submit(_take_all_cores_now_and_then, is_measured)
        try:
            _check_that_it_spins(server)
        finally:
            is_measured.set()
        others.result()


def test_a_batch_of_answers_wakes_its_loop_once_and_takes_no_lock_of_pythons_before(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    tell = _wakeups.Wakeups._tell

    def count(wakeups: _wakeups.Wakeups, futures: list[object]) -> None:
        batches.append(len(futures))
        tell(wakeups, futures)  # type: ignore[arg-type]

    monkeypatch.setattr(_wakeups.Wakeups, "_tell", count)
    with Runtime("sleeper", progress="block") as runtime:
        peer = runtime.connect(server.address)

        async def wait_for(call: object) -> str:
            return await call  # type: ignore[misc,no-any-return]

        async def main() -> None:
            calls = [peer.invoke("wait_until_told") for _ in range(300)]
            tasks = [asyncio.create_task(wait_for(call)) for call in calls]
            await asyncio.sleep(0)  # all are waited for
            peer.tell("tell_waiters")
            for _ in range(6000):
                holding_the_gil.usleep(10_000)
                if all(call.done() for call in calls):
                    break
            bell = _wakeups.of(asyncio.get_running_loop()).completions.fileno()
            rings = os.read(bell, 8)
            assert int.from_bytes(rings, sys.byteorder) == 1
            assert batches == []
            os.write(bell, rings)
            assert await asyncio.gather(*tasks) == ["heard"] * 300
            assert batches == [300]

        asyncio.run(main())
