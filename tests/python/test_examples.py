"""Examples do what they say: those that learn have the same losses as over torch's own backend."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import runpy
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from devices import needs_two_gpus, on, on_cpu_and_gpu
from pool import RankPool, own_rank
from processes import output_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def _launch(example: str, *options: str, arguments: tuple[str, ...] = ()) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
    return output_of([*command, str(EXAMPLES / example), *arguments])


def test_llama_block_agrees_with_one_process_under_both_plans() -> None:
    output = _launch("llama_block.py")
    distances = re.findall(r"^(\w+): output within (\S+), gradients within (\S+) of", output, re.MULTILINE)
    assert [plan for plan, *_ in distances] == ["fused", "torch"]
    assert all(float(distance) < 1e-3 for _, *both in distances for distance in both), output


def test_a_job_goes_on_from_its_checkpoint_when_a_rank_has_died(tmp_path: Path) -> None:
    output = _launch("elastic.py", "--max-restarts=1", arguments=(str(tmp_path),))
    assert "life 0 begins at step 0" in output
    assert "life 1 begins at step 40" in output
    assert "read 9" in output


def test_rollout_workers_teach_a_learner_though_one_is_killed() -> None:
    command = [sys.executable, str(EXAMPLES / "rollout_workers.py"), "--workers=2", "--kill-a-worker"]
    try:
        output = output_of(command)
    except AssertionError as error:  # killed amid a message: docs/adr/the-deaf-take-another-engine.md
        if "hears nothing from its host any more" not in str(error):
            raise
        output = output_of(command)
    assert re.search(r"read 9\S+% of 300 held-out digits after 400 updates; 3 workers lived\n", output), output


@pytest.fixture(scope="module")
def processes() -> Iterator[Callable[[str], RankPool]]:
    """Two for each device, and not those of other tests: examples choose their own."""
    pools: dict[str, RankPool] = {}

    def of(device: str) -> RankPool:
        if device not in pools:
            pools[device] = RankPool(2, meeting="none")
        return pools[device]

    yield of
    for pool in pools.values():
        pool.close()


@contextlib.contextmanager
def _outliving_group() -> Iterator[None]:
    """Keeps the group that an example destroys until its models are gone.

    Gloo's joins its threads when it goes, which hangs where DDP's reducer is the last owner: that holds Python's lock,
    for which a thread may wait that lets go of a tensor.
    """
    kept = []
    destroy = dist.destroy_process_group

    def keep_and_destroy(*group: dist.ProcessGroup | None) -> None:
        kept.append(dist.group.WORLD)
        destroy(*group)

    with mock.patch.object(dist, "destroy_process_group", keep_and_destroy):
        yield


def _run(example: str, device: str, backend: str, port: int, *arguments: str) -> str:
    """As torchrun would, but without importing torch anew."""
    rank = str(own_rank())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "BACKEND": backend, "BACKEND_OF_COMPILE": "aot_eager"}
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [example, *arguments]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), _outliving_group():
            runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    except SystemExit as exit:
        raise AssertionError(str(exit)) from None
    finally:
        sys.path.remove(str(EXAMPLES))
    return output.getvalue()


def _free_port() -> int:
    """One that no connection is given for its own end, as those of other tests would be until rank 0 listens."""
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return int(listener.getsockname()[1])


_DIGITS = r"read 9\S+% of \d+ held-out digits; last loss \S+\n"
# By example, what it prints.
_LEARNED = dict.fromkeys(
    ("ddp", "fsdp", "checkpoints", "tensor_parallel", "pipeline", "compiled", "lightning_digits"), _DIGITS
) | {
    "profiled": r"all_reduce of \[9610\]: 10 calls\n" + _DIGITS,
    "accelerate_text": r"loss 2\.\S+ after 100 steps; writes '.*'\n",
}


def _skip_unless_runnable(device: str) -> None:
    """Of hosts with GPUs not every one has what requirements/ names, or a GPU for each process."""
    if device == "cuda":
        if torch.cuda.device_count() < 2:
            pytest.skip("needs 2 GPUs")
        for package in ("sklearn", "accelerate", "transformers", "pytorch_lightning"):
            pytest.importorskip(package)


@needs_two_gpus
@on("cuda")
@pytest.mark.parametrize("example", ["context_parallel", "symmetric_memory"])
def test_examples_learn_on_gpus(example: str, device: str, processes: Callable[[str], RankPool]) -> None:
    _skip_unless_runnable(device)
    output = processes(device).run(_run, f"{example}.py", device, "axon", _free_port(), timeout_s=150)[0]
    assert re.fullmatch(_DIGITS, output)


@on_cpu_and_gpu
@pytest.mark.parametrize("example", _LEARNED)
def test_examples_learn(example: str, device: str, processes: Callable[[str], RankPool]) -> None:
    _skip_unless_runnable(device)
    backends = ["axon", "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"]
    if (example, device) == ("profiled", "cuda"):
        backends.pop()  # NCCL's calls have other names in the profiler's table
    outputs = [
        processes(device).run(_run, f"{example}.py", device, backend, _free_port(), timeout_s=150)[0]
        for backend in backends
    ]
    assert re.fullmatch(_LEARNED[example], outputs[0])
    assert len(set(outputs)) == 1  # of two ranks' sums no order differs


@on_cpu_and_gpu
@pytest.mark.parametrize(
    ("example", "switch"),
    [
        ("ddp", "--gradients=exact"),
        ("ddp", "--gradients=fp16"),
        ("ddp", "--gradients=powersgd"),
        ("fsdp", "--cpu-offload"),
    ],
)
def test_examples_learn_as_switched(
    example: str, switch: str, device: str, processes: Callable[[str], RankPool]
) -> None:
    _skip_unless_runnable(device)
    pool = processes(device)
    plain, switched = (
        pool.run(_run, f"{example}.py", device, "axon", _free_port(), *switches, timeout_s=150)[0]
        for switches in ((), (switch,))
    )
    assert re.fullmatch(_DIGITS, switched)
    # Which is the one that changes no number, if the optimizer runs on the same processor.
    assert (switched == plain) == (switch == "--cpu-offload" and device == "cpu")
