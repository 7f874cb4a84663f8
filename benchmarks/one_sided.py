"""Compares one-sided transfers with calls that carry the same bytes, alternating in one run.

    python benchmarks/one_sided.py [--sizes 64,64K,1M,16M,256M] [--blocks 4K,64K] [--lists 32768x4K] [--rounds 5]
        [--two-hosts] [--rate 10gbit] [--json FILE] [--memory cuda]

Two processes on this host, or in two network namespaces (needs root). "one-sided" is Peer.write and Peer.read of one
block, or writev and readv of 1,024 blocks; "invoke" is a call whose argument or answer is the same memory, received in
place. The long lists of --lists are moved by writev and readv ("one-sided") and by a plan ("plan"), whose numbers are
shuffled. Each round measures both sides, in an order that rotates. All results are checked after the last round. A
figure is the median over the rounds of each round's median, in µs.

With --memory cuda the memory of both sides is that of GPUs: the owner's of GPU 0, and the initiator's of the last one.
It measures one-sided transfers only, by default of 64, 1M, 16M and 256M, and of the lists 4096x64K and 32768x4K. A
sample is the time from the call until the result is known to this process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from samples import blocks_of, median_seconds, num_bytes_of
from two_hosts import ADDRESSES, clean_up_when_told_to_end, two_hosts

_SECRET = b"secret of one_sided.py"
_PORT = 29533
_NUM_BLOCKS = 1024
_BYTES_PER_ROUND = 256 << 20
_TIMEOUT_S = 60.0
_DEFAULTS = {  # sizes, blocks and lists
    "cpu": ("64,64K,1M,16M,256M", "4K,64K", "32768x4K"),
    "cuda": ("64,1M,16M,256M", "", "4096x64K,32768x4K"),
}

Figures = dict[str, list[float]]  # by "side operation size", in µs; one figure for each round


def _own(host: str, num_bytes: int, kind: str) -> None:
    import torch

    from torch_axon.runtime import Coming, Runtime

    memory = torch.zeros(num_bytes, dtype=torch.uint8, device="cuda:0" if kind == "cuda" else "cpu")

    def into_memory(coming: Coming) -> list[torch.Tensor]:
        return [memory[: each.shape.numel()] for each in coming]

    with Runtime("owner", secret=_SECRET) as runtime:
        handle = runtime.expose(memory, "rw", name="benchmark").handle()
        runtime.register("handle")(lambda: handle)
        runtime.register("load")(lambda size: memory[:size])
        runtime.register("store", memory=into_memory)(lambda tensor: None)
        runtime.listen(host, _PORT)
        sys.stdin.read()


def _random(num_bytes: int, remote: Any) -> Any:
    """Returns random bytes on the same kind of device as the remote memory."""
    import torch

    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=remote.device)


def _cases(peer: Any, remote: Any, sizes: list[str], blocks: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    import torch

    for size in sizes:
        n = num_bytes_of(size)
        data = _random(n, remote)
        part = remote[:n]
        into = torch.zeros_like(data)
        writes = {"one-sided": lambda part=part, data=data: peer.write(part, data).result(_TIMEOUT_S)}
        reads = {"one-sided": lambda part=part, into=into: peer.read(part, into).result(_TIMEOUT_S)}
        if remote.device == "cpu":
            writes["invoke"] = lambda data=data: peer.invoke("store", data).result(_TIMEOUT_S)
            reads["invoke"] = lambda n=n: peer.invoke("load", n).result(_TIMEOUT_S)
        yield f"write {size}", n, writes
        yield f"read {size}", n, reads
        assert torch.equal(into, data), f"read {size} differs from what was written"
    for size in blocks:
        n = num_bytes_of(size)
        data = _random(_NUM_BLOCKS * n, remote).view(_NUM_BLOCKS, n)
        parts = [remote[i * n : (i + 1) * n] for i in range(_NUM_BLOCKS)]
        sources = list(data)
        yield (
            f"writev {_NUM_BLOCKS} x {size}",
            data.numel(),
            {"one-sided": lambda parts=parts, sources=sources: peer.writev(parts, sources).result(_TIMEOUT_S)},
        )
        received = torch.zeros_like(data)
        blocks_here = list(received)
        yield (
            f"readv {_NUM_BLOCKS} x {size}",
            data.numel(),
            {"one-sided": lambda parts=parts, here=blocks_here: peer.readv(parts, here).result(_TIMEOUT_S)},
        )
        assert torch.equal(received, data), f"readv of {size} differs from what was written"


def _list_cases(peer: Any, remote: Any, lists: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    import numpy as np
    import torch

    from torch_axon.runtime import Blocks

    for text in lists:
        count, size = blocks_of(text)
        parts = [remote[i * size : (i + 1) * size] for i in range(count)]
        blocks_there = Blocks(remote, size, count=count)
        ids = np.random.default_rng(1).permutation(count).astype(np.int32)
        data = _random(count * size, remote).view(count, size)
        received = torch.zeros_like(data)
        shuffled = [parts[i] for i in ids]
        for verb, memory, post in (("write", data, peer.writev), ("read", received, peer.readv)):
            plan = peer.plan(verb, Blocks(memory, size), blocks_there)
            here = [memory[i] for i in ids]
            yield (
                f"{verb}v {text}",
                data.numel(),
                {
                    "one-sided": lambda post=post, here=here, there=shuffled: post(there, here).result(_TIMEOUT_S),
                    "plan": lambda plan=plan, ids=ids: plan.post(ids, ids).result(_TIMEOUT_S),
                },
            )
        assert torch.equal(received, data), f"readv {text} differs from what was written"


def _initiate(host: str, own: argparse.Namespace) -> None:
    import torch

    from torch_axon.runtime import Runtime

    figures: Figures = {}
    sizes: dict[str, int] = {}
    if own.memory == "cuda":
        torch.cuda.set_device(torch.cuda.device_count() - 1)
    with Runtime("initiator", secret=_SECRET) as runtime:
        peer = runtime.connect((host, _PORT), wait=30.0)
        remote = peer.open(peer.invoke("handle").result())
        print(f"# path: {remote.path}", file=sys.stderr)
        cases = chain(_cases(peer, remote, own.sizes, own.blocks), _list_cases(peer, remote, own.lists))
        for name, num_bytes, sides in cases:
            order = list(sides)
            for _ in range(own.rounds):
                for side in order:
                    sizes[f"{side} {name}"] = num_bytes
                    seconds = median_seconds(sides[side], num_bytes, _BYTES_PER_ROUND)
                    figures.setdefault(f"{side} {name}", []).append(seconds * 1e6)
                order = order[1:] + order[:1]
    print(json.dumps({name: [statistics.median(rounds), sizes[name]] for name, rounds in figures.items()}))


@contextmanager
def _places(own: argparse.Namespace) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields the owner's address, and the prefixes of the two commands."""
    if not own.two_hosts:
        yield "127.0.0.1", [], []
        return
    clean_up_when_told_to_end()
    with two_hosts() as hosts:
        if own.rate:
            hosts.limit(own.rate)
        yield ADDRESSES[0], hosts.prefix(0), hosts.prefix(1)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes")
    parser.add_argument("--blocks")
    parser.add_argument("--lists")
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--two-hosts", action="store_true")
    parser.add_argument("--rate")
    parser.add_argument("--json")
    parser.add_argument("--role", nargs=2, help=argparse.SUPPRESS)
    own = parser.parse_args()
    for name, default in zip(("sizes", "blocks", "lists"), _DEFAULTS[own.memory], strict=True):
        text = default if getattr(own, name) is None else getattr(own, name)
        setattr(own, name, text.split(",") if text else [])
    return own


def main() -> int:
    own = _parsed()
    if own.role:
        role, host = own.role
        lists = [count * size for count, size in map(blocks_of, own.lists)]
        largest = max([num_bytes_of(size) for size in own.sizes] + [_NUM_BLOCKS * num_bytes_of(b) for b in own.blocks])
        _own(host, max([largest, *lists]), own.memory) if role == "owner" else _initiate(host, own)
        return 0
    command = [sys.executable, __file__, *sys.argv[1:], "--role"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with _places(own) as (host, owner_prefix, initiator_prefix):
        owner = subprocess.Popen([*owner_prefix, *command, "owner", host], stdin=subprocess.PIPE, env=environment)
        try:
            done = subprocess.run(
                [*initiator_prefix, *command, "initiator", host], stdout=subprocess.PIPE, check=True, env=environment
            )
        finally:
            owner.kill()
            owner.wait()
    measured: dict[str, tuple[float, int]] = json.loads(done.stdout)
    for name, (us, num_bytes) in measured.items():
        print(f"{name:40} {us:12.1f} µs {num_bytes / us / 1e3:9.2f} GB/s")
    figures = {name: us for name, (us, _) in measured.items()}
    if own.json:
        Path(own.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
