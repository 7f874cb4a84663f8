"""One round of one-sided transfers, as its processes see it.

    address = begin(plan, rank, host)
    outcomes = transfer(plan, rank, addresses)
    owner, resources = end(plan, rank)

The driver runs each step on all processes, and then the next one.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings

from one_sided_initiator import Address, Initiator, Links
from one_sided_owner import Owner, OwnerOutcome
from one_sided_plan import NUM_THREADS, SECRET, InitiatorOutcome, OneSidedPlan
from soak_resources import Resources, measure

from torch_axon.runtime import Runtime

# How often a round begins with a new runtime, although the last one is still open.
_RENEWED = 0.3


class _Here:
    """What a process keeps between the steps of a round. A runtime lives on to the next rounds."""

    runtime: Runtime | None = None
    address: Address
    plan: OneSidedPlan
    owner: Owner


def begin(plan: OneSidedPlan, rank: int, host: str) -> Address:
    os.environ.update(plan.variables)
    warnings.filterwarnings("ignore", message="the region .* is still held by")
    renews = random.Random(f"{plan.seed} renews {rank}").random() < _RENEWED
    if _Here.runtime is not None and renews:
        _Here.runtime.close()
        _Here.runtime = None
    if _Here.runtime is None:
        _open_runtime(plan.name_of(rank), host)
    assert _Here.runtime is not None
    _Here.plan = plan
    _Here.owner = Owner(_Here.runtime, plan, rank)
    return _Here.address


def _open_runtime(name: str, host: str) -> None:
    _Here.runtime = runtime = Runtime(name, secret=SECRET)
    _Here.address = (host, runtime.listen(host)) if host else runtime.address

    @runtime.register("listed")
    def listed(round_number: int, incarnation: int) -> list[list[object]]:
        assert round_number == _Here.plan.number
        return _Here.owner.listed(incarnation)

    @runtime.register("is_closed")
    def is_closed(round_number: int, number: int) -> bool:
        assert round_number == _Here.plan.number
        return _Here.owner.is_closed(number)


def transfer(plan: OneSidedPlan, rank: int, addresses: list[Address]) -> list[InitiatorOutcome]:
    assert _Here.runtime is not None
    links = Links(_Here.runtime, plan, rank, addresses)
    initiators = [Initiator(links, thread, lambda: _strike(links)) for thread in range(NUM_THREADS)]
    threads = [threading.Thread(target=each.run, name="initiator") for each in initiators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each.outcome for each in initiators]


def _strike(links: Links) -> None:
    plan = links.plan
    plan.strike_file.write_text(str(time.monotonic()))
    if plan.fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif plan.fault == "stop":
        # The signal goes to this thread: a signal to the process would stop it only once its main thread runs.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif plan.fault == "close":
        # Without draining, regions stay held until the processes end that may read them directly.
        links.runtime.close()
    elif plan.fault == "disconnect":
        others = [other for other in range(plan.size) if other != links.rank]
        peer = links.peer(random.Random(f"{plan.seed} strike").choice(others))
        assert peer is not None
        peer.close()


def end(plan: OneSidedPlan, rank: int) -> tuple[OwnerOutcome, Resources]:
    outcome = _Here.owner.end()
    if plan.closes_runtime_of(rank):
        _Here.runtime = None
    return outcome, measure()


def close() -> None:
    """Closes the runtime that is left after the last round."""
    if _Here.runtime is not None:
        _Here.runtime.close()
        _Here.runtime = None
