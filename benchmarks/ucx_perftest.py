"""Runs ucx_perftest of the libucx wheel: UCX alone, between two processes of this host or of two."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_LONGEST_START_S = 20


class Columns(NamedTuple):
    """The figures of its last line: latencies in µs, bandwidths in MB/s, rates in messages/s, of the last interval and
    overall.
    """

    median_latency: float
    latency: float
    overall_latency: float
    bandwidth: float
    overall_bandwidth: float
    rate: float
    overall_rate: float


def ucx_folder() -> Path:
    spec = importlib.util.find_spec("libucx")
    if spec is None or spec.origin is None:
        sys.exit("needs the wheel libucx, of which ucx_perftest is a part")
    return Path(spec.origin).parent


def run(
    options: Sequence[str],
    *,
    timeout_s: float,
    address: str = "127.0.0.1",
    prefixes: Sequence[Sequence[str]] = ((), ()),
    variables: Mapping[str, str] | None = None,
) -> Columns:
    """Runs it once with these options. `address` is the server's; `prefixes` are of its command and of the client's.

    Raises RuntimeError if there are no figures, and subprocess.TimeoutExpired if they do not arrive in time.
    """
    folder = ucx_folder()
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder / "lib")} | (variables or {})
    of_server, of_client = prefixes
    with socket.socket() as free:  # free on both hosts, in all likelihood
        free.bind(("", 0))
        command = [str(folder / "bin" / "ucx_perftest"), "-p", str(free.getsockname()[1])]
    server = subprocess.Popen(
        [*of_server, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    client = [*of_client, *command, address, *options, "-f"]
    deadline = time.monotonic() + _LONGEST_START_S
    try:
        while True:  # until the server listens
            done = subprocess.run(
                client, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )
            if figures := re.search(r"^ +\d+((?: +[\d.]+){7})$", done.stdout, re.MULTILINE):
                return Columns(*map(float, figures[1].split()))
            if time.monotonic() > deadline:
                raise RuntimeError(f"no figures of {client}:\n{done.stdout}{done.stderr}")
    finally:
        server.kill()
        server.wait()
