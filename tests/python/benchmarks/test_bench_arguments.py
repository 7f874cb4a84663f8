"""Tests the benchmark's command line: sizes, and errors of every argument."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torch_axon.bench.arguments import Arguments, parse_arguments
from torch_axon.bench.operations import OPERATIONS
from torch_axon.bench.sizes import format_size, parse_size, parse_sizes, size_range

NUM_RANKS = 2


def parse(*command_line: str) -> Arguments:
    """Parses with Gloo under test, so that no build is needed."""
    return parse_arguments(("--backend", "gloo", *command_line), NUM_RANKS)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("8", 8), ("8B", 8), ("4K", 4096), ("4k", 4096), ("1.5M", 3 << 19), ("2G", 2 << 30), (" 16KB ", 16384)],
)
def test_size_is_a_number_and_a_power_of_1024(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "K", "-8", "8T", "8 K", "1e6", "x2"])
def test_size_refuses_other_spellings(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("num_bytes", [0, 1, 1000, 1024, 1536, 3 << 19, 1 << 20, 1 << 30, 4098])
def test_format_size_is_read_back_exactly(num_bytes: int) -> None:
    assert parse_size(format_size(num_bytes)) == num_bytes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8", (8,)),
        ("8:64:x2", (8, 16, 32, 64)),
        ("8:64", (8, 16, 32, 64)),
        ("8:100:x4", (8, 32)),
        ("1:4:x1.5", (1, 2, 3, 4)),
        ("8:24:+8", (8, 16, 24)),
        ("1K:3K:+1K", (1024, 2048, 3072)),
        ("1M,8:16:x2,8", (1 << 20, 8, 16)),
    ],
)
def test_sizes_are_lists_of_sizes_and_ranges(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("64:8", "upwards"),
        ("0:8", "upwards"),
        ("8:64:2", "is not a step"),
        ("8:64:x1", "never reaches"),
        ("8:64:+0", "never reaches"),
        ("8:64:x2:x2", "is not a range"),
        ("1:1G:+1", "more than 1000 sizes"),
        ("8:64:xx", "is not a step"),
        ("8,,16", "is not a size"),
    ],
)
def test_sizes_refuse_ranges_that_make_no_sense(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_sizes(text)


def test_size_range_ends_at_the_last_size_within() -> None:
    assert size_range(8, 33) == (8, 16, 32)


def test_defaults_are_all_reduce_of_float32_sums_against_gloo() -> None:
    arguments = parse()
    assert arguments.operations == ("all_reduce",)
    assert (arguments.dtype, arguments.redop, arguments.rivals) == (torch.float32, "sum", ("gloo",))
    assert (arguments.sizes[0], arguments.sizes[-1]) == (8, 128 << 20)
    assert arguments.window is None
    assert arguments.ahead is None


def test_all_means_every_row_of_the_table() -> None:
    assert parse("all").operations == tuple(OPERATIONS)


def test_operations_keep_their_order_and_come_once() -> None:
    assert parse("barrier,all_reduce,barrier").operations == ("barrier", "all_reduce")


def test_nccl_tests_letters_mean_what_they_mean_there() -> None:
    arguments = parse("-b", "8", "-e", "32", "-f", "4", "-d", "int32", "-o", "bxor", "-n", "7", "-w", "3", "-r", "1")
    assert arguments.sizes == (8, 32)
    assert (arguments.dtype, arguments.redop) == (torch.int32, "bxor")
    assert (arguments.iters, arguments.warmup, arguments.root) == (7, 3, 1)


def test_begin_alone_ends_at_the_default_end_or_itself() -> None:
    assert parse("-b", "64M").sizes == (64 << 20, 128 << 20)
    assert parse("-b", "1G").sizes == (1 << 30,)


def test_window_counts_only_with_async() -> None:
    assert parse("--window", "4").window is None
    assert parse("--async", "--window", "4").window == 4


def test_assert_ahead_takes_a_factor_or_means_one() -> None:
    assert parse("--assert-ahead").ahead == 1.0
    assert parse("--assert-ahead", "3").ahead == 3.0


def test_several_rivals_are_comma_separated() -> None:
    assert parse("--vs", "gloo,fake").rivals == ("gloo", "fake")


def test_symm_mem_stands_for_both_its_kernels() -> None:
    from torch_axon.bench.arguments import _backends

    assert _backends("gloo,symm_mem") == ("gloo", "symm_one_shot", "symm_two_shot")


def test_on_gpus_host_time_is_compared_with_both_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse("--device", "cuda", "--host").rivals == ("nccl", "fake", "launch")
    assert parse("--device", "cuda", "--host", "--vs", "launch").rivals == ("launch",)
    assert parse("--device", "cuda").rivals == ("nccl",)


def test_beside_takes_the_size_of_the_product_and_measures_large_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    arguments = parse("--device", "cuda", "--beside")
    assert (arguments.beside, arguments.sizes) == (8192, (1 << 20, 16 << 20, 256 << 20))
    assert parse("--device", "cuda", "--beside", "4096", "--sizes", "8").beside == 4096
    assert parse("--device", "cuda").beside == 0


def test_a_gpu_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.device_count():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(SystemExit):
        parse("--device", "cuda")
    assert "argument --device: no GPU here for 'cuda'" in capsys.readouterr().err


def test_idle_needs_a_rank_to_wake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(("--backend", "gloo", "--idle"), 1)
    assert "argument --idle: needs 2 ranks" in capsys.readouterr().err


def test_output_files_are_paths() -> None:
    arguments = parse("--json", "a.jsonl", "--plot", "b.png")
    assert (arguments.json, arguments.plot) == (Path("a.jsonl"), Path("b.png"))


@pytest.mark.parametrize(
    ("mistake", "answer"),
    [
        (["all_reduce,all_reduse"], "argument OPERATIONS: 'all_reduse' is not one of all_reduce, all_reduce_coalesced"),
        (["--sizes", "8:1Q"], "argument --sizes: '1Q' is not a size"),
        (["--sizes", "8", "-b", "8"], "argument --sizes: not together with -b, -e or -f"),
        (["-b", "64", "-e", "8"], "arguments -b, -e, -f: a range goes upwards"),
        (["-f", "1"], "argument -f/--factor: '1' is not a number from 1.01 to 1024"),
        (["-f", "much"], "argument -f/--factor: 'much' is not a number"),
        (["--dtype", "float8"], "invalid choice: 'float8'"),
        (["--redop", "mean"], "invalid choice: 'mean'"),
        (["--redop", "band"], "argument -o/--redop: 'band' needs an integer --dtype (int8, uint8, int32, int64)"),
        (["--root", "2"], "argument -r/--root: 2 is not a rank from 0 to 1"),
        (["--root", "-1"], "argument -r/--root: '-1' is not an integer from 0"),
        (["--iters", "0"], "argument -n/--iters: '0' is not an integer from 1"),
        (["--iters", "2.5"], "argument -n/--iters: '2.5' is not an integer"),
        (["--vs", "glue"], "argument --vs: 'glue' is not a backend of this process; available:"),
        (["--backend", "glue"], "argument --backend: 'glue' is not a backend"),
        (["--plot", "curve.pdf"], "argument --plot: 'curve.pdf' does not end in .png"),
        (["--assert-ahead", "0"], "argument --assert-ahead: '0' is not a number"),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--graph"], "argument --graph: needs --device cuda"),
        (["--vs", "gloo,symm_mem"], "argument --vs: symm_mem needs --device cuda"),
        (["--vs", "gloo,launch"], "argument --vs: launch needs --device cuda"),
        (["--graph", "--async"], "argument --graph: not together with --async"),
        (["--host"], "argument --host: needs --device cuda"),
        (["--host", "--graph"], "argument --host: not together with --graph"),
        (["--host", "--async"], "argument --host: not together with --async"),
        (["--beside"], "argument --beside: needs --device cuda"),
        (["--beside", "1024"], "argument --beside: '1024' is not an integer from 4096 to 65536"),
        (["--beside", "--host"], "argument --beside: not together with --host"),
        (["--beside", "--iters", "9"], "argument --beside: not together with --iters"),
        (["--beside", "--assert-ahead"], "argument --beside: not together with --assert-ahead"),
        (["--groups", "1", "--beside"], "argument --groups: not together with --beside"),
        (["--groups", "1", "--idle"], "argument --groups: not together with --idle"),
        (
            ["--idle", "--vs", "gloo,fake"],
            "argument --vs: not fake with --idle, since it sends no messages",
        ),
        (["--nap", "31"], "argument --nap: '31' is not a number from 0.01 to 30"),
        (["--idle", "0"], "argument --idle: '0' is not a number from 0.1 to 3600"),
        (["--seconds", "nan"], "argument --seconds: 'nan' is not a number"),
    ],
)
def test_mistakes_are_answered_with_argument_value_and_limits(
    mistake: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse(*mistake)
    assert exit_info.value.code == 2
    assert answer in capsys.readouterr().err
