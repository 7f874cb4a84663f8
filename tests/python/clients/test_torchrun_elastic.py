"""Jobs of torchrun whose size changes: agents restart all workers, which form another group each time. And jobs of
several torchruns whose workers outlive those of other nodes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest
import torch.distributed as dist

from support.processes import HERE, environment, state_of

T = TypeVar("T")

NUM_WORKERS = 2  # of each agent
# A new agent imports torch, and so do its workers, while other tests run beside it.
MOST_S = 120.0


class Agents:
    """The agents of a test. Their output is shown if the test fails."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, options: Sequence[str], *program: str) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={NUM_WORKERS}"]
        launcher += ["--max-restarts=5", "--monitor-interval=0.1", *options, str(HERE / "launched_programs.py")]
        # Without this, an agent that joins later waits for a store that only the first round has announced.
        env = environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with open(self._folder / f"output of agent {len(self._running)}", "wb") as output:
            agent = subprocess.Popen([*launcher, *program], stdout=output, stderr=subprocess.STDOUT, env=env)
        self._running.append(agent)
        return agent

    def wait_for(self, find: Callable[[], T | None], what: str) -> T:
        deadline = time.monotonic() + MOST_S
        while (found := find()) is None:
            assert time.monotonic() < deadline, f"{what}: not within {MOST_S} s\n{self._output()}"
            time.sleep(0.05)
        return found

    def _output(self) -> str:
        return "\n".join(f"{file.name}:\n{file.read_text()[-5000:]}" for file in self._folder.glob("output of *"))

    def close(self) -> None:
        for agent in self._running:
            agent.send_signal(signal.SIGTERM)
        for agent in self._running:
            try:
                agent.wait(60)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    agents = Agents(tmp_path)
    yield agents
    agents.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class _Groups:
    """The groups that workers write down in a folder, once they have used them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[int] = set()

    def next_of(self, size: int) -> list[int] | None:
        """Returns the processes of a group of this size, by rank, all of which are new and have used it."""
        written = {int(file.name.split()[-1]): json.loads(file.read_text()) for file in self._folder.glob("rank of *")}
        for own in written.values():
            pids: list[int] = own["pids"]
            if len(pids) == size and self._seen.isdisjoint(pids) and all(pid in written for pid in pids):
                assert [written[pid]["rank"] for pid in pids] == list(range(size))
                self._seen.update(pids)
                return pids
        return None


def test_a_job_grows_and_shrinks_with_its_agents(agents: Agents, tmp_path: Path) -> None:
    rendezvous = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "--rdzv-id=job"]
    rendezvous += ["--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"]
    groups = _Groups(tmp_path)

    def group_of(size: int, when: str) -> list[int]:
        return agents.wait_for(lambda: groups.next_of(size), f"a group of {size} {when}")

    first = agents.start(rendezvous, "is_elastic", str(tmp_path))
    group_of(NUM_WORKERS, "at the start")
    second = agents.start(rendezvous, "is_elastic", str(tmp_path))
    members = group_of(2 * NUM_WORKERS, "when an agent has joined")
    os.kill(members[-1], signal.SIGKILL)
    members = group_of(2 * NUM_WORKERS, "when a worker was killed")
    second.send_signal(signal.SIGTERM)
    second.wait(MOST_S)
    group_of(NUM_WORKERS, "when an agent has left")
    assert all(state_of(pid) in (None, "Z") for pid in members)
    (tmp_path / "end").touch()
    assert first.wait(MOST_S) == 0


class _Coordinator:
    """Lists the members of each generation, in a store that all processes read."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
        self._generation = 0

    def processes_of(self, node: str, number: int) -> dict[int, str]:
        """Returns the handles by process of the latest two processes of a node, once it has started that many."""

        def find() -> dict[int, str] | None:
            num_started = self.store.add("processes", 0)
            keys = [f"process/{each + 1}" for each in range(num_started)]
            if num_started == 0 or not self.store.check(keys):
                return None
            started = [json.loads(self.store.get(key)) for key in keys]
            own = [(pid, handle) for name, pid, handle in started if name == node]
            return dict(own[-NUM_WORKERS:]) if len(own) >= number else None

        return self._agents.wait_for(find, f"{number} processes of {node}")

    def let_join(self, members: dict[int, str]) -> None:
        self._generation += 1
        self.store.set(f"members/{self._generation}", json.dumps(list(members.values())))
        if members:
            self._await("used", members)

    def await_failure_of(self, members: dict[int, str]) -> None:
        self._await("failed", members)

    def _await(self, what: str, members: dict[int, str]) -> None:
        keys = [f"{what}/{self._generation}/{pid}" for pid in members]
        self._agents.wait_for(lambda: self.store.check(keys) or None, f"{what}, in generation {self._generation}")


def test_workers_outlive_those_of_another_node(agents: Agents) -> None:
    coordinator = _Coordinator(agents)
    nodes = {
        name: agents.start(["--standalone"], "outlives_other_nodes", str(coordinator.store.port), name)
        for name in ("stays", "restarts")
    }
    staying = coordinator.processes_of("stays", NUM_WORKERS)
    former = coordinator.processes_of("restarts", NUM_WORKERS)
    coordinator.let_join(staying | former)
    os.kill(next(iter(former)), signal.SIGKILL)
    coordinator.await_failure_of(staying)
    coordinator.let_join(staying)
    newer = coordinator.processes_of("restarts", 2 * NUM_WORKERS)
    assert newer.keys().isdisjoint(former)
    coordinator.let_join(newer | staying)
    coordinator.let_join({})
    assert [agent.wait(MOST_S) for agent in nodes.values()] == [0, 0]
