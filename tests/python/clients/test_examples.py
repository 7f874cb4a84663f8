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

from support.devices import needs_two_gpus, on, on_cpu_and_gpu
from support.pool import RankPool, own_rank
from support.processes import output_of

EXAMPLES = Path(__file__).parents[3] / "examples"

Processes = Callable[..., RankPool]  # takes a device and the number of processes


def _visible_to(device: str) -> dict[str, str]:
    """Returns the variables that hide the GPUs from an example on CPUs."""
    return {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}


def _launch(example: str, device: str, *options: str, arguments: tuple[str, ...] = ()) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
    return output_of([*command, str(EXAMPLES / example), *arguments], **_visible_to(device))


@on_cpu_and_gpu
def test_llama_block_agrees_with_one_process_under_both_plans(device: str) -> None:
    _skip_unless_runnable(device)
    output = _launch("llama_block.py", device)
    distances = re.findall(r"^(\w+): output within (\S+), gradients within (\S+) of", output, re.MULTILINE)
    assert [plan for plan, *_ in distances] == ["fused", "torch"]
    assert all(float(distance) < 1e-3 for _, *both in distances for distance in both), output


@on_cpu_and_gpu
def test_a_job_goes_on_from_its_checkpoint_when_a_rank_has_died(device: str, tmp_path: Path) -> None:
    _skip_unless_runnable(device)
    output = _launch("elastic.py", device, "--max-restarts=1", arguments=(str(tmp_path),))
    assert "life 0 begins at step 0" in output
    assert "life 1 begins at step 40" in output
    assert "read 9" in output


@on_cpu_and_gpu
def test_slabs_exchange_their_borders(device: str) -> None:
    _skip_unless_runnable(device)
    output = _launch("halo_exchange.py", device, arguments=("--steps=50", f"--device={device}"))
    assert re.search(r"^2 ranks, 50 steps: \d+ µs each, difference = \S+$", output, re.MULTILINE), output


@on("cpu")
@pytest.mark.parametrize("num_stages", [2, 3])
def test_stages_whose_kernels_send_gradients_train_as_one_process(num_stages: int, device: str) -> None:
    assert _difference_from_one_process(device, num_stages, "--steps=40") < 1e-4


@on("cuda")
@pytest.mark.parametrize(("options", "bound"), [((), 1e-4), (("--tf32", "--batch=1024", "--width=512"), 5e-3)])
def test_stages_on_gpus_train_as_one_process(options: tuple[str, ...], bound: float, device: str) -> None:
    pytest.importorskip("sklearn")
    assert _difference_from_one_process(device, 2, "--steps=40", *options) < bound


def _difference_from_one_process(device: str, num_stages: int, *options: str) -> float:
    """Returns the largest relative difference of a step's loss from one process's."""
    processes = f"--nproc-per-node={num_stages}"
    output = _launch("pipeline_sent_by_kernels.py", device, processes, arguments=("--compare", *options))
    assert re.search(r"^a step takes \S+ ms \(median\)\nwith send and recv \S+ ms \(\S+ ×\)\n", output, re.MULTILINE), (
        output
    )
    losses = [float(loss) for loss in re.findall(r"^epoch \d+: loss (\S+)$", output, re.MULTILINE)]
    assert losses[-1] < losses[0] / 5, output
    (difference,) = re.findall(rf"^{num_stages} stages: losses of 40 steps are within (\S+) of", output, re.MULTILINE)
    return float(difference)


def test_a_training_goes_on_while_its_workers_are_replaced() -> None:
    output = output_of([sys.executable, str(EXAMPLES / "elastic_training.py")])
    sizes = re.findall(r"^step \d+: (\d) members, ", output, re.MULTILINE)
    assert sizes.count("2") >= 3, output
    assert sizes[-1] == "3", output
    assert "read 9" in output
    assert re.search(
        r"^losses differ from an undisturbed training's by at most \S+ in \d+ steps$", output, re.MULTILINE
    )


def test_rollout_workers_teach_a_learner_though_one_is_killed() -> None:
    command = [sys.executable, str(EXAMPLES / "rollout_workers.py"), "--workers=2", "--kill-a-worker"]
    output = output_of(command)
    assert re.search(r"read 9\S+% of 300 held-out digits after 400 updates; 3 workers lived\n", output), output


def test_an_inference_server_answers_in_batches_and_drops_what_no_client_waits_for() -> None:
    output = output_of([sys.executable, str(EXAMPLES / "inference_server.py"), "--clients=8", "--characters=50"])
    assert re.search(r"refused: complete: prompt is 'x'; allowed: two characters or more\n", output), output
    assert re.search(r"batches, of up to \d+ requests; 'client' gave one up\n", output), output


@on_cpu_and_gpu
def test_a_kv_cache_is_handed_over_layer_by_layer(device: str) -> None:
    options = ["--layers=12", "--prompt-tokens=150", "--new-tokens=12", "--requests=3", f"--device={device}"]
    output = output_of([sys.executable, str(EXAMPLES / "kv_cache_handover.py"), *options])
    assert len(set(re.findall(r"first token after \d+ ms, then (\[.*\])", output))) == 3, output
    megabytes = 12 * 10 * 2 * 16 * 128 * 4 / 2**20  # 149 tokens are 10 pages of 16, with keys and values
    assert len(re.findall(rf"handover: {megabytes:.1f} MiB of 12 layers at \S+ GB/s", output)) == 3, output
    assert "the tokens of 3 requests are those of one process" in output


@on_cpu_and_gpu
def test_generators_use_each_version_of_a_trainers_weights_whole(device: str) -> None:
    output = output_of([sys.executable, str(EXAMPLES / "weight_transfer.py"), "--steps=3", f"--device={device}"])
    used = re.findall(r"generator (\d), version (\d): (\d+) characters", output)
    assert sorted({(int(number), int(version)) for number, version, _ in used}) == [
        (number, version) for number in range(2) for version in range(4)
    ], output
    assert "3 versions of 2 generators equal the trainer's state dict, bit for bit" in output


@pytest.mark.parametrize(
    ("example", "option", "reason"),
    [
        ("kv_cache_handover", "--prompt-tokens=1", "--prompt-tokens 2 or more"),
        ("weight_transfer", "--steps=0", "--steps must be 1 or more"),
        ("pipeline_sent_by_kernels", "--batch=100", "partitions of 16, 32 or 64 images"),
    ],
)
def test_examples_refuse_wrong_arguments(example: str, option: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        output_of([sys.executable, str(EXAMPLES / f"{example}.py"), option])


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """Provides a pool per device, apart from those of other tests, because examples choose their own device."""
    pools: dict[tuple[str, int], RankPool] = {}

    def of(device: str, size: int = 2) -> RankPool:
        if (device, size) not in pools:
            pools[device, size] = RankPool(size, meeting="none")
        return pools[device, size]

    yield of
    for pool in pools.values():
        pool.close()


@contextlib.contextmanager
def _outliving_group() -> Iterator[None]:
    """Keeps the group that an example destroys until its models are gone.

    Gloo's group joins its threads when it is destroyed. That hangs where DDP's reducer is the last owner. The reducer
    holds Python's lock, and a thread that releases a tensor may wait for the lock.
    """
    kept = []
    destroy = dist.destroy_process_group

    def keep_and_destroy(*group: dist.ProcessGroup | None) -> None:
        kept.append(dist.group.WORLD)
        destroy(*group)

    with mock.patch.object(dist, "destroy_process_group", keep_and_destroy):
        yield


def _run(example: str, variables: dict[str, str], arguments: tuple[str, ...]) -> str:
    """Runs an example as torchrun would, but without importing torch again."""
    rank = str(own_rank())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "BACKEND_OF_COMPILE": "aot_eager", **variables}
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
    """Returns a port outside the ephemeral range, which no connection of another test takes before rank 0 listens."""
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return int(listener.getsockname()[1])


def _output(example: str, pool: RankPool, device: str, *arguments: str, backend: str = "axon") -> str:
    """Returns the output of rank 0."""
    meeting = {"WORLD_SIZE": str(pool.size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    variables = {**meeting, **_visible_to(device), "BACKEND": backend}
    return str(pool.run(_run, f"{example}.py", variables, arguments, timeout_s=150)[0])


# Compared for our backend alone. Gloo ends a call's record after it has completed the future that DDP waits for, so a
# profile that ends in between lacks that call.
_CALLS = r"all_reduce of \[9610\]: \d+ calls\n"
_DIGITS = r"read 9\S+% of \d+ held-out digits; last loss \S+\n"
# Expected output by example.
_LEARNED = dict.fromkeys(
    ("ddp", "fsdp", "checkpoints", "tensor_parallel", "pipeline", "compiled", "lightning_digits"), _DIGITS
) | {
    "profiled": r"all_reduce of \[9610\]: 10 calls\n" + _DIGITS,
    "accelerate_text": r"loss 2\.\S+ after 100 steps; writes '.*'\n",
}


def _skip_unless_runnable(device: str) -> None:
    """Some hosts with GPUs lack packages that requirements/ names, or a GPU for each process."""
    if device == "cuda":
        if torch.cuda.device_count() < 2:
            pytest.skip("needs 2 GPUs")
        for package in ("sklearn", "accelerate", "transformers", "pytorch_lightning"):
            pytest.importorskip(package)


@needs_two_gpus
@on("cuda")
@pytest.mark.parametrize("example", ["context_parallel", "symmetric_memory"])
def test_examples_learn_on_gpus(example: str, device: str, processes: Processes) -> None:
    _skip_unless_runnable(device)
    assert re.fullmatch(_DIGITS, _output(example, processes(device), device))


@on_cpu_and_gpu
@pytest.mark.parametrize("example", _LEARNED)
def test_examples_learn(example: str, device: str, processes: Processes) -> None:
    _skip_unless_runnable(device)
    backends = ["axon", "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"]
    if (example, device) == ("profiled", "cuda"):
        backends.pop()  # NCCL's calls have other names in the profiler's table
    outputs = [_output(example, processes(device), device, backend=backend) for backend in backends]
    assert re.fullmatch(_LEARNED[example], outputs[0])
    learned = [re.sub(_CALLS, "", output) for output in outputs]
    assert len(set(learned)) == 1  # a sum of two ranks has only one order


@on_cpu_and_gpu
@pytest.mark.parametrize(
    ("example", "switch"),
    [
        ("ddp", "--gradients=exact"),
        ("ddp", "--gradients=fp16"),
        ("ddp", "--gradients=powersgd"),
        ("ddp", "--batch-norm"),
        ("fsdp", "--cpu-offload"),
        ("fsdp", "--fsdp1 --cpu-offload"),
        ("fsdp", "--summed-loss"),
        ("pipeline", "--schedule=1F1B"),
    ],
)
def test_examples_learn_as_switched(example: str, switch: str, device: str, processes: Processes) -> None:
    _skip_unless_runnable(device)
    plain, switched = (
        _output(example, processes(device), device, *switches) for switches in ((), tuple(switch.split()))
    )
    assert re.fullmatch(_DIGITS, switched)
    # Only CPU offload leaves the numbers unchanged, if the optimizer runs on the same processor.
    assert (switched == plain) == (switch.endswith("--cpu-offload") and device == "cpu")


@on_cpu_and_gpu
def test_fsdp_learns_on_two_replicas_of_two_shards(device: str, processes: Processes) -> None:
    _skip_unless_runnable(device)
    fsdp2, fsdp1 = (_output("fsdp", processes(device, 4), device, *switches) for switches in ((), ("--fsdp1",)))
    assert re.fullmatch(_DIGITS, fsdp2)
    assert re.fullmatch(_DIGITS, fsdp1)
    assert fsdp1 == fsdp2 or device == "cuda"  # where products may depend on the alignment of parameters
