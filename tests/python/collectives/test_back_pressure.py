"""Ranks run far ahead of others: beyond a bound at the receiver, messages wait at the sender, and no rank fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.hosts import move_to, two_hosts
from support.pool import RankPool
from support.reference import failure

SIZE = 15_000  # float32: 60,000 bytes, which are sent without waiting for the receiver
MESSAGES = 600
BOUND = (4 << 20) // (4 * SIZE)  # messages of this size that a rank holds before they are received
TOKEN_TAG = 77


class Pair:
    """Two ranks, each in a process of its own that has used no group before."""

    def __init__(self, pools: tuple[RankPool, RankPool], store: Path, transports: str) -> None:
        self._pools = pools
        self._store = store
        self._transports = transports

    def start(self, function: Callable[..., Any], *arguments: object) -> None:
        for rank, pool in enumerate(self._pools):
            pool.start(_in_group, str(self._store), rank, self._transports, function, *arguments)

    def run(self, function: Callable[..., Any], *arguments: object) -> list[Any]:
        self.start(function, *arguments)
        return [pool.finish(timeout_s=100)[0] for pool in self._pools]

    def run_until_the_second_dies(self, function: Callable[..., Any]) -> Any:
        self.start(function)
        self._pools[1].finish(dying=[0])
        return self._pools[0].finish()[0]


def _in_group(store: str, rank: int, transports: str, function: Callable[..., Any], *arguments: object) -> object:
    os.environ["AXON_TRANSPORTS"] = transports
    timeout = timedelta(seconds=60)
    dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timeout)
    result = function(*arguments)
    dist.destroy_process_group()
    return result


@pytest.fixture(params=["one host", "one host by ucx", "two hosts"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    transports = "ucx" if request.param == "one host by ucx" else "ucx,rings,cma,cuda"
    with RankPool(1, meeting="none") as one, RankPool(1, meeting="none") as other:
        made = Pair((one, other), tmp_path / "store", transports)
        if request.param != "two hosts":
            yield made
            return
        with two_hosts() as hosts:
            for rank, pool in enumerate((one, other)):
                pool.run(move_to, hosts.names[rank])
            yield made


def _number(number: int, size: int = SIZE) -> torch.Tensor:
    return torch.full((size,), float(number))


def _expect_number(data: torch.Tensor, number: int) -> None:
    assert data[0] == number, f"message {number} is {data[0]}"
    assert data[-1] == number, f"message {number} ends with {data[-1]}"


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def _num_completed_before(works: list[dist.Work], let_others_go_on: Callable[[], object]) -> int:
    """Returns how many are complete before the others receive; all are complete when this returns."""
    num_completed = sum(work.is_completed() for work in works)
    let_others_go_on()
    _wait(works)
    return num_completed


def _send_ahead() -> int | None:
    """A barrier overtakes messages that were sent before it and wait."""
    if dist.get_rank() == 0:
        works = [dist.isend(_number(number), 1) for number in range(MESSAGES)]
        dist.barrier()
        return _num_completed_before(works, dist.barrier)
    dist.barrier()
    dist.barrier()
    data = torch.zeros(SIZE)
    for number in range(MESSAGES):
        dist.recv(data, 0)
        _expect_number(data, number)
    return None


def test_sends_wait_for_their_receives(pair: Pair) -> None:
    completed, _ = pair.run(_send_ahead)
    assert 0 < completed <= BOUND


class _Full:
    """A signal outside the group: the sender has sent as much as the receiver holds."""

    def __init__(self, folder: str) -> None:
        self._store = dist.FileStore(f"{folder}/token", 2)

    def tell(self) -> None:
        self._store.set("full", "yes")

    def wait(self) -> None:
        self._store.wait(["full"])


def _block_ahead(folder: str) -> None:
    """Sends are blocking: the receiver begins once as much has been sent as it holds."""
    full = _Full(folder)
    if dist.get_rank() == 0:
        for number in range(MESSAGES):
            dist.send(_number(number), 1)
            if number == BOUND - 1:
                full.tell()
        return
    full.wait()
    data = torch.zeros(SIZE)
    for number in range(MESSAGES):
        assert dist.recv(data) == 0
        _expect_number(data, number)


def test_blocking_sends_go_on_as_they_are_received(pair: Pair, tmp_path: Path) -> None:
    pair.run(_block_ahead, str(tmp_path))


def _broadcast_ahead() -> int | None:
    if dist.get_rank() == 0:
        works = [dist.broadcast(_number(number), 0, async_op=True) for number in range(MESSAGES)]
        dist.send(torch.zeros(1), 1, tag=TOKEN_TAG)
        return _num_completed_before(works, lambda: dist.send(torch.zeros(1), 1, tag=TOKEN_TAG))
    for _ in range(2):
        dist.recv(torch.zeros(1), 0, tag=TOKEN_TAG)
    for number in range(MESSAGES):
        data = _number(-1)
        dist.broadcast(data, 0)
        _expect_number(data, number)
    return None


def test_broadcasts_wait_for_slow_ranks(pair: Pair) -> None:
    completed, _ = pair.run(_broadcast_ahead)
    assert 0 < completed <= BOUND


def _gather_ahead() -> int | None:
    if dist.get_rank() == 1:
        works = [dist.gather(_number(number), None, 0, async_op=True) for number in range(MESSAGES)]
        dist.send(torch.zeros(1), 0, tag=TOKEN_TAG)
        return _num_completed_before(works, lambda: dist.send(torch.zeros(1), 0, tag=TOKEN_TAG))
    for _ in range(2):
        dist.recv(torch.zeros(1), 1, tag=TOKEN_TAG)
    for number in range(MESSAGES):
        parts = [torch.zeros(SIZE) for _ in range(2)]
        dist.gather(_number(number), parts, 0)
        _expect_number(parts[1], number)
    return None


def test_gathers_wait_for_their_root(pair: Pair) -> None:
    _, completed = pair.run(_gather_ahead)
    assert 0 < completed <= BOUND


def _objects_ahead(folder: str) -> None:
    """Each object takes two messages: its size and its bytes."""
    full = _Full(folder)
    count = 200
    for number in range(count) if dist.get_rank() == 0 else ():
        dist.send_object_list([number, "x" * 60_000], 1)
        if number == BOUND - 2:
            full.tell()
    if dist.get_rank() == 1:
        full.wait()
        for number in range(count):
            objects = [None, None]
            dist.recv_object_list(objects, 0)
            assert objects[0] == number
    for number in range(count):
        objects = [number, "y" * 30_000] if dist.get_rank() == 0 else [None, None]
        dist.broadcast_object_list(objects, 0)
        assert objects == [number, "y" * 30_000]


def test_objects_wait_for_their_receives(pair: Pair, tmp_path: Path) -> None:
    pair.run(_objects_ahead, str(tmp_path))


def _batches() -> None:
    other = 1 - dist.get_rank()
    received = [torch.zeros(SIZE) for _ in range(MESSAGES)]
    sends = [dist.P2POp(dist.isend, _number(number), other) for number in range(MESSAGES)]
    receives = [dist.P2POp(dist.irecv, data, other) for data in received]
    _wait(dist.batch_isend_irecv(sends + receives))
    for number, data in enumerate(received):
        _expect_number(data, number)


def test_batches_of_sends_and_receives_both_ways(pair: Pair) -> None:
    pair.run(_batches)


def _tags_in_reverse() -> None:
    """Sends more small messages than may have an RTS in flight; the receiver takes the last one first."""
    count = 17_000
    if dist.get_rank() == 0:
        _wait([dist.isend(_number(number, 1), 1, tag=number) for number in range(count)])
        return
    for number in reversed(range(count)):
        data = torch.zeros(1)
        dist.recv(data, 0, tag=number)
        _expect_number(data, number)


def test_receives_in_another_order_than_the_sends(pair: Pair) -> None:
    pair.run(_tags_in_reverse)


def _die_before_receiving() -> str:
    if dist.get_rank() == 1:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    works = [dist.isend(_number(number), 1) for number in range(MESSAGES)]
    dist.barrier()
    return failure(lambda: _wait(works))


def test_sends_that_wait_end_with_the_process_that_they_wait_for(pair: Pair) -> None:
    message = pair.run_until_the_second_dies(_die_before_receiving)
    assert "rank 1 is gone" in message or "rank 1 cannot be reached" in message


def _time_out() -> str:
    group = dist.new_group(timeout=timedelta(seconds=1))
    text = ""
    if dist.get_rank() == 0:

        def flood() -> None:
            for _ in range(BOUND + 1):
                dist.send(_number(0), 1, group=group)

        text = failure(flood)
    dist.barrier()
    dist.destroy_process_group(group)
    return text


def test_a_send_that_is_held_back_too_long_says_why(pair: Pair) -> None:
    text, _ = pair.run(_time_out)
    assert "Timed out" in text
    assert "Still awaited here: rank 1" in text
    assert "earlier ones of this group have not been received by rank 1" in text
