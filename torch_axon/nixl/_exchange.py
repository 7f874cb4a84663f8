"""Exchanges metadata between agents over the network, for programs that do not pass it themselves.

An agent with a listening thread answers at its port. Agents need the same secret for this. By default it is a public
one. Then every process that reaches the port learns how to use the agent's registered memory. It may also change what
the agent knows of others, as with NIXL. `AXON_SECRET` sets another secret.
"""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from torch_axon.nixl._logging import get_logger
from torch_axon.runtime import Peer, Runtime

_PUBLIC_SECRET = "torch_axon.nixl without a secret"
_TIMEOUT_S = 10.0
_LONGEST_CLOSE_S = 1.0
_LONGEST_NAME = 240  # of the agent, in bytes, within the name of the runtime

_log = get_logger(__name__)


class Exchange:
    """One end of exchanges. It connects to others; after `listen`, others connect to it, too.

    Args:
        name: the name of the agent
        own: returns the metadata of the agent, as bytes
        load: takes the metadata of another agent
        forget: forgets the agent of this name
    """

    def __init__(
        self, name: str, own: Callable[[], bytes], load: Callable[[bytes], object], forget: Callable[[str], object]
    ) -> None:
        secret = os.environ.get("AXON_SECRET")
        self._is_public = not secret
        shown = name.encode()[:_LONGEST_NAME].decode(errors="ignore")
        self._runtime = Runtime(f"{shown} (metadata)", timeout=_TIMEOUT_S, secret=secret or _PUBLIC_SECRET)
        self._load = load
        # One after the other, in the order of the calls. No thread waits for them.
        self._tasks = ThreadPoolExecutor(1, thread_name_prefix="axon-nixl-metadata")
        self._runtime.register("own")(own)
        self._runtime.register("load")(lambda blob: load(blob) and None)
        self._runtime.register("forget")(lambda agent: forget(agent) and None)

    def listen(self, port: int) -> None:
        """Lets other agents connect.

        Raises:
            RuntimeError: the port is taken
        """
        try:
            self._runtime.listen("0.0.0.0", port)
        except ValueError as error:
            raise RuntimeError(f"Failed to bind metadata listener socket: {error}") from error
        if self._is_public:
            _log.warning(
                "every process that reaches port %d can read the metadata of this agent, and change what it knows of "
                "others; AXON_SECRET restricts that",
                port,
            )

    def send(self, ip: str, port: int, blob: bytes) -> None:
        """Gives an agent metadata, in the background."""
        self._in_background(ip, port, lambda peer: peer.invoke("load", blob).result())

    def fetch(self, ip: str, port: int) -> None:
        """Takes the metadata of an agent, in the background."""
        self._in_background(ip, port, lambda peer: self._load(peer.invoke("own").result()))

    def invalidate(self, ip: str, port: int, name: str) -> None:
        """Lets an agent forget the one of this name, in the background."""
        self._in_background(ip, port, lambda peer: peer.invoke("forget", name).result())

    def _in_background(self, ip: str, port: int, task: Callable[[Peer], object]) -> None:
        def run() -> None:
            try:
                with self._runtime.connect((ip, port)) as peer:
                    task(peer)
            except Exception as error:
                _log.error("metadata exchange with %s:%d failed: %s", ip, port, error)

        self._tasks.submit(run)

    def close(self) -> None:
        """Ends. What has not begun is dropped after a short time, and what is under way fails."""
        with suppress(RuntimeError):  # the interpreter exits, and has waited for the tasks
            concurrent.futures.wait([self._tasks.submit(time.sleep, 0)], _LONGEST_CLOSE_S)
        self._tasks.shutdown(wait=False, cancel_futures=True)
        self._runtime.close(drain=False)
