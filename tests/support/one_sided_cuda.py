"""Processes for the tests of one-sided transfers of CUDA memory: an owner and an initiator, and what they do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from support.hosts import ADDRESSES, move_to, two_hosts
from support.pool import RankPool
from torch_axon.runtime import Peer, Region, Runtime, Transfer

SECRET = b"a secret of both hosts"
DEADLINE_S = 60.0
NUM_BYTES = 9_000_001
CHUNK = 16 << 20
BOTH = ("cpu", "cuda")


class Here:
    """The state of a process of these tests between its tasks."""

    runtime: Runtime
    server: Peer
    memory: dict[str, torch.Tensor]
    regions: dict[str, Region]
    posted: list[Transfer]


def pattern(num_bytes: int, seed: int, device: str, first: int = 0) -> torch.Tensor:
    """Returns bytes that depend on their position and the seed only, on all devices alike."""
    chunks = []
    for begin in range(first, first + num_bytes, CHUNK):
        count = min(CHUNK, first + num_bytes - begin)
        numbers = torch.arange(begin, begin + count, dtype=torch.int64, device=device)
        chunks.append((((numbers + 7 * seed) * 2_654_435_761) >> 11).to(torch.uint8))
    return torch.cat(chunks) if chunks else torch.empty(0, dtype=torch.uint8, device=device)


def equal(tensor: torch.Tensor, seed: int, first: int = 0) -> bool:
    return torch.equal(tensor, pattern(tensor.numel(), seed, str(tensor.device), first))


def shifted(num_bytes: int, device: str, shift: int) -> torch.Tensor:
    """Returns zeros at an address that is `shift` beyond a multiple of 256."""
    return torch.zeros(num_bytes + shift, dtype=torch.uint8, device=device)[shift:]


def serve(host: str) -> int:
    Here.runtime = Runtime("owner", secret=SECRET)
    Here.memory, Here.regions = {}, {}
    return Here.runtime.listen(host)


def connect(host: str, port: int) -> int:
    Here.runtime = Runtime("initiator", secret=SECRET)
    Here.server = Here.runtime.connect((host, port))
    Here.posted = []
    return Here.runtime.incarnation


def expose(device: str, num_bytes: int = NUM_BYTES, access: str = "rw", shift: int = 0) -> bytes:
    memory = shifted(num_bytes, device, shift)
    memory.copy_(pattern(num_bytes, 1, device))
    Here.memory[device] = memory
    Here.regions[device] = Here.runtime.expose(memory, access, name=f"{device} memory")
    return Here.regions[device].handle()


def owner_has(device: str, seed: int, offset: int = 0, num_bytes: int | None = None) -> bool:
    stop = None if num_bytes is None else offset + num_bytes
    return equal(Here.memory[device][offset:stop], seed, offset)


def close_region(device: str, timeout: float) -> tuple[bool, list[str]]:
    region = Here.regions[device]
    return region.close(timeout), region.holders


def close_all() -> None:
    for region in Here.regions.values():
        assert region.close(DEADLINE_S), region.holders
    Here.regions.clear()
    Here.memory.clear()


def end() -> None:
    Here.runtime.close(drain=False)


def take(tag: bytes) -> None:
    [(_, got)] = Here.runtime.notifications(timeout=DEADLINE_S)
    assert got == tag


def gpu_works() -> bool:
    return bool((torch.ones(1000, device="cuda") * 2).sum().item() == 2000)


class Pair:
    """The processes of an owner and an initiator."""

    def __init__(
        self, owner: RankPool, initiator: RankPool, addresses: tuple[str, ...] = ("127.0.0.1",) * 2, maps: bool = True
    ) -> None:
        self._owner, self._initiator = owner, initiator
        self.path = "cuda ipc" if maps else "messages"  # of CUDA memory
        self.addresses = addresses
        self.has_way_back = False
        [port] = owner.run(serve, addresses[0], timeout_s=DEADLINE_S)
        [self.incarnation] = initiator.run(connect, addresses[0], port, timeout_s=DEADLINE_S)

    @property
    def broken(self) -> bool:
        return self._owner.broken or self._initiator.broken

    def owner(self, task: Callable[..., Any], *args: Any) -> Any:
        return self._owner.run(task, *args, timeout_s=2 * DEADLINE_S)[0]

    def initiator(self, task: Callable[..., Any], *args: Any) -> Any:
        return self._initiator.run(task, *args, timeout_s=2 * DEADLINE_S)[0]

    def both(self, of_owner: tuple[Any, ...], of_initiator: tuple[Any, ...]) -> tuple[Any, Any]:
        """Runs a task on each side at the same time."""
        self._owner.start(*of_owner)
        self._initiator.start(*of_initiator)
        return self._owner.finish(2 * DEADLINE_S)[0], self._initiator.finish(2 * DEADLINE_S)[0]

    def close(self) -> None:
        for pool in (self._initiator, self._owner):
            if not pool.broken:
                pool.run(end)


def pool_on(device: str, gpu: int) -> RankPool:
    return RankPool(1, meeting="none", device=device, first_gpu=gpu)


class Pairs:
    """The pairs of this module, each made when it is first needed, and again after a failure in its processes."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Pair, ExitStack]] = {}

    def get(self, kind: str) -> Pair:
        if kind in self._made and self._made[kind][0].broken:
            self._end(*self._made.pop(kind))
        if kind not in self._made:
            with ExitStack() as stack:
                pair = self._make(kind, stack)
                self._made[kind] = (pair, stack.pop_all())
        return self._made[kind][0]

    def _make(self, kind: str, stack: ExitStack) -> Pair:
        hosts = stack.enter_context(two_hosts()) if kind == "two hosts" else None
        device = "staged" if kind == "not mapped" else "cuda"
        owner, initiator = (stack.enter_context(pool_on(device, gpu)) for gpu in range(2))
        for host, pool in enumerate((owner, initiator)):
            if hosts is not None:
                pool.run(move_to, hosts.names[host])
        return Pair(owner, initiator, ADDRESSES if hosts else ("127.0.0.1",) * 2, kind == "mapped")

    def close(self) -> None:
        for pair, stack in self._made.values():
            self._end(pair, stack)

    @staticmethod
    def _end(pair: Pair, stack: ExitStack) -> None:
        with stack:
            pair.close()
