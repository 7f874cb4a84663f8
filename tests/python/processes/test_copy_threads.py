"""Several threads share long copies from another process's memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from support.pool import RankPool, own_rank
from support.reference import same_bits
from torch_axon.runtime import AccessDenied, Blocks, Peer, Remote, Runtime

NUM_THREADS = 4
NUM_BYTES = 9_000_001
DEADLINE_S = 60.0


def _pattern(seed: int, num_bytes: int = NUM_BYTES) -> torch.Tensor:
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def _names_of_threads() -> Iterator[str]:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            yield (thread / "comm").read_text().strip()


def _num_helpers() -> int:
    """Returns the number of helpers. It waits for them, since each names itself only once a core runs it."""
    deadline = time.monotonic() + DEADLINE_S
    while (number := [*_names_of_threads()].count("axon-copy")) < NUM_THREADS - 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    return number


def _form_group(store: str) -> int:
    os.environ["AXON_COPY_THREADS"] = str(NUM_THREADS)
    dist.init_process_group("axon", init_method=f"file://{store}", rank=own_rank(), world_size=2)
    return own_rank()


def _exchange_messages(store: str) -> int:
    rank = _form_group(store)
    for num_bytes in (1 << 21, NUM_BYTES, 40_000_003):
        received = torch.zeros(num_bytes, dtype=torch.uint8)
        sends = dist.isend(_pattern(rank, num_bytes), 1 - rank)
        dist.recv(received, 1 - rank)
        assert sends is not None
        sends.wait()
        same_bits(received, _pattern(1 - rank, num_bytes))
    data = torch.arange(4_000_003, dtype=torch.float64) + rank
    dist.all_reduce(data)
    same_bits(data, torch.arange(4_000_003, dtype=torch.float64) * 2 + 1)
    return _num_helpers()


def test_messages_of_any_length_arrive_whole(tmp_path: Path) -> None:
    with RankPool(2, meeting="none") as ranks:
        assert ranks.run(_exchange_messages, str(tmp_path / "store")) == [NUM_THREADS - 1] * 2


def _read_and_write(peer: Peer, remote: Remote) -> None:
    for begin, end in ((0, NUM_BYTES), (1, NUM_BYTES - 3), (5, 2_097_157)):
        into = torch.zeros(end - begin, dtype=torch.uint8)
        peer.read(remote[begin:end], into).result(DEADLINE_S)
        same_bits(into, _pattern(1)[begin:end])
    ids = np.random.default_rng(3).permutation(2000).astype(np.int32)
    into = torch.zeros(2000 * 4096, dtype=torch.uint8)
    peer.plan("read", Blocks(into, 4096), Blocks(remote, 4096, count=2000)).post(ids, ids).result(DEADLINE_S)
    same_bits(into, _pattern(1)[: into.numel()])
    peer.write(remote, _pattern(2), notify=b"written").result(DEADLINE_S)


def _transfer(store: str) -> int:
    """Rank 0 owns the memory, and rank 1 reads and writes it."""
    rank = _form_group(store)
    with Runtime(f"rank {rank}", timeout=DEADLINE_S) as runtime:
        memory = _pattern(1)
        region = runtime.expose(memory, "rw", name="memory")
        found: list[tuple[bytes, bytes]] = [(b"", b"")] * 2
        dist.all_gather_object(found, (runtime.address, region.handle()))
        peer = runtime.connect(found[0][0]) if rank == 1 else None
        remote = None if peer is None else peer.open(found[0][1])
        if peer is not None and remote is not None:
            _read_and_write(peer, remote)
        else:
            assert [tag for _, tag in runtime.notifications(timeout=DEADLINE_S)] == [b"written"]
            same_bits(memory, _pattern(2))
            assert region.close()
        dist.barrier()
        if peer is not None and remote is not None:
            with pytest.raises(AccessDenied, match="the region 'memory' is closed"):
                peer.read(remote, torch.empty(NUM_BYTES, dtype=torch.uint8)).result(DEADLINE_S)
        dist.barrier()
        return _num_helpers()


def test_one_sided_transfers_move_every_byte(tmp_path: Path) -> None:
    with RankPool(2, meeting="none") as ranks:
        assert ranks.run(_transfer, str(tmp_path / "store")) == [NUM_THREADS - 1] * 2
