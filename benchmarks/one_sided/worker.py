"""One end of a side, a process of its own: `worker.py SIDE KIND BYTES serve HOST`, or `… call ADDRESS`.

BYTES is the length of each end's memory, and KIND what it is, see ends.py. Reports in JSON lines on stdout: the owner
its address, the initiator that it is connected, and then its measurements. Ends with its stdin.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from multiprocessing.connection import Client, Connection, Listener
from statistics import median
from typing import Any

from cases import IDLE, Case, CaseError
from ends import Initiator, Owner

KEY = b"of this benchmark's two processes"
FEWEST_WINDOWS, MOST_WINDOWS = 3, 20_000  # unless one alone takes the time of a sample round
SHARE_TO_WARM = 0.25  # of the time of a sample round
IDLE_SHARE = 10  # times that, in which the owner does nothing
_SERVE = "serve"


class Samples:
    """Sample rounds of the initiator's side. `control` calls the owner's methods."""

    def __init__(self, initiator: Initiator, control: Connection) -> None:
        self._initiator = initiator
        self._control = control

    def measure(self, seconds: float, **fields: Any) -> dict[str, Any]:
        case = Case(**fields)
        if case.op == IDLE:
            return {"value": self._call("core_percent", IDLE_SHARE * seconds), "calls": 1}
        try:
            self._initiator.make_ready(case)
            self._check(case)
            return self._sampled(case, seconds)
        except CaseError as error:
            return {"failure": str(error)}

    def _sampled(self, case: Case, seconds: float) -> dict[str, Any]:
        num_windows, times = 1, self._windows(case, 1)
        while sum(times) < SHARE_TO_WARM * seconds and num_windows < MOST_WINDOWS:
            num_windows *= 2
            times = self._windows(case, num_windows)
        if sum(times) < seconds:
            wanted = round(num_windows * seconds / max(sum(times), 1e-9))
            times = self._windows(case, max(FEWEST_WINDOWS, min(MOST_WINDOWS, wanted)))
        return {"value": case.scaled(median(times)), "calls": len(times) * case.in_flight}

    def _windows(self, case: Case, count: int) -> list[float]:
        self._call(_SERVE, case, count)
        return self._initiator.windows(case, count)

    def _check(self, case: Case) -> None:
        """Runs one window, and compares the bytes of both ends, of which those to be overwritten differed before."""
        if not case.moves_data:
            return
        num_bytes = case.num_bytes * case.in_flight
        if case.is_read:
            self._call("change_bytes", num_bytes)
        else:
            self._initiator.change([self._initiator.memory[:num_bytes]])
        self._windows(case, 1)
        if self._call("digest", num_bytes) != self._initiator.digest_of(self._initiator.buffers):
            raise ValueError(f"{case}: the bytes of the two ends differ")

    def _call(self, method: str, *arguments: Any) -> Any:
        self._control.send((method, *arguments))
        return self._control.recv()


def say(**words: Any) -> None:
    os.write(_STDOUT, (json.dumps(words) + "\n").encode())


def own(side: Any, kind: str, num_bytes: int, host: str) -> None:
    owner: Owner = side.Owner(num_bytes, kind, host)
    with Listener((host, 0), authkey=KEY) as listener:
        say(address=listener.address)
        with listener.accept() as control:
            control.send(owner.address)
            owner.meet(control)
            try:
                while True:
                    _answer(owner, control)
            except EOFError:
                owner.close()


def _answer(owner: Owner, control: Connection) -> None:
    method, *arguments = control.recv()
    if method == _SERVE:  # answered at once: the initiator begins
        control.send(None)
        owner.serve(*arguments)
    else:
        control.send(getattr(owner, method)(*arguments))


def initiate(side: Any, kind: str, num_bytes: int, address: tuple[str, int]) -> None:
    with Client(address, authkey=KEY) as control:
        initiator: Initiator = side.Initiator(num_bytes, kind, control.recv())
        initiator.meet(control)
        samples = Samples(initiator, control)
        say(connected=True, path=initiator.path)
        while line := sys.stdin.readline():
            say(**samples.measure(**json.loads(line)))
        initiator.close()


def main() -> None:
    name, kind, num_bytes, role, argument = sys.argv[1:]
    side = importlib.import_module(f"sides.{name}")
    if role == "serve":
        own(side, kind, int(num_bytes), argument)
    else:
        initiate(side, kind, int(num_bytes), tuple(json.loads(argument)))


if __name__ == "__main__":
    _STDOUT = os.dup(1)
    os.dup2(2, 1)  # redirects any other output
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # without what libraries do at the end
    os._exit(0)
