"""torchft over axon: its Manager reconfigures the group when a replica dies and when another replaces it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from support.devices import on
from support.pool import RankPool, own_rank
from support.reference import same_bits

torchft = pytest.importorskip("torchft", reason="needs torchft")
coordination = pytest.importorskip("torchft.coordination", reason="needs torchft")
pytestmark = [
    pytest.mark.skipif(not hasattr(dist.ProcessGroup, "reconfigure"), reason="needs torch 2.14 or later"),
    on("cpu"),  # torchft's workers here share no GPU
]

TIMEOUT = timedelta(seconds=20)


def _connect(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)


def _begin_without_members(store: dist.Store) -> dist.ProcessGroup:
    dist.init_process_group(
        "axon", store=store, rank=own_rank(), world_size=4, timeout=TIMEOUT, enable_reconfigure=True
    )
    group = dist.distributed_c10d._get_default_group()
    assert group.supports_reconfigure
    return group


def _resize(port: int) -> None:
    """What torchft's own test of Gloo and NCCL does: the members change, and come together again after an abort."""
    from torchft.process_group import reconfigure_with_store

    store = _connect(port)
    group = _begin_without_members(store)
    for generation, members in enumerate(([0, 1, 2], [2, 0], [1, 2, 0], [3, 0, 1, 2])):
        if own_rank() in members:
            place = f"127.0.0.1:{port}/{generation}"
            reconfigure_with_store(group, place, members.index(own_rank()), len(members), TIMEOUT)
            assert (dist.get_rank(), dist.get_world_size()) == (members.index(own_rank()), len(members))
            total = torch.tensor([float(own_rank() + 1)])
            dist.all_reduce(total)
            assert total.item() == sum(member + 1 for member in members)
        store.set(f"done/{generation}/{own_rank()}", "")
        store.wait([f"done/{generation}/{rank}" for rank in range(4)], TIMEOUT)
    group.abort()
    reconfigure_with_store(group, f"127.0.0.1:{port}/recovery", own_rank(), 4, TIMEOUT)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 4


def test_torchft_resizes_a_group_and_recovers_it_from_an_abort(fresh_ranks: Callable[..., RankPool]) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fresh_ranks(4, "none").run(_resize, store.port)


class _Replica:
    """A model under torchft's Manager, wrappers and state transfer, in one process."""

    def __init__(self, store: dist.Store, lighthouse: str) -> None:
        from torchft.optim import OptimizerWrapper

        group = _begin_without_members(store)
        self._own_store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        torch.manual_seed(own_rank())  # the state transfer makes them alike
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.manager = torchft.Manager(
            pg=group,
            min_replica_size=2,
            load_state_dict=self._load,
            state_dict=lambda: {"net": self.net.state_dict(), "optimizer": self._optimizer.state_dict()},
            replica_id=str(own_rank()),
            store_addr="127.0.0.1",
            store_port=self._own_store.port,
            rank=0,
            world_size=1,
            lighthouse_addr=lighthouse,
            hostname="127.0.0.1",
            timeout=TIMEOUT,
        )
        self._model = torchft.DistributedDataParallel(self.manager, self.net)
        self._optimizer = OptimizerWrapper(self.manager, torch.optim.Adam(self.net.parameters(), lr=0.01))

    def _load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])

    def step(self) -> int:
        """Returns the number of replicas that took part, or 0 if a replica's death made the others give the step up."""
        before = self.manager.current_step()
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * own_rank() + before))
        self._optimizer.zero_grad()
        nn.functional.mse_loss(self._model(inputs), inputs.sum(1, keepdim=True)).backward()
        self._optimizer.step()
        return self.manager.num_participants() if self.manager.current_step() > before else 0


def _train(port: int, lighthouse: str, lost: int, spare: int) -> tuple[int, list[int], torch.Tensor]:
    """Rank `lost` is killed, and `spare` begins then. All stop at the step that `spare` names once it takes part."""
    store = _connect(port)
    if own_rank() == spare:
        store.wait(["killed"], timedelta(seconds=60))
    replica = _Replica(store, lighthouse)
    sizes: list[int] = []
    while not store.check(["last"]) or replica.manager.current_step() < int(store.get("last")):
        sizes.append(replica.step())
        if own_rank() == lost and sizes[-5:] == [3] * 5:
            store.set("killed", "")
            os.kill(os.getpid(), signal.SIGKILL)
        if own_rank() == spare and sizes[-1] == 3 and not store.check(["last"]):
            store.set("last", str(replica.manager.current_step() + 5))
    store.set(f"ended/{own_rank()}", "")
    store.wait([f"ended/{rank}" for rank in range(4) if rank != lost], TIMEOUT)  # others may still ask this manager
    replica.manager.shutdown(wait=False)
    dist.destroy_process_group()
    return replica.manager.current_step(), sizes, nn.utils.parameters_to_vector(replica.net.parameters()).detach()


@pytest.mark.parametrize("lost", [0, 1])
def test_replicas_train_on_when_one_is_killed_and_replaced(lost: int, fresh_ranks: Callable[..., RankPool]) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    lighthouse = coordination.LighthouseServer(bind="[::]:0", min_replicas=2, heartbeat_timeout_ms=2000)
    try:
        results = fresh_ranks(4, "none").run(
            _train, store.port, lighthouse.address(), lost, 3, timeout_s=120, dying=[lost]
        )
    finally:
        lighthouse.shutdown()
    steps, sizes, parameters = zip(*(result for result in results if result is not None), strict=True)
    assert len(set(steps)) == 1
    for others in parameters[1:]:
        same_bits(others, parameters[0])
    for of_survivor in sizes[:2]:
        assert 2 in of_survivor, "the survivors committed no step while one was missing"
        assert of_survivor[-5:] == [3] * 5
