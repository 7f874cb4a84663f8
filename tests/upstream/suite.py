"""PyTorch's own tests of backends, as its wheel ships them, for the backend under test and four ranks on CPUs.

Importing this module opens gates that name built-in backends ("Only gloo supports …") and gives `TestAxon`. Ranks are
forked from the importing process, which must not use torch.distributed itself: upstream spawns interpreters instead,
which takes ten times as long.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

BACKEND = os.environ.get("AXON_TEST_BACKEND", "axon")
os.environ.update(BACKEND=BACKEND, WORLD_SIZE="4", INIT_METHOD="file://", CUDA_VISIBLE_DEVICES="")

import torch  # noqa: E402
from torch.testing._internal import common_distributed, common_utils  # noqa: E402

if BACKEND == "axon":
    import torch_axon  # noqa: F401

_BUILT_INS_ONLY = re.compile(
    "only (gloo|mpi|nccl and gloo)|get_future is only|GLOO Batch|requires backend|not supported by gloo", re.IGNORECASE
)
# What these need is a GPU, or NCCL itself.
_DEVICE_ONLY = re.compile("'nccl'|cuda|gpu|only nccl|nccl only", re.IGNORECASE)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _names_built_ins(reason: str) -> bool:
    return bool(_BUILT_INS_ONLY.search(reason))


def _open_gates() -> None:
    skip_if, skip = common_utils.skip_but_pass_in_sandcastle_if, common_utils.skip_but_pass_in_sandcastle

    def skip_unless_opened_if(condition: bool, reason: str) -> Decorator:
        return skip_if(condition and not _names_built_ins(reason), reason)

    def skip_unless_opened(reason: str) -> Decorator:
        return (lambda function: function) if _names_built_ins(reason) else skip(reason)

    common_utils.skip_but_pass_in_sandcastle_if = skip_unless_opened_if
    common_utils.skip_but_pass_in_sandcastle = skip_unless_opened
    common_distributed.skip_if_small_worldsize = lambda function: function  # four ranks are enough for every one
    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(BACKEND)


_open_gates()

from torch.testing._internal.distributed import distributed_test  # noqa: E402


class TestAxon(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        torch.set_num_threads(1)
        distributed_test.INIT_METHOD = f"file://{self.file_name}.second"  # for tests that start anew
        self._start_processes(multiprocessing.get_context("fork").Process)

    def _test_accumulate_gradients_no_sync(self, **arguments: Any) -> None:
        """Upstream's body makes its model for backends that it knows only."""
        with mock.patch.object(distributed_test, "BACKEND", "gloo"):
            super()._test_accumulate_gradients_no_sync(**arguments)


def all_names() -> list[str]:
    return sorted(name for name in dir(TestAxon) if name.startswith("test_"))
