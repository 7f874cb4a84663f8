"""Compares torch_axon.nixl with the wheel of NIXL: one program, run with either module, alternating in one run.

    python benchmarks/one_sided_beside_nixl.py [--memory cpu|cuda] [--sizes 64,1M,16M,256M] [--lists 4096x64K,32768x4K]
        [--rounds 3] [--two-hosts] [--modules torch_axon.nixl,nixl_cu13] [--json FILE]

Needs the wheel (requirements/nixl.txt) in this environment. An owner and an initiator run on this host, or in two
network namespaces (needs root). Each round starts a pair of processes for each module, in an order that rotates, so
that no agent of one module runs beside those of the other. A figure is the median over the rounds of each round's
median, and the table ends with NIXL's figure divided by ours.

- "write 64" to "read 256M": one block, from `transfer` until `check_xfer_state` says DONE.
- "write 4096x64K": shuffled blocks of prepared lists: `make_prepped_xfer`, `transfer`, and as above.
- "prepare": `prep_xfer_dlist` of the blocks there, as [n, 3]; "make": `make_prepped_xfer`; both in ns for each block.
- "notification": there and back, both ends polling.
- "idle": the share of a core that an owner takes which does nothing, in percent.

Results are checked after the last sample. With --memory cuda the owner's memory is on GPU 0, and the initiator's on the
last one.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from samples import blocks_of, median_seconds, num_bytes_of
from two_hosts import clean_up_when_told_to_end, two_hosts

_BYTES_PER_ROUND = 128 << 20
_IDLE_S = 2.0
_LONGEST_S = 120.0
_OWNER, _INITIATOR = "owner", "initiator"
_NUM_NOTIFICATIONS = 300
_MESSAGE, _RESULT = "message ", "result "


# ---- The program, in both processes. The parent passes lines from one to the other.


def _say(value: Any) -> None:
    print(_MESSAGE + json.dumps(value), flush=True)


def _hear() -> Any:
    line = sys.stdin.readline()
    if not line:
        sys.exit("the other process has ended")
    return json.loads(line)


class _Side:
    """An agent, and the memory that it registers."""

    def __init__(self, own: argparse.Namespace, name: str) -> None:
        import torch

        api = importlib.import_module(f"{own.module}._api")
        sizes = [num_bytes_of(size) for size in own.sizes] + [count * size for count, size in map(blocks_of, own.lists)]
        gpu = 0 if name == _OWNER else torch.cuda.device_count() - 1
        self.device = torch.device("cuda", gpu) if own.memory == "cuda" else torch.device("cpu")
        if own.memory == "cuda":
            torch.cuda.set_device(self.device)
        self.memory = torch.zeros(max(sizes), dtype=torch.uint8, device=self.device)
        self.agent = api.nixl_agent(name)
        self.kind = "VRAM" if own.memory == "cuda" else "DRAM"
        self.place = (self.memory.data_ptr(), max(self.memory.get_device(), 0))
        self.settle()
        self.agent.register_memory(self.memory)

    def settle(self) -> None:
        """Waits until the memory is what the program has made it: NIXL knows no streams."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def meet(self) -> tuple[str, tuple[int, int]]:
        """Exchanges metadata. Returns the other agent's name, and where its memory is."""
        _say([base64.b64encode(self.agent.get_agent_metadata()).decode(), self.place])
        metadata, place = _hear()
        name = self.agent.add_remote_agent(base64.b64decode(metadata)).decode()
        return name, (place[0], place[1])


def _await_notification(agent: Any) -> None:
    until = time.monotonic() + _LONGEST_S
    while not agent.get_new_notifs():
        if time.monotonic() > until:
            sys.exit("no notification arrived")


def _own(own: argparse.Namespace) -> None:
    side = _Side(own, _OWNER)
    name, _ = side.meet()
    time.sleep(0.2)  # an agent may finish its preparations in the background
    began = time.process_time()
    time.sleep(_IDLE_S)
    _say(100 * (time.process_time() - began) / _IDLE_S)
    while (request := _hear()) != "end":
        if request == "echo":
            _say("ready")
            for _ in range(_NUM_NOTIFICATIONS):
                _await_notification(side.agent)
                side.agent.send_notif(name, b"back")
        else:  # sum up this many bytes
            side.settle()
            _say(_digest(side.memory[:request]))


def _digest(memory: Any) -> int:
    import torch

    weights = torch.arange(1, memory.numel() + 1, dtype=torch.int64, device=memory.device)
    return int((memory.to(torch.int64) * weights).sum())


class _Initiator:
    def __init__(self, own: argparse.Namespace) -> None:
        import torch

        self.own = own
        self.side = _Side(own, _INITIATOR)
        self.name, self.there = self.side.meet()
        self.figures: dict[str, float] = {"idle": _hear()}
        self.side.memory.copy_(torch.randint(0, 256, self.side.memory.shape, dtype=torch.uint8))
        self.side.settle()

    def run(self) -> dict[str, float]:
        self.notifications()
        for size in self.own.sizes:
            self.block(size)
        for text in self.own.lists:
            self.list(text)
        _say("end")
        return self.figures

    def finish(self, handle: Any) -> None:
        agent = self.side.agent
        state = agent.transfer(handle)
        until = time.monotonic() + _LONGEST_S
        while state != "DONE":
            state = agent.check_xfer_state(handle)
            if state == "ERR" or time.monotonic() > until:
                sys.exit(f"a transfer ended with {state}")

    def sample(self, name: str, num_bytes: int, operation: Callable[[], object], scale: float = 1e6) -> None:
        self.figures[name] = median_seconds(operation, num_bytes, _BYTES_PER_ROUND) * scale

    def check(self, num_bytes: int) -> None:
        """Compares the memory here with the owner's."""
        _say(num_bytes)
        if _hear() != _digest(self.side.memory[:num_bytes]):
            sys.exit(f"{self.own.module}: {num_bytes} bytes differ")

    def clear(self, num_bytes: int) -> None:
        self.side.memory[:num_bytes] = 0
        self.side.settle()

    def block(self, size: str) -> None:
        agent, num_bytes = self.side.agent, num_bytes_of(size)
        here = agent.get_xfer_descs([(self.side.place[0], num_bytes, self.side.place[1])], self.side.kind)
        there = agent.get_xfer_descs([(self.there[0], num_bytes, self.there[1])], self.side.kind)
        for verb in ("WRITE", "READ"):
            handle = agent.initialize_xfer(verb, here, there, self.name)
            if verb == "READ":
                self.clear(num_bytes)
            self.sample(f"{verb.lower()} {size}", num_bytes, lambda handle=handle: self.finish(handle))
            self.check(num_bytes)
            agent.release_xfer_handle(handle)

    def list(self, text: str) -> None:
        import numpy as np

        agent = self.side.agent
        count, size = blocks_of(text)
        ids = np.random.default_rng(1).permutation(count).astype(np.int64)
        rows = np.empty((count, 3), dtype=np.uint64)
        sides = []
        for name, (address, device) in (("", self.side.place), (self.name, self.there)):
            rows[:, 0] = address + np.arange(count) * size
            rows[:, 1], rows[:, 2] = size, device
            descs = rows.copy()
            sides.append(agent.prep_xfer_dlist(name, descs, self.side.kind))

        def prepare() -> None:
            agent.release_dlist_handle(agent.prep_xfer_dlist(self.name, descs, self.side.kind))

        def make(verb: str) -> Any:
            return agent.make_prepped_xfer(verb, sides[0], ids, sides[1], ids)

        def move(verb: str) -> None:
            handle = make(verb)
            self.finish(handle)
            agent.release_xfer_handle(handle)

        self.sample(f"prepare {text}", count * size, prepare, 1e9 / count)
        self.sample(f"make {text}", count * size, lambda: agent.release_xfer_handle(make("READ")), 1e9 / count)
        for verb in ("WRITE", "READ"):
            if verb == "READ":
                self.clear(count * size)
            self.sample(f"{verb.lower()} {text}", count * size, lambda verb=verb: move(verb))
            self.check(count * size)

    def notifications(self) -> None:
        _say("echo")
        _hear()
        times = []
        for _ in range(_NUM_NOTIFICATIONS):
            began = time.perf_counter()
            self.side.agent.send_notif(self.name, b"there")
            _await_notification(self.side.agent)
            times.append(time.perf_counter() - began)
        self.figures["notification"] = statistics.median(times) * 1e6


# ---- The parent


@contextmanager
def _prefixes(own: argparse.Namespace) -> Iterator[tuple[list[str], list[str]]]:
    if not own.two_hosts:
        yield [], []
        return
    clean_up_when_told_to_end()
    with two_hosts() as hosts:
        yield hosts.prefix(0), hosts.prefix(1)


def _pass_on(source: IO[str], target: IO[str], results: list[str]) -> None:
    """Passes on messages, and keeps results. Other lines are logs."""
    for line in source:
        if line.startswith(_RESULT):
            results.append(line.removeprefix(_RESULT))
        elif line.startswith(_MESSAGE):
            target.write(line.removeprefix(_MESSAGE))
            target.flush()


def _measure(module: str, prefixes: tuple[list[str], list[str]]) -> dict[str, float]:
    """Runs a pair of processes with one module."""
    command = [sys.executable, __file__, *sys.argv[1:], "--module", module, "--role"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NIXL_LOG_LEVEL": "ERROR"}
    if "--two-hosts" in sys.argv:  # namespaces do not hide shared memory and CUDA IPC from UCX
        environment["UCX_TLS"] = "tcp,self,cuda_copy"
    pair = [
        subprocess.Popen(
            [*prefix, *command, role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for prefix, role in zip(prefixes, (_OWNER, _INITIATOR), strict=True)
    ]
    owner, initiator = pair
    results: list[str] = []
    ends = [(owner.stdout, initiator.stdin), (initiator.stdout, owner.stdin)]
    threads = [threading.Thread(target=_pass_on, args=(*end, results), daemon=True) for end in ends]
    try:
        for thread in threads:
            thread.start()
        initiator.wait(900)
        threads[1].join(10)
    finally:
        for process in pair:
            process.kill()
            process.wait()
    if not results:
        sys.exit(f"{module}: the initiator ended with status {initiator.returncode}, without results")
    figures: dict[str, float] = json.loads(results[0])
    return figures


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", default="64,1M,16M,256M")
    parser.add_argument("--lists", default="4096x64K,4096x16K,32768x4K")
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--two-hosts", action="store_true")
    parser.add_argument("--modules", default="torch_axon.nixl,nixl_cu13")
    parser.add_argument("--json")
    parser.add_argument("--module", help=argparse.SUPPRESS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    own = parser.parse_args()
    own.sizes = own.sizes.split(",") if own.sizes else []
    own.lists = own.lists.split(",") if own.lists else []
    own.modules = own.modules.split(",")
    return own


def _print(figures: dict[str, dict[str, float]]) -> None:
    ours, *others = figures
    print(f"{'':24} {' '.join(f'{module:>16}' for module in figures)}   other / {ours}")
    for name, figure in figures[ours].items():
        values = [figures[module][name] for module in figures]
        unit = "%" if name == "idle" else "ns" if name.startswith(("prepare", "make")) else "µs"
        ratios = " ".join(f"{figures[other][name] / figure:8.2f}" for other in others) if figure else "–"
        print(f"{name:24} {' '.join(f'{value:13.2f} {unit:>2}' for value in values)}   {ratios}", flush=True)


def main() -> int:
    own = _parsed()
    if own.role == _OWNER:
        _own(own)
        os._exit(0)  # without what an agent does at its end
    if own.role == _INITIATOR:
        print(_RESULT + json.dumps(_Initiator(own).run()), flush=True)
        os._exit(0)
    rounds: dict[str, list[dict[str, float]]] = {module: [] for module in own.modules}
    with _prefixes(own) as prefixes:
        order = list(own.modules)
        for _ in range(own.rounds):
            for module in order:
                rounds[module].append(_measure(module, prefixes))
            order = order[1:] + order[:1]
    figures = {
        module: {name: statistics.median(each[name] for each in found) for name in found[0]}
        for module, found in rounds.items()
    }
    _print(figures)
    if own.json:
        Path(own.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
