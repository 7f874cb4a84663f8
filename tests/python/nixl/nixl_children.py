"""Processes with an agent, which do what a test asks and may be stopped and killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from nixl_support import Memory, Row, descs_of, numbered, received, register, row_of, run

from support.waiting import DEADLINE_S, until
from torch_axon.nixl._api import nixl_agent, nixl_agent_config
from torch_axon.nixl._bindings import nixl_mem_t, nixlXferDList


def dram(row: Row) -> nixlXferDList:
    return nixlXferDList(nixl_mem_t.DRAM_SEG, [row])


def listening(make: Callable[..., nixl_agent], name: str) -> tuple[nixl_agent, int]:
    """Makes an agent that exchanges metadata at a free port, and returns both."""
    for _ in range(20):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        try:
            return make(name, nixl_agent_config(True, True, port)), port
        except RuntimeError:  # another process has taken it since
            continue
    raise AssertionError("there is no free port")


class _Server:
    """Has one agent and its memory, in the child."""

    agent: nixl_agent
    memory: Memory

    def make(self, name: str, nbytes: int, seed: int) -> tuple[bytes, Row]:
        self.agent = nixl_agent(name)
        return self.add_memory(nbytes, seed)

    def listen(self, name: str, nbytes: int, seed: int) -> int:
        self.agent, port = listening(nixl_agent, name)
        self.add_memory(nbytes, seed)
        return port

    def add_memory(self, nbytes: int, seed: int) -> tuple[bytes, Row]:
        self.memory = numbered(nbytes, seed)
        register(self.agent, self.memory)
        return self.agent.get_agent_metadata(), row_of(self.memory)

    def contents(self) -> Memory:
        return self.memory

    def messages(self, sender: str, count: int) -> list[bytes]:
        return received(self.agent, sender, count)

    def knows(self, name: str) -> bool:
        return bool(until(lambda: self.agent.check_remote_metadata(name)))

    def transfer(self, operation: str, name: str, remote: Row, message: bytes) -> None:
        local = descs_of(self.agent, self.memory)
        run(self.agent, self.agent.initialize_xfer(operation, local, dram(remote), name, message))

    def add(self, metadata: bytes) -> bytes | str:
        return self.agent.add_remote_agent(metadata)

    def send(self, name: str, message: bytes) -> None:
        self.agent.send_notif(name, message)


def _serve(pipe: Connection) -> None:
    server = _Server()
    while task := pipe.recv():
        name, arguments = task
        try:
            pipe.send((True, getattr(server, name)(*arguments)))
        except BaseException as error:
            pipe.send((False, repr(error)))


def _states_of(pid: int) -> set[str]:
    """Returns the state letters of all threads of a process."""
    states = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as stat:
            states.add(stat.read().rpartition(")")[2].split()[0])
    return states


class Child:
    """A process with a `_Server`."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there,), daemon=True)
        self.process.start()
        there.close()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Lets the child do something, and returns its answer."""
        self._pipe.send((name, arguments))
        assert self._pipe.poll(2 * DEADLINE_S), f"the child did not answer {name}"
        is_answer, answer = self._pipe.recv()
        assert is_answer, answer
        return answer

    def signal(self, number: int) -> None:
        pid = self.process.pid
        assert pid is not None
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            until(lambda: _states_of(pid) == {"T"})

    def kill(self) -> None:
        self.process.kill()
        self.process.join(DEADLINE_S)
        assert self.process.exitcode == -signal.SIGKILL

    def close(self) -> None:
        """Lets the child end by itself."""
        self._pipe.send(None)
        self.process.join(DEADLINE_S)
        assert self.process.exitcode == 0

    def end(self) -> None:
        """Makes sure that the process is gone."""
        self.process.kill()
        self.process.join(DEADLINE_S)
        self._pipe.close()


def same(a: Memory, b: Memory) -> bool:
    return bool(np.array_equal(a, b))
