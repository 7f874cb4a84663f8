"""The tests besides distributed_test.py that torch's wheel ships and that communicate over a process group.

These are the tests of DDP under distributed autograd, and of torch's RPC beside a group. They ask for Gloo by name, and
get the backend under test; RPC itself runs over TensorPipe.
"""

from __future__ import annotations

import functools
import multiprocessing
import time
import unittest
from typing import Any

import sources
import suite
from torch.distributed import rpc

with suite.without_cuda():
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed import ddp_under_dist_autograd_test as ddp_tests
    from torch.testing._internal.distributed import rpc_utils
    from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import FaultyRpcAgentTestFixture
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture


_SIGNAL_AWAITED_S = 30.0


class _InRanks(MultiProcessTestCase):
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, *args: Any, **kwargs: Any) -> None:
        """Runs a rank, which alone exchanges the backends."""
        suite.stand_in_for("gloo")
        super()._run(*args, **kwargs)


class DdpUnderDistAutogradTest(ddp_tests.DdpUnderDistAutogradTest):
    def do_test_on_master(self, *arguments: Any) -> None:
        """Upstream's master asks trainers for groups once it has joined itself. They may not have joined yet, over Gloo
        either."""
        for rank in ddp_tests.TRAINER_RANKS:
            rpc.rpc_sync(self.trainer_name(rank), _await_signal_awaited)
        super().do_test_on_master(*arguments)


def _await_signal_awaited() -> None:
    """Waits until this rank waits for the signal: an earlier signal would be lost. A rank that waits has joined."""
    deadline = time.monotonic() + _SIGNAL_AWAITED_S
    while not ddp_tests.shutdown_signal._waiters:
        assert time.monotonic() < deadline, "this rank does not wait for the signal"
        time.sleep(0.001)


class CudaDdpComparisonTest(ddp_tests.CudaDdpComparisonTest):
    """Tests with one GPU per rank, of which upstream requires four."""

    @property
    def world_size(self) -> int:
        return suite.num_ranks

    test_ddp_dist_autograd_local_vs_remote_gpu = (
        ddp_tests.CudaDdpComparisonTest.test_ddp_dist_autograd_local_vs_remote_gpu.__wrapped__
    )


_OURS = [DdpUnderDistAutogradTest, *([CudaDdpComparisonTest] if suite.ON_GPUS else [])]


@functools.cache
def _cases() -> dict[str, type[unittest.TestCase]]:
    """Returns the suites by upstream's class, mixed as upstream does."""
    generic = rpc_utils.GENERIC_TESTS + rpc_utils.GENERIC_CUDA_TESTS
    over_tensor_pipe = rpc_utils.TENSORPIPE_TESTS + rpc_utils.TENSORPIPE_CUDA_TESTS
    mixed = [(each, TensorPipeRpcAgentTestFixture) for each in generic + over_tensor_pipe + _OURS]
    mixed += [(each, FaultyRpcAgentTestFixture) for each in rpc_utils.FAULTY_AGENT_TESTS]
    return {tests.__name__: type(tests.__name__, (tests, fixture, _InRanks), {}) for tests, fixture in mixed}


def make(name: str) -> unittest.TestCase:
    class_name, _, test = name.partition(".")
    return _cases()[class_name](test)


def all_names() -> list[str]:
    return sorted(name for name in sources.names(suite.ON_GPUS) if "." in name)
