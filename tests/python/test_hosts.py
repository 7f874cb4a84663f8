"""Two hosts, to which nothing but TCP leads from rank to rank."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from hosts import ADDRESSES, Hosts, move_to, two_hosts
from pool import RankPool
from processes import environment, run_ranks
from reference import failure

TIMEOUT_S = 3.0


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts() as hosts:
        yield hosts


def test_all_reduce_between_hosts_until_the_link_is_cut(hosts: Hosts) -> None:
    ranks = run_ranks(
        "crosses_hosts",
        2,
        f"tcp://{ADDRESSES[0]}:29513",
        str(TIMEOUT_S),
        when_ready=lambda _: hosts.cut(),
        prefixes=[hosts.prefix(0), hosts.prefix(1)],
    )
    for rank, ended in enumerate(ranks):
        assert ended.code == 0, ended.errors
        seconds, message = ended.output.splitlines()[-2:]
        assert float(seconds) < TIMEOUT_S + 1
        assert f"rank {1 - rank}" in message


def _form(store: str, rank: int) -> str:
    return failure(lambda: dist.init_process_group("axon", init_method=f"file://{store}", rank=rank, world_size=2))


def test_a_rank_without_a_way_to_it_is_named(hosts: Hosts, tmp_path: Path) -> None:
    hosts.cut()
    with RankPool(1, meeting="none") as one, RankPool(1, meeting="none") as other:
        for rank, pool in enumerate((one, other)):
            pool.run(move_to, hosts.names[rank])
            pool.start(_form, str(tmp_path / "store"), rank)
        for rank, pool in enumerate((one, other)):
            [message] = pool.finish()
            assert f"[rank {rank} of group '0'] rank {1 - rank} cannot be reached: " in message


def test_the_doctor_names_the_network_and_what_the_ranks_do_not_share(hosts: Hosts) -> None:
    meeting = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29514"}
    ranks = [
        subprocess.Popen(
            [*hosts.prefix(rank), sys.executable, "-m", "torch_axon.doctor", "--json"],
            env=environment(RANK=str(rank), **meeting),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    path = json.loads(outputs[0])["pairs"][0]["host"]
    assert path["name"] == "TCP (eth0)"
    assert "not its net namespaces" in path["obstacle"]["reason"]
