"""The protocol `axon://` of Dask's `distributed`: which processes reach each other, and clusters of them."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

pytest.importorskip("distributed", reason="needs distributed")
import dask
from distributed import Client, LocalCluster
from distributed.comm import Comm, connect, listen
from distributed.comm.core import FatalCommClosedError
from distributed.comm.registry import backends

from support.dask_comms import assert_same, comm_to, echo, listener_process
from support.hosts import ADDRESSES, two_hosts
from support.processes import environment

SECRET = "sixteen bytes or more"
MIB = 1 << 20
NUMBERS = np.arange(3 * MIB, dtype=np.float64)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with listener_process() as address:
        yield address


# ---- Listeners and access


def test_a_stopped_listener_leaves_its_comms_open_and_then_frees_its_port() -> None:
    async def run() -> None:
        accepted: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()

        async def handle(comm: Comm) -> None:
            accepted.set_result(comm)

        listener = await listen("axon://127.0.0.1", handle)
        address = listener.contact_address
        comm = await connect(address)
        other = await accepted
        listener.stop()
        with pytest.raises(ValueError, match="has been stopped"):
            _ = listener.contact_address
        with pytest.raises(OSError, match="Timed out trying to connect"):
            await connect(address, timeout=0.2)
        await comm.write("still open")
        assert await other.read() == "still open"
        await comm.close()
        other.abort()
        await _await_free_port(address)

    asyncio.run(run())


async def _await_free_port(address: str) -> None:
    async def handle(comm: Comm) -> None: ...

    while True:
        try:
            async with listen(address, handle):
                return
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            await asyncio.sleep(0.01)


def test_a_port_in_use_is_refused_as_by_the_system() -> None:
    async def handle(comm: Comm) -> None: ...

    async def run() -> None:
        async with listen("axon://127.0.0.1", handle) as listener:
            with pytest.raises(OSError, match="in use") as raised:
                await listen(listener.contact_address, handle)
        assert raised.value.errno == errno.EADDRINUSE

    asyncio.run(run())


def test_bad_addresses_are_refused() -> None:
    async def handle(comm: Comm) -> None: ...

    async def run() -> None:
        with pytest.raises(OSError, match=r"Timed out trying to connect to axon://127\.0\.0\.1:1 "):
            await connect("axon://127.0.0.1:1", timeout=0.2)
        with pytest.raises(ConnectionRefusedError, match="no process of this user listens on port 1 without a secret"):
            await backends["axon"].get_connector().connect("127.0.0.1:1")
        with pytest.raises(ValueError, match="missing port number in address"):
            await connect("axon://127.0.0.1")
        with pytest.raises(ValueError, match="has port 70000; allowed: 0 to 65535"):
            listen("axon://127.0.0.1:70000", handle)
        with pytest.raises(FatalCommClosedError, match="is on another host: set AXON_SECRET"):
            await connect("axon://192.0.2.1:8786")
        with pytest.raises(RuntimeError, match="is not encrypted, but require_encryption is set"):
            await connect("axon://127.0.0.1:1", require_encryption=True)
        with pytest.raises(RuntimeError, match="is not encrypted, but require_encryption is set"):
            listen("axon://127.0.0.1", handle, require_encryption=True)

    asyncio.run(run())


def test_a_listener_on_all_addresses_is_contacted_at_one() -> None:
    async def handle(comm: Comm) -> None:
        await comm.write("hello")

    async def run() -> None:
        listener = listen("axon://", handle, default_host="localhost")
        async with listener:
            assert listener.listen_address.startswith("axon://0.0.0.0:")
            assert listener.contact_address.startswith("axon://localhost:")
            async with comm_to(listener.contact_address) as comm:
                assert await comm.read() == "hello"
                assert comm.same_host
                assert comm.peer_address == listener.contact_address
                assert comm.local_address.startswith("axon://127.0.0.1/")

    asyncio.run(run())


@pytest.mark.parametrize("source", ["environment", "configuration"])
def test_processes_with_one_secret_reach_each_other(source: str) -> None:
    name = "AXON_SECRET" if source == "environment" else "DASK_DISTRIBUTED__COMM__AXON__SECRET"

    async def run(address: str) -> None:
        with dask.config.set({"distributed.comm.axon.secret": SECRET}):
            async with comm_to(address) as comm:
                assert_same(await echo(comm, NUMBERS), NUMBERS)
        with dask.config.set({"distributed.comm.axon.secret": SECRET[::-1]}), pytest.raises(FatalCommClosedError):
            await connect(address)
        with pytest.raises(OSError, match="Timed out"):  # no secret: only those without one can be found
            await connect(address, timeout=0.2)

    with listener_process(**{name: SECRET}) as address:
        asyncio.run(run(address))


def test_hosts_with_one_secret_reach_each_other() -> None:
    """Runs the client on another host, too, since a process has one network namespace."""
    client = (
        "import asyncio, sys, numpy as np\n"
        "from distributed.comm import connect\n"
        "from distributed.protocol import to_serialize\n"
        "async def main():\n"
        "    comm = await connect(sys.argv[1])\n"
        "    assert not comm.same_host\n"
        "    sent = np.arange(1 << 20)\n"
        "    await comm.write({'do': 'echo', 'value': to_serialize(sent)})\n"
        "    assert ((await comm.read())['value'] == sent).all()\n"
        "    await comm.close()\n"
        "asyncio.run(main())\n"
    )
    with two_hosts() as hosts, listener_process(*hosts.prefix(0), host=ADDRESSES[0], AXON_SECRET=SECRET) as address:
        command = [*hosts.prefix(1), sys.executable, "-c", client, address]
        ended = subprocess.run(
            command, env=environment(AXON_SECRET=SECRET), capture_output=True, text=True, timeout=120
        )
        assert ended.returncode == 0, ended.stderr
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
        assert f"{address} is on another host: set AXON_SECRET" in ended.stderr


# ---- Clusters


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, protocol="axon", dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_a_cluster_computes_with_arrays_and_tensors_of_both_workers(client: Client) -> None:
    workers = list(client.scheduler_info()["workers"])
    assert len(workers) == 2
    assert all(each.startswith("axon://127.0.0.1:") for each in [*workers, client.scheduler.address])
    arrays = [client.submit(np.full, MIB, 1.5 + number, workers=[worker]) for number, worker in enumerate(workers)]
    sums = [client.submit(np.add, *arrays, workers=[worker], pure=False) for worker in workers]
    for each in client.gather(sums):
        assert_same(each, np.full(MIB, 4.0))
    tensors = [client.submit(torch.arange, MIB, workers=[worker], pure=False) for worker in workers]
    products = [client.submit(torch.mul, *tensors, workers=[worker], pure=False) for worker in workers]
    for each in client.gather(products):
        assert torch.equal(each, torch.arange(MIB) ** 2)
    scattered = client.scatter(NUMBERS, broadcast=True)
    assert client.submit(np.sum, scattered).result() == NUMBERS.sum()


def test_a_cluster_goes_on_without_a_killed_worker(client: Client) -> None:
    pids = client.run(os.getpid)
    worker = next(iter(pids))
    held = client.submit(np.ones, MIB, workers=[worker], allow_other_workers=True, pure=False)
    assert held.result().sum() == MIB
    os.kill(pids[worker], signal.SIGKILL)
    total = client.submit(np.sum, held)  # is computed where the array was, or anew
    assert total.result(timeout=120) == MIB
    client.wait_for_workers(2, timeout=120)
