"""Runs the doctor: as a rank if started by a launcher, otherwise as the launcher of a few ranks on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistError, DistStoreError
from torch.distributed.rendezvous import rendezvous

from torch_axon.doctor.alone import run_alone
from torch_axon.doctor.facts import Facts, collect
from torch_axon.doctor.live import look
from torch_axon.doctor.probe import Probe, probe
from torch_axon.doctor.report import Report, judge

# Other ranks may notice a failure only when the group's timeout has passed, and then need time to report it.
_REPORTING = timedelta(seconds=5)


def main(command_line: Sequence[str]) -> int:
    """Runs the doctor and returns the exit status: 0 healthy, 1 jobs will fail, 2 wrong usage."""
    arguments = _parse(command_line)
    if not arguments.json and find_spec("rich") is None:
        print("axon: tables need rich: pip install rich, or ask for --json", file=sys.stderr)
        return 2
    if arguments.ps or arguments.attach is not None:
        return _show_live(arguments.attach, arguments.json)
    if "RANK" not in os.environ:
        return run_alone(arguments.ranks or max(2, torch.cuda.device_count()), command_line)
    report = examine(timedelta(seconds=arguments.timeout))
    if report is None:
        return 0
    if arguments.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        from torch_axon.doctor.terminal import show  # the only part that needs rich

        show(report)
    return 0 if report.is_healthy else 1


def _show_live(pid: int | None, as_json: bool) -> int:
    try:
        view = look(pid)
    except ValueError as error:
        print(f"axon: argument --attach: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps(view.as_dict(), indent=2))
    else:
        from torch_axon.doctor.live_terminal import show  # needs rich

        show(view)
    return 0


def _parse(command_line: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torch_axon.doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.add_argument("--ranks", type=int, help="number of ranks, without a launcher (default: 2, or one per GPU)")
    live = parser.add_mutually_exclusive_group()
    live.add_argument(
        "--ps", action="store_true", help="show the calls of all jobs of this user on this host, and exit"
    )
    live.add_argument("--attach", type=int, metavar="PID", help="show the calls of the job of this process, and exit")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a rank may take to answer (default: 60)")
    return parser.parse_args(command_line)


def examine(timeout: timedelta) -> Report | None:
    """Examines the job. This is a collective: all ranks call it.

    The ranks exchange their results through a store of torch's, which works even if torch_axon does not.

    Args:
        timeout: how long to wait for the other ranks

    Returns:
        The report on rank 0, None on the other ranks.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    facts = collect(rank, int(os.environ.get("LOCAL_RANK", rank)))
    try:
        store, _, _ = next(rendezvous("env://", timeout=timeout))
    except DistError as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        return judge(size, [facts], [Probe(rank, failure=f"not all ranks reached the store at {address}: {error}")])
    store = PrefixStore("doctor", store)
    store.set(f"facts/{rank}", pickle.dumps(facts).hex())
    found = Probe(rank)
    if facts.failure is None:
        found = probe(PrefixStore("group", store), rank, size, facts.gpu, timeout)
    store.set(f"probe/{rank}", pickle.dumps(found).hex())
    if rank != 0:
        return None
    all_facts: list[Facts] = _read_all(store, "facts", size, timeout)
    probes: list[Probe] = _read_all(store, "probe", size, timeout + _REPORTING)
    return judge(size, all_facts, probes)


def _read_all(store: Store, what: str, size: int, timeout: timedelta) -> list[Any]:
    """Returns the results of all ranks that report in time."""
    deadline = time.monotonic() + timeout.total_seconds()
    found = []
    for rank in range(size):
        with contextlib.suppress(DistStoreError):
            left = timedelta(seconds=max(0.001, deadline - time.monotonic()))
            store.wait([f"{what}/{rank}"], left)
            found.append(pickle.loads(bytes.fromhex(store.get(f"{what}/{rank}").decode())))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
