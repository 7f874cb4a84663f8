"""The protocol `axon://` of Dask's `distributed`: its comms keep their promises."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("distributed", reason="needs distributed")
from distributed.comm import Comm, CommClosedError, connect, listen
from distributed.comm.registry import backends
from distributed.protocol import to_serialize

import torch_axon.dask
from support.dask_comms import assert_same, comm_to, echo, listener_process, pair
from torch_axon.dask._channel import MOST_UNREAD_BYTES

SECRET = "sixteen bytes or more"
MIB = 1 << 20


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with listener_process() as address:
        yield address


# ---- Messages


def test_the_entry_point_names_the_backend() -> None:
    (entry,) = entry_points(group="distributed.comm.backends", name="axon")
    assert entry.load() is torch_axon.dask.AxonBackend
    assert isinstance(backends["axon"], torch_axon.dask.AxonBackend)


NUMBERS = np.arange(3 * MIB, dtype=np.float64)
VALUES: dict[str, Any] = {
    "none": None,
    "text": "ü" * 70_000,
    "no_bytes": b"",
    "bytes": bytes(range(256)) * 20_000,
    "empty_array": np.empty((0, 3), np.int16),
    "one_number": np.array([7], np.uint8),
    "large_array": NUMBERS,
    "fortran_order": NUMBERS.reshape(3, MIB).T,
    "strided": NUMBERS[::3],
    "arrays": {str(size): np.full(size, size) for size in (0, 1, 511, 512, 513, 8191, 8193, MIB)},
    "tensor": torch.arange(100_000, dtype=torch.int32).reshape(100, 1000),
    "empty_tensor": torch.empty(0, 2),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back(address: str, name: str) -> None:
    async def run() -> None:
        async with comm_to(address) as comm:
            assert_same(await echo(comm, VALUES[name]), VALUES[name])

    asyncio.run(run())


def test_a_message_may_have_more_frames_than_one_call() -> None:
    sent = {str(number): np.full(number % 1500, number) for number in range(5000)}

    async def run() -> None:
        async with pair() as (one, other):
            writing = asyncio.create_task(one.write({key: to_serialize(value) for key, value in sent.items()}))
            assert_same(await other.read(), sent)
            await writing

    asyncio.run(run())


def test_messages_of_one_comm_stay_in_order_in_both_directions() -> None:
    sizes = [1, MIB, 3, 70_000, 0, 4096, 200_000] * 20

    async def write(comm: Comm) -> None:
        for number, size in enumerate(sizes):
            await comm.write([number, to_serialize(np.full(size, number % 256, np.uint8))])

    async def read(comm: Comm) -> None:
        for number, size in enumerate(sizes):
            came_number, came = await comm.read()
            assert came_number == number
            np.testing.assert_array_equal(came, np.full(size, number % 256, np.uint8))

    async def run() -> None:
        async with pair() as (one, other):
            await asyncio.gather(write(one), read(one), write(other), read(other))

    asyncio.run(run())


def test_frames_may_be_reused_once_they_are_written() -> None:
    async def run() -> None:
        async with pair() as (one, other):
            array = np.ones(MIB)
            await one.write({"array": to_serialize(array)})
            array[:] = 2
            came = (await other.read())["array"]
            assert (came == 1).all()
            came += 1  # it belongs to the receiver

    asyncio.run(run())


def test_what_is_serialised_may_stay_so() -> None:
    async def run() -> None:
        async with pair() as (one, other):
            other.deserialize = False
            one.deserialize = False
            await one.write({"array": to_serialize(NUMBERS)})
            serialised = await other.read()
            assert not isinstance(serialised["array"], np.ndarray)
            one.deserialize = True
            await asyncio.gather(other.write(serialised), _assert_reads(one, NUMBERS))

    asyncio.run(run())


async def _assert_reads(comm: Comm, sent: np.ndarray) -> None:
    assert_same((await comm.read())["array"], sent)


def test_a_reader_that_does_not_read_holds_up_its_writer() -> None:
    sent = np.ones(MIB, np.uint8)
    num_messages = 4 * MOST_UNREAD_BYTES // MIB
    num_written = 0

    async def write(comm: Comm) -> None:
        nonlocal num_written
        for _ in range(num_messages):
            await comm.write({"array": to_serialize(sent)})
            num_written += 1

    async def run() -> None:
        async with pair() as (one, other):
            writing = asyncio.create_task(write(one))
            while num_written * MIB < MOST_UNREAD_BYTES - MIB:
                await asyncio.sleep(0)
            for _ in range(100):  # which shows that the writer had the time to go on
                await other.write("the other direction is free")
                await one.read()
            assert num_written * MIB <= MOST_UNREAD_BYTES  # at most one message more than fits
            assert not writing.done()
            for _ in range(num_messages):
                await _assert_reads(other, sent)
            await writing

    asyncio.run(run())


# ---- Ends


def test_a_closed_comm_delivers_what_was_written_before() -> None:
    async def run() -> None:
        async with pair() as (one, other):
            await one.write("first")
            await one.write("last")
            await one.close()
            assert one.closed()
            assert [await other.read(), await other.read()] == ["first", "last"]
            with pytest.raises(CommClosedError, match="has closed the comm"):
                await other.read()
            assert other.closed()
            with pytest.raises(CommClosedError, match="has closed the comm"):
                await other.write("late")
            with pytest.raises(CommClosedError, match="the comm is closed"):
                await one.write("late")

    asyncio.run(run())


def test_comms_of_two_processes_end_apart(address: str) -> None:
    async def run() -> None:
        async with comm_to(address) as first, comm_to(address) as second, comm_to(address) as third:
            first.abort()
            await second.write({"do": "close"})
            with pytest.raises(CommClosedError, match="has closed the comm"):
                await second.read()
            assert [first.closed(), second.closed(), third.closed()] == [True, True, False]
            assert_same(await echo(third, NUMBERS), NUMBERS)

    asyncio.run(run())


def test_a_killed_process_closes_its_comms() -> None:
    async def run() -> None:
        with listener_process() as address:
            async with comm_to(address) as comm, comm_to(address) as idle:
                reading = asyncio.create_task(idle.read())
                with suppress(CommClosedError):  # it may die before it answers
                    await comm.write({"do": "kill"})
                for each in (comm.read(), reading):
                    with pytest.raises(CommClosedError, match="in <AxonComm"):
                        await each
                assert comm.closed()
                assert idle.closed()
            with pytest.raises(OSError, match="Timed out trying to connect"):
                await connect(address, timeout=0.2)

    asyncio.run(run())


def test_abort_ends_a_read_and_a_write_at_once() -> None:
    async def run() -> None:
        async with pair() as (one, _):
            reading = asyncio.create_task(one.read())
            one.allow_offload = False  # so that a write begins at once
            big = to_serialize(np.ones(MOST_UNREAD_BYTES, np.uint8))
            await one.write(big)
            writing = asyncio.create_task(one.write(big))  # waits for the reader
            for _ in range(100):
                await asyncio.sleep(0)
            assert not writing.done()
            one.abort()
            assert one.closed()
            for each in (reading, writing):
                with pytest.raises(CommClosedError, match="the comm is closed"):
                    await each
            one.abort()
            await one.close()

    asyncio.run(run())


def test_a_cancelled_read_takes_no_message() -> None:
    async def run() -> None:
        async with pair() as (one, other):
            reading = asyncio.create_task(other.read())
            await asyncio.sleep(0)
            reading.cancel()
            await one.write("message")
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await other.read() == "message"

    asyncio.run(run())


def test_a_cancelled_write_closes_the_comm() -> None:
    async def run() -> None:
        async with pair() as (one, other):
            one.allow_offload = False  # so that a write begins at once
            big = to_serialize(np.ones(MOST_UNREAD_BYTES, np.uint8))
            await one.write(big)
            writing = asyncio.create_task(one.write(big))
            for _ in range(100):
                await asyncio.sleep(0)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            assert one.closed()
            await other.read()
            with pytest.raises(CommClosedError, match="has closed the comm"):
                await other.read()

    asyncio.run(run())


def test_a_comm_that_is_not_closed_is_closed_when_it_is_destroyed(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with pair() as (one, _):
            await one.write("message")
        del one
        gc.collect()

    async def drop() -> Comm:
        accepted: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()

        async def handle(comm: Comm) -> None:
            accepted.set_result(comm)

        async with listen("axon://127.0.0.1", handle) as listener:
            await connect(listener.contact_address)
            return await accepted

    async def run_dropped() -> None:
        other = await drop()
        gc.collect()
        with pytest.raises(CommClosedError, match="has closed the comm"):
            await other.read()

    asyncio.run(run())
    assert "destroyed" not in caplog.text
    asyncio.run(run_dropped())
    assert "was destroyed without being closed" in caplog.text


def test_a_closed_loop_closes_its_comms_and_its_runtimes(address: str) -> None:
    before = set(threading.enumerate())

    async def leave() -> Comm:
        comm = await connect(address)
        assert await echo(comm, 1) == 1
        return comm

    comm = asyncio.run(leave())
    assert comm.closed()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("axon")]
    assert asyncio.run(leave()).closed()


def test_a_loop_may_be_closed_beside_tasks_that_wait(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    loop = asyncio.new_event_loop()
    comm = loop.run_until_complete(connect(address))
    reading = loop.create_task(comm.read())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert comm.closed()
    assert not reading.done()
    assert not unraisable
