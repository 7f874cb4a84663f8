"""One-sided transfers whose bytes the link between two hosts compresses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.hosts import ADDRESSES, Hosts, move_to, two_hosts
from support.pool import RankPool
from torch_axon.runtime import Blocks, Peer, Remote, Runtime, Transfer

SECRET = b"a secret of both hosts"
DEADLINE_S = 60.0
NUM_ELEMENTS = 2 << 20
BLOCK_BYTES = 1 << 20


class _Here:
    """The state of a process of these tests between its tasks."""

    runtime: Runtime
    memory: torch.Tensor
    peer: Peer
    remote: Remote


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[RankPool, RankPool]]:
    """The processes of an owner and an initiator, which compress whatever gets shorter."""
    with (
        two_hosts() as hosts,
        RankPool(1, meeting="none") as owner,
        RankPool(1, meeting="none") as initiator,
    ):
        _place((owner, initiator), hosts)
        [found] = owner.run(_own)
        initiator.run(_open, *found)
        yield owner, initiator
        for pool in (initiator, owner):
            pool.run(_close)


def _place(pools: tuple[RankPool, RankPool], hosts: Hosts) -> None:
    for host, pool in enumerate(pools):
        pool.run(move_to, hosts.names[host])


def _weights(seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_ELEMENTS, generator=generator).mul_(0.02).to(dtype)


def _own() -> tuple[int, bytes]:
    os.environ["AXON_COMPRESS"] = "always"
    _Here.runtime = Runtime("owner", secret=SECRET, timeout=DEADLINE_S)
    _Here.memory = torch.zeros(NUM_ELEMENTS * 4, dtype=torch.uint8)
    region = _Here.runtime.expose(_Here.memory, "rw")
    return _Here.runtime.listen(ADDRESSES[0]), region.handle()


def _open(port: int, handle: bytes) -> None:
    os.environ["AXON_COMPRESS"] = "always"
    _Here.runtime = Runtime("initiator", secret=SECRET, timeout=DEADLINE_S)
    _Here.peer = _Here.runtime.connect((ADDRESSES[0], port))
    _Here.remote = _Here.peer.open(handle)
    deadline = time.monotonic() + DEADLINE_S
    while max(_move("block", torch.bfloat16, as_bytes=True, compress=torch.bfloat16)) >= 1:
        # Messages that leave before the rails are open are not compressed.
        assert time.monotonic() < deadline, f"nothing is compressed within {DEADLINE_S:.0f} s"


def _close() -> None:
    _Here.runtime.close()


def _num_bytes_on_wire() -> int:
    """Returns how many bytes this host has received and sent over its only device."""
    line = next(line for line in Path("/proc/self/net/dev").read_text().splitlines() if "eth0" in line)
    counts = line.split(":")[1].split()
    return int(counts[0]) + int(counts[8])


def _post(how: str, verb: str, data: torch.Tensor, compress: str | torch.dtype) -> Transfer:
    remote = _Here.remote[: data.nbytes]
    if how == "plan":
        ids = torch.arange(data.nbytes // BLOCK_BYTES, dtype=torch.int32)
        plan = _Here.peer.plan(verb, Blocks(data, BLOCK_BYTES), Blocks(remote, BLOCK_BYTES))
        return plan.post(ids, ids)
    if how in ("list", "list of two types"):
        first, second = data.chunk(2)
        parts = [first, second if how == "list" else second.view(torch.uint8)]
        post_list = _Here.peer.writev if verb == "write" else _Here.peer.readv
        return post_list([remote[: first.nbytes], remote[first.nbytes :]], parts, compress=compress)
    post = _Here.peer.write if verb == "write" else _Here.peer.read
    return post(remote, data, compress=compress)


def _move_weights(how: str, data: torch.Tensor, compress: str | torch.dtype) -> list[float]:
    """Writes the data, and reads them back. Returns the bytes on the wire for each byte, of both."""
    ratios = []
    sent = data.clone()
    for verb in ("write", "read"):
        before = _num_bytes_on_wire()
        _post(how, verb, data, compress).result(DEADLINE_S)
        ratios.append((_num_bytes_on_wire() - before) / data.nbytes)
        if verb == "write":
            data.zero_()
    assert torch.equal(data.view(torch.uint8), sent.view(torch.uint8))
    return ratios


def _move(how: str, dtype: torch.dtype, as_bytes: bool, compress: str | torch.dtype) -> list[float]:
    data = _weights(1, dtype)
    return _move_weights(how, data.view(torch.uint8) if as_bytes else data, compress)


@pytest.mark.parametrize("how", ["block", "list", "plan"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.85), (torch.float32, 0.95)])
def test_floats_are_compressed_by_themselves(how: str, dtype: torch.dtype, most: float, both) -> None:
    for ratio in both[1].run(_move, how, dtype, False, "auto")[0]:
        assert 0.5 < ratio < most


def test_bytes_are_compressed_as_the_type_that_is_named(both) -> None:
    for ratio in both[1].run(_move, "block", torch.bfloat16, True, torch.bfloat16)[0]:
        assert 0.5 < ratio < 0.85
    for ratio in both[1].run(_move, "block", torch.bfloat16, True, "auto")[0]:
        assert ratio > 1


def test_blocks_of_two_types_move_as_bytes(both) -> None:
    for ratio in both[1].run(_move, "list of two types", torch.bfloat16, False, "auto")[0]:
        assert ratio > 1


def test_nothing_is_compressed_against_the_programs_will(both) -> None:
    for ratio in both[1].run(_move, "block", torch.bfloat16, False, "never")[0]:
        assert ratio > 1


def test_other_values_are_refused() -> None:
    memory = torch.zeros(8, dtype=torch.uint8)
    with Runtime("itself") as runtime:
        peer = runtime.connect(runtime.address)
        remote = peer.open(runtime.expose(memory, "rw").handle())
        with pytest.raises(ValueError, match=r"compress is 'zip'; allowed: 'auto', 'never', torch\.bfloat16"):
            peer.read(remote, memory, compress="zip")
        with pytest.raises(ValueError, match=r"compress is torch\.int8; allowed: 'auto', 'never', torch\.bfloat16"):
            peer.write(remote, memory, compress=torch.int8)
        with pytest.raises(TypeError, match=r"compress is of type bool; allowed: str and torch\.dtype"):
            peer.readv([remote], [memory], compress=True)  # type: ignore[arg-type]
