"""The tests beside distributed_test.py that torch's wheel ships and that communicate over a process group: those of DDP
under distributed autograd, and of torch's RPC beside a group. They ask for Gloo by name, and get the backend under
test; RPC itself runs over TensorPipe as ever. FSDP's, DTensor's and the functional collectives' tests are not in the
wheel, only what they are derived from.

Upstream's DdpUnderDistAutogradTest is left out: its ranks wait on a condition for a signal that may come before they
wait, and then never end, over Gloo (2 cores, torch 2.11) no more than over axon.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import suite
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.distributed import ddp_under_dist_autograd_test as ddp_tests
from torch.testing._internal.distributed.rpc import rpc_test
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture


class _InRanks(MultiProcessTestCase):
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, *args: Any, **kwargs: Any) -> None:
        """A rank's life: it alone exchanges backends."""
        suite.stand_in_for("gloo")
        super()._run(*args, **kwargs)


class DdpComparison(_InRanks, TensorPipeRpcAgentTestFixture, ddp_tests.DdpComparisonTest):
    pass


class RpcBesideGroup(_InRanks, TensorPipeRpcAgentTestFixture, rpc_test.RpcTest):
    pass


class TensorPipeBesideGroup(_InRanks, TensorPipeRpcAgentTestFixture, rpc_test.TensorPipeAgentRpcTest):
    pass


# Of the hundreds of tests of RPC those that make a group; all of the others.
_WITH_A_GROUP = {
    DdpComparison: None,
    RpcBesideGroup: [
        "test_deadlock",
        "test_init_pg_then_rpc",
        "test_init_rpc_then_pg",
        "test_pg_init_no_rpc_init",
    ],
    TensorPipeBesideGroup: ["test_dynamic_and_static_init_rpc_together"],
}


def all_names() -> list[str]:
    return [
        f"{case.__name__}.{name}"
        for case, names in _WITH_A_GROUP.items()
        for name in names or sorted(name for name in dir(case) if name.startswith("test_"))
    ]
