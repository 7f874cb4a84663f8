"""The benchmark's operations against the backend, and whole runs under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import reduce
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from support.bench_runs import run_bench
from support.pool import BACKEND, RankPool
from torch_axon.bench import measure, patterns
from torch_axon.bench.arguments import parse_arguments
from torch_axon.bench.contenders import Control
from torch_axon.bench.exercise import Exercise, Setting
from torch_axon.bench.measure import Meter
from torch_axon.bench.operations import OPERATIONS
from torch_axon.bench.record import describe_machine, read_lines

COUNT = 301


def prepare(name: str, redop: str = "sum", root: int = 0) -> Exercise:
    setting = Setting(COUNT, torch.float32, redop, root, dist.get_rank(), dist.get_world_size())
    return OPERATIONS[name].prepare(setting)


def count_wrong(name: str, is_async: bool) -> int:
    """Returns the number of wrong elements on this rank after a call with the last rank as root."""
    exercise = prepare(name, root=dist.get_world_size() - 1)
    exercise.fill()
    work = exercise.launch(dist.group.WORLD, is_async)
    looks_on = name == "sendrecv" and dist.get_rank() ^ 1 >= dist.get_world_size()
    assert (work is not None) == (is_async and not looks_on)
    if work is not None:
        work.wait()
    return exercise.count_wrong()


def count_wrong_without_a_call(name: str) -> int:
    exercise = prepare(name)
    exercise.fill()
    return exercise.count_wrong()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_gives_what_its_row_expects(ranks: RankPool, name: str, is_async: bool) -> None:
    if BACKEND == "gloo" and name == "all_gather_uneven":
        pytest.skip("Gloo gathers only equal sizes")
    assert ranks.run(count_wrong, name, is_async) == [0] * ranks.size


def run_chain(name: str) -> bool:
    """Returns whether the chain of calls keeps buffers of zeros at zero, as repeated timed calls must."""
    exercise = prepare(name)
    chain = exercise.chain()
    for launch in 3 * chain:
        launch(dist.group.WORLD, False)
    return all(not bool(buffer.any()) for buffer, _ in exercise.inputs + exercise.outputs)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_chain_of_calls_can_be_timed(three_ranks: RankPool, name: str) -> None:
    if BACKEND == "gloo" and name == "all_gather_uneven":
        pytest.skip("Gloo gathers only equal sizes")
    assert all(three_ranks.run(run_chain, name))


def roots_of_chain(name: str) -> list[int]:
    """Returns the root of each timed call on a GPU, with the last rank as root of other calls."""
    roots: list[int] = []
    with patch.object(dist, name.partition("_")[0], lambda _tensor, root, **_: roots.append(root)):
        for launch in prepare(name, root=dist.get_world_size() - 1).chain():
            launch(dist.group.WORLD, False)
    return roots


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_the_root_of_timed_calls_moves_unless_it_is_fixed(three_ranks: RankPool, collective: str) -> None:
    assert three_ranks.run(roots_of_chain, collective) == 3 * [[0, 1, 2]]
    assert three_ranks.run(roots_of_chain, f"{collective}_fixed_root") == 3 * [[2]]


@pytest.mark.parametrize("name", [name for name, operation in OPERATIONS.items() if operation.sized])
def test_a_call_that_does_nothing_is_seen_as_wrong(three_ranks: RankPool, name: str) -> None:
    assert sum(three_ranks.run(count_wrong_without_a_call, name)) > 0


@pytest.mark.parametrize(
    ("name", "factor_of_4"),
    [
        ("all_reduce", 1.5),
        ("all_reduce_coalesced", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1.0),
        ("broadcast_fixed_root", 1.0),
        ("reduce", 1.0),
        ("sendrecv", 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(name: str, factor_of_4: float) -> None:
    assert OPERATIONS[name].bus_factor(4) == factor_of_4


def test_sizes_count_the_largest_buffer_of_a_rank() -> None:
    assert OPERATIONS["all_reduce"].count(1024, torch.float32, 4) == 256
    assert OPERATIONS["all_gather"].count(1024, torch.float32, 4) == 64
    assert OPERATIONS["all_gather"].size(64, torch.float32, 4) == 1024


def test_sizes_below_one_element_a_rank_are_rounded_up() -> None:
    assert OPERATIONS["all_gather"].count(8, torch.float64, 4) == 1


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("redop", patterns.REDUCTIONS)
def test_reductions_of_patterns_are_exact_in_every_dtype(redop: str, num_ranks: int) -> None:
    reduction = patterns.REDUCTIONS[redop]
    for dtype in patterns.DTYPES.values():
        if reduction.integers_only and dtype.is_floating_point:
            continue
        wide = torch.int64 if reduction.integers_only else torch.float64
        parts = [patterns.contribution(redop, rank, num_ranks, COUNT, dtype).to(wide) for rank in range(num_ranks)]
        total = reduce(reduction.combine, parts)
        expected = total / num_ranks if redop == "avg" else total
        assert torch.equal(patterns.reduced(redop, num_ranks, COUNT, dtype).to(wide), expected)


@pytest.mark.parametrize("shift", [1, 2, 16, 1024, 4096])
def test_patterns_shifted_by_a_power_of_two_differ_everywhere(shift: int) -> None:
    for dtype in patterns.DTYPES.values():
        values = patterns.moved(3, 10000, dtype)
        assert not bool((values[shift:] == values[:-shift]).any())


def test_run_measures_checks_writes_and_draws(tmp_path: Path) -> None:
    results, plot = tmp_path / "results.jsonl", tmp_path / "curves.png"
    done = run_bench(
        "all_reduce,sendrecv,barrier", "--vs", "gloo,fake", "--sizes", "8,64K", "--iters", "6", "--blocks", "2",
        "--json", str(results), "--plot", str(plot),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = read_lines(results)
    assert [(line.op, line.size) for line in lines] == [
        ("all_reduce", 8),
        ("all_reduce", 65536),
        ("sendrecv", 8),
        ("sendrecv", 65536),
        ("barrier", 0),
    ]
    for line in lines:
        assert [side.backend for side in line.sides] == [BACKEND, "gloo", "fake"]
        assert [side.wrong for side in line.sides] == [0, 0, None]
        assert all(0 < side.p50_us <= side.p99_us for side in line.sides)
        assert all(side.calls >= 6 for side in line.sides)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "× gloo" in done.stdout


def test_run_keeps_a_window_of_asynchronous_calls_in_flight_and_judges_it(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    operations = ["all_reduce", "all_reduce_coalesced", "sendrecv", "ring"]
    done = run_bench(
        ",".join(operations), "--sizes", "1K", "--dtype", "bfloat16", "--iters", "16", "--blocks", "2", "--async",
        "--window", "4", "--assert-ahead", "1e6", "--json", str(results),
    )  # fmt: skip
    assert done.returncode != 0, done.stdout + done.stderr
    lines = read_lines(results)
    assert [line.op for line in lines] == operations
    for line in lines:
        assert (line.window, line.dtype) == (4, "bfloat16")
        assert (line.judged.batch, line.judged.wrong) == (4, 0)
        assert f"{line.op} 1K, 2 ranks, 4 in flight: {BACKEND}" in done.stdout


def window_of_64k(free: int) -> int:
    """Returns the window for 16 requested calls in flight. The last rank has `free` bytes, the others have more."""
    rank = dist.get_rank()
    arguments = parse_arguments(("--backend", BACKEND, "--async", "--window", "16"), dist.get_world_size())
    meter = Meter([], Control(dist.group.WORLD), arguments, describe_machine())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "free_bytes", lambda _: free << (dist.get_world_size() - 1 - rank))
        return meter._window(1 << 16)


def test_a_window_of_any_size_is_kept_in_half_of_what_memory_the_poorest_rank_has(three_ranks: RankPool) -> None:
    assert three_ranks.run(window_of_64k, 1 << 30) == [16] * 3
    assert three_ranks.run(window_of_64k, 5 << 19) == [5] * 3
    assert three_ranks.run(window_of_64k, 1 << 10) == [1] * 3


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs, since NCCL takes no two ranks on one")
@pytest.mark.parametrize("mode", [[], ["--graph"], ["--async"]], ids=["eager", "graph", "async"])
def test_run_measures_beside_nccl_and_symmetric_memory(mode: list[str], tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    done = run_bench(
        "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,ring", "--device", "cuda", *mode,
        "--vs", "nccl,symm_mem", "--dtype", "bfloat16", "--sizes", "1K,1M", "--iters", "200", "--blocks", "2",
        "--json", str(results), "--plot", str(tmp_path / "curves.png"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for line in read_lines(results):
        assert (line.device, line.graph) == ("cuda", mode == ["--graph"])
        assert line.machine.gpu
        assert [side.backend for side in line.sides] == [BACKEND, "nccl", "symm_one_shot", "symm_two_shot"]
        assert all(side.measured == (line.op == "all_reduce") for side in line.sides[2:])
        assert all(side.wrong == 0 for side in line.sides if side.measured)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")
def test_run_times_the_host_beside_both_floors(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    done = run_bench(
        "all_reduce,all_gather", "--device", "cuda", "--host", "--vs", "fake,launch", "--sizes", "8,64K",
        "--blocks", "2", "--json", str(results),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "over fake + launch µs" in done.stdout
    lines = read_lines(results)
    assert [(line.op, line.size) for line in lines] == [
        (op, size) for op in ("all_reduce", "all_gather") for size in (8, 1 << 16)
    ]
    for line in lines:
        assert line.host
        assert [side.backend for side in line.sides] == [BACKEND, "fake", "launch"]
        assert [side.wrong for side in line.sides] == [0, None, None]
        assert all(0 < side.p50_us <= side.p99_us for side in line.sides)
        assert all(side.batch == 32 for side in line.sides)
        assert all(side.busbw_gbs == 0 for side in line.sides)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs, since NCCL takes no two ranks on one")
def test_run_measures_calls_beside_a_matrix_product(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    done = run_bench(
        "all_reduce,all_gather,ring", "--device", "cuda", "--beside", "4096", "--vs", "nccl,symm_mem,fake",
        "--dtype", "bfloat16", "--sizes", "64K,4M", "--blocks", "2", "--seconds", "0.02", "--json", str(results),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost µs per call" in done.stdout
    lines = [json.loads(text) for text in results.read_text().splitlines()]
    assert [line["op"] for line in lines] == 2 * ["all_reduce"] + 2 * ["all_gather"] + 2 * ["ring"]
    for line in lines:
        assert line["product"] == 4096
        measured = [side for side in line["sides"] if side["failure"] is None]
        symmetric = ["symm_one_shot", "symm_two_shot"] if line["op"] == "all_reduce" else []
        assert [side["backend"] for side in measured] == [BACKEND, "nccl", *symmetric, "fake"]
        for side in measured:
            assert side["turns"] == 2
            assert all(side[f"{what}_{how}_us"] > 0 for what in ("call", "product") for how in ("alone", "beside"))
            moves = side["backend"] != "fake"
            is_copied = line["op"] == "all_gather"  # fake's all_gather copies the input once for each rank
            assert bool(side["kernels"] or side["copies"]) == (moves or is_copied)
            assert bool(side["kernels"]) == (side["multiprocessors"] > 0)
            assert side["wrong"] == (0 if moves else None)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")
def test_run_says_what_groups_cost_on_a_gpu() -> None:
    done = run_bench("--groups", "3", "--device", "cuda", "--vs", BACKEND)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GPU MiB per group" in done.stdout


def test_run_that_is_not_ahead_fails_and_says_where() -> None:
    done = run_bench("--sizes", "8", "--iters", "4", "--blocks", "1", "--assert-ahead", "1e6")
    assert done.returncode != 0
    assert f"all_reduce 8, 2 ranks: {BACKEND}" in done.stdout
    assert "of the 1e+06 wanted" in done.stdout


def test_run_leaves_out_a_rival_that_cannot_do_an_operation() -> None:
    done = run_bench("all_gather_uneven", "--sizes", "1K", "--iters", "4", "--blocks", "1")
    assert "gloo: ProcessGroupGloo::allgather: invalid tensor size" in done.stdout
    assert (done.returncode == 0) == (BACKEND != "gloo")


def run_without_torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    return subprocess.run(
        [sys.executable, "-m", "torch_axon.bench", "--backend", BACKEND, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )


def test_run_outside_torchrun_says_how_to_start_it() -> None:
    done = run_without_torchrun()
    assert done.returncode == 2
    assert "start with torchrun" in done.stderr


def test_run_for_several_numbers_of_ranks_fails_where_one_of_them_does(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    quick = ("--sizes", "8", "--iters", "4", "--blocks", "1", "--json", str(results))
    done = run_without_torchrun("--ranks", "1,2", *quick)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.ranks for line in read_lines(results)] == [1, 2]
    slow = run_without_torchrun("--ranks", "2,3", *quick, "--assert-ahead", "1e6")
    assert slow.returncode == 1
    for number in (2, 3):
        assert f"all_reduce 8, {number} ranks: {BACKEND}" in slow.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--ranks", "2,0"), "'2,0' is not a list of numbers from 1 to 64"),
        (("--ranks", "2,3", "--plot", "x.png"), "argument --plot: of one number of --ranks only"),
    ],
)
def test_mistakes_in_ranks_are_told(arguments: tuple[str, ...], complaint: str) -> None:
    done = run_without_torchrun(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
