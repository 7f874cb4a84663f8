"""PyTorch's own tests of backends, as its wheel ships them, for the backend under test.

Importing this module gives `TestAxon`: over four ranks on CPUs, with those gates opened that name built-in backends
("Only gloo supports …"). With BACKEND=nccl and WORLD_SIZE in the environment, it runs over that many ranks with a GPU
each, and the backend under test replaces NCCL. The gates of NCCL are then open, and so is the one that excludes NCCL
itself: sparse tensors.

Ranks are forked from the importing process, which must use neither torch.distributed nor CUDA itself. Upstream spawns
interpreters instead, which takes ten times as long.
"""

from __future__ import annotations

import copy
import functools
import multiprocessing
import os
import re
import subprocess
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

TESTED = os.environ.get("AXON_TEST_BACKEND", "axon")
ON_GPUS = os.environ.get("BACKEND") == "nccl"
if ON_GPUS:
    # Upstream distributes all GPUs that it sees over the ranks; in a group of ours each rank has one.
    num_ranks = int(os.environ["WORLD_SIZE"])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num_ranks))))
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[:num_ranks])
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # upstream asks for GPUs before each test, too
    os.environ["NUMBA_DISABLE_CUDA"] = "1"  # and numba, where that is installed
else:
    os.environ.update(BACKEND=TESTED, WORLD_SIZE="4", CUDA_VISIBLE_DEVICES="")
os.environ["INIT_METHOD"] = "file://"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


@contextmanager
def without_cuda() -> Iterator[None]:
    """Hides CUDA while upstream is imported: it asks for the GPUs then, and a process that has asked must not fork."""
    if not ON_GPUS:
        yield
        return

    def refuse() -> None:
        raise RuntimeError("upstream's modules use CUDA while they are imported")

    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    capability = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    major, minor = map(int, capability.split("."))
    answers = mock.patch.multiple(
        torch.cuda,
        is_available=lambda: True,
        device_count=lambda: num_ranks,
        get_device_capability=lambda device=None: (major, minor),
        _lazy_init=refuse,
    )
    with answers, mock.patch("torch.utils._triton.has_triton", return_value=True):
        yield


with without_cuda():
    from torch.testing._internal import common_device_type, common_distributed, common_utils  # noqa: F401

if TESTED == "axon":
    import torch_axon  # noqa: F401

_BUILT_INS_ONLY = re.compile(
    "only gloo backend support sparse"
    if ON_GPUS
    else "only (gloo|mpi|nccl and gloo)|get_future is only|GLOO Batch|requires backend|not supported by gloo",
    re.IGNORECASE,
)

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
    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(TESTED)


def stand_in_for(built_in: str) -> None:
    """Gives the backend under test, from here on, to all code that requests a group over that backend."""

    def renamed(argument: Any) -> Any:
        return TESTED if isinstance(argument, str) and argument == built_in else argument

    for name in ("init_process_group", "new_group"):
        original = getattr(dist, name)

        def call(*args: Any, original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            return original(*map(renamed, args), **{key: renamed(value) for key, value in kwargs.items()})

        for module in (dist, dist.distributed_c10d):
            setattr(module, name, functools.wraps(original)(call))


_open_gates()
if ON_GPUS:
    stand_in_for("nccl")
if int(os.environ["WORLD_SIZE"]) >= 4:  # enough for every test, though upstream asks for eight
    common_distributed.skip_if_small_worldsize = lambda function: function

with without_cuda():
    from torch.testing._internal.distributed import distributed_test


class TestAxon(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        torch.set_num_threads(1)
        distributed_test.INIT_METHOD = f"file://{self.file_name}.second"  # for tests that start again
        self._start_processes(multiprocessing.get_context("fork").Process)

    def _test_accumulate_gradients_no_sync(self, **arguments: Any) -> None:
        """Upstream's body makes its model only for backends that it knows."""
        with mock.patch.object(distributed_test, "BACKEND", "nccl" if ON_GPUS else "gloo"):
            super()._test_accumulate_gradients_no_sync(**arguments)

    def test_get_backend(self) -> None:
        """Gives upstream's body the name of the backend that the backend under test replaces."""
        with mock.patch.object(distributed_test, "BACKEND", TESTED):
            super().test_get_backend()

    def test_sparse_all_reduce_sum_cuda(self) -> None:
        """Upstream's body gives all ranks the first GPU, which ranks of a group over Gloo may share."""
        if ON_GPUS:
            torch.cuda.set_device(self.rank)
        super().test_sparse_all_reduce_sum_cuda()

    def static_ddp_trains(self) -> None:
        self._train_static_ddp()

    def reloaded_static_ddp_trains(self) -> None:
        """Does what test_DistributedDataParallel does, without GPUs: saves and loads the model after three steps."""
        self._train_static_ddp(test_save=True)

    def reloaded_static_ddp_trains_once_reset(self) -> None:
        ddp = torch.nn.parallel.DistributedDataParallel
        set_state = ddp.__setstate__

        def set_state_and_reset(model: Any, state: Any) -> None:
            set_state(model, state)
            model._static_graph_delay_allreduce_enqueued = False

        with mock.patch.object(ddp, "__setstate__", set_state_and_reset):
            self._train_static_ddp(test_save=True)

    def _train_static_ddp(self, test_save: bool = False) -> None:
        rank = self._init_global_test()[2]
        alone = distributed_test.Net()
        ddp = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(alone), static_graph=True)
        share = 2
        batch, inputs, targets, loss = self._prepare_dummy_data(share)
        self._test_DDP_niter(alone, ddp, inputs, targets, loss, share, rank, batch, test_save)


def make(name: str) -> unittest.TestCase:
    """Returns the test of that name: of TestAxon, or Class.test of rpc_suite.py."""
    if "." not in name:
        return TestAxon(name)
    import rpc_suite

    return rpc_suite.make(name)


def all_names() -> list[str]:
    import rpc_suite

    return sorted(name for name in dir(TestAxon) if name.startswith("test_")) + rpc_suite.all_names()
