"""Tests the benchmark of calls beside a matrix product: kernels of a trace, overlapping times, the table."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torch_axon.bench.beside_record import TITLES, BesideLine, BesideSide, rows
from torch_axon.bench.kernels import Footprint, Kernel, read_trace
from torch_axon.bench.loops import period
from torch_axon.bench.record import append_lines, describe_machine
from torch_axon.bench.report import wrong_results

KERNEL = Kernel("axon::ll128_all_reduce", 16, 512)
OURS = BesideSide(
    "axon",
    call_alone_us=50.0,
    call_beside_us=80.0,
    product_alone_us=1400.0,
    product_beside_us=1750.0,
    kernels=(KERNEL,),
    multiprocessors=16,
    turns=8,
    wrong=0,
)
FAILED = BesideSide("nccl", failure="no")
LINE = BesideLine("all_reduce", 1 << 20, 1 << 19, "bfloat16", "sum", -1, 2, 8192, (OURS, FAILED), describe_machine())


def kernel_event(name: str, grid: list[int], block: list[int]) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "args": {"grid": grid, "block": block, "stream": 7}}


def kernels_of(*events: dict[str, Any]) -> tuple[Kernel, ...]:
    return read_trace({"traceEvents": list(events)}, num_calls=3).kernels


def test_a_trace_gives_each_kernel_once_and_in_order() -> None:
    first = kernel_event("first(int)", [16, 1, 1], [512, 1, 1])
    second = kernel_event("second(int)", [2, 3, 1], [32, 2, 1])
    assert kernels_of(first, second, first, second) == (Kernel("first", 16, 512), Kernel("second", 6, 64))


def test_a_trace_gives_one_kernel_of_two_shapes_twice() -> None:
    shapes = [kernel_event("same", [blocks, 1, 1], [64, 1, 1]) for blocks in (1, 8)]
    assert [kernel.blocks for kernel in kernels_of(*shapes)] == [1, 8]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ncclDevKernel_AllReduce_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce_RING_LL"),
        ("void axon::(anonymous namespace)::push<__nv_bfloat16, (axon::Reduction)0>(axon::Push)", "axon::push"),
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNN", "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNN"),
    ],
)  # fmt: skip
def test_kernels_bear_the_names_of_their_functions(name: str, short: str) -> None:
    assert kernels_of(kernel_event(name, [1, 1, 1], [1, 1, 1])) == (Kernel(short, 1, 1),)


def test_a_trace_counts_copies_a_call_and_leaves_out_the_rest() -> None:
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy PtoP", "args": {"bytes": 8}}
    others = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {}},
        {"ph": "M", "name": "process_name"},
    ]
    assert read_trace({"traceEvents": [*others, *6 * [copy]]}, num_calls=3) == Footprint((), 2)


def test_a_period_is_the_time_from_mark_to_mark() -> None:
    times = [10.0, 20.0, 30.0, 40.0]
    assert period(times, 10.0, 40.0) == pytest.approx(10.0)
    assert period(times, 0.0, 100.0) == pytest.approx(10.0)


def test_a_period_counts_only_what_is_between_its_ends() -> None:
    slow_at_first = [0.0, 100.0, 200.0, 210.0, 220.0]
    assert period(slow_at_first, 200.0, 220.0) == pytest.approx(10.0)
    assert period(slow_at_first, 0.0, 200.0) == pytest.approx(100.0)
    assert period(slow_at_first, 150.0, 200.0) == pytest.approx(100.0)  # half an interval
    assert period(slow_at_first, 195.0, 205.0) == pytest.approx(10.0 / 0.55)


def test_a_period_bears_marks_at_the_same_time() -> None:
    assert period([0.0, 5.0, 5.0, 10.0, 10.0], 0.0, 10.0) == pytest.approx(2.5)


@pytest.mark.parametrize(("begin", "end"), [(50.0, 60.0), (-10.0, 0.0), (5.0, 5.0)])
def test_a_period_of_what_does_not_overlap_is_infinite(begin: float, end: float) -> None:
    assert period([0.0, 10.0, 20.0], begin, end) == math.inf


def test_a_call_costs_what_the_product_lengthens_while_it_runs() -> None:
    assert OURS.slowdown == pytest.approx(1.25)
    # 80 µs of calls and product at once contain 64 µs worth of product.
    assert OURS.lost_us == pytest.approx(16.0)


def test_table_has_a_row_a_side_and_dashes_where_one_failed() -> None:
    ours, failed = (dict(zip(TITLES, row, strict=True)) for row in rows([LINE]))
    assert (ours["op"], ours["size"], ours["backend"]) == ("all_reduce", "1M", "axon")
    assert (ours["blocks × threads"], ours["SMs"], ours["copies"]) == ("16 × 512", "16", "0")
    assert (ours["call µs"], ours["beside product"]) == ("50.0", "80.0")
    assert (ours["product µs"], ours["beside calls"], ours["× as long"]) == ("1400.0", "1750.0", "1.250")
    assert ours["lost µs per call"] == "16.0"
    assert failed["backend"] == "nccl"
    assert {failed[title] for title in TITLES[3:]} == {"–"}


def test_table_names_all_kernels_of_a_call_or_none() -> None:
    two = replace(OURS, kernels=(KERNEL, Kernel("axon::copy", 4, 1024)))
    none = replace(OURS, kernels=(), multiprocessors=0)
    shown = [row[TITLES.index("blocks × threads")] for row in rows([replace(LINE, sides=(two, none))])]
    assert shown == ["16 × 512, 4 × 1024", "none"]


def test_every_line_of_a_result_file_is_complete_in_itself(tmp_path: Path) -> None:
    path = tmp_path / "beside.jsonl"
    append_lines(path, [LINE])
    fields = json.loads(path.read_text())
    assert (fields["op"], fields["product"], fields["ranks"]) == ("all_reduce", 8192, 2)
    assert fields["sides"][0]["kernels"] == [{"name": "axon::ll128_all_reduce", "blocks": 16, "threads": 512}]
    assert fields["machine"]["cpu"]


def test_wrong_elements_and_failures_of_the_judged_side_are_reported() -> None:
    assert wrong_results([LINE]) == []
    assert wrong_results([replace(LINE, sides=(replace(OURS, wrong=3), FAILED))]) == [
        "all_reduce 1M: axon has 3 wrong elements"
    ]
    assert wrong_results([replace(LINE, sides=(FAILED,))]) == ["all_reduce 1M: nccl failed: no"]
