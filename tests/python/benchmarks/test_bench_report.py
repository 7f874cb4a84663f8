"""Tests what the benchmark makes of measured records: files, tables, verdicts, plots. No process group is opened."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torch_axon.bench.measure import percentile
from torch_axon.bench.plot import draw_over_size, save_plot, size_ticks
from torch_axon.bench.record import Line, Machine, Side, append_lines, describe_machine, read_lines
from torch_axon.bench.report import ahead_failures, columns, main, markdown, wrong_results

MACHINE = Machine(
    cpu="Model 9",
    cores=2,
    kernel="6.1",
    python="3.12.1",
    torch="2.11.0",
    commit="v0.1-3-gabc",
    date="2026-01-02T03:04:05+00:00",
    command="torchrun --nproc-per-node=2 -m torch_axon.bench all_reduce",
)
OURS = Side("axon", p50_us=10.0, p99_us=20.0, algbw_gbs=1.5, busbw_gbs=1.5, calls=100, batch=5, wrong=0)
GLOO = Side("gloo", p50_us=150.0, p99_us=400.0, algbw_gbs=0.1, busbw_gbs=0.1, calls=100, batch=1, wrong=0)
FAKE = Side("fake", p50_us=4.0, p99_us=5.0, calls=100, batch=5)
LINE = Line("all_reduce", 1024, 256, "float32", "sum", -1, 2, 1, (OURS, GLOO, FAKE), MACHINE)
SLOWER = replace(LINE, size=1 << 20, sides=(OURS, replace(GLOO, p50_us=9.0), FAKE))


def cells(line: Line) -> dict[str, str]:
    return {column.title: column.cell(line) for column in columns([line])}


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3.0], 0.99, 3.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.5),
        (list(range(101)), 0.99, 99.0),
        ([1.0, 2.0], 0.0, 1.0),
        ([1.0, 2.0], 1.0, 2.0),
    ],
)
def test_percentile_interpolates_between_neighbours(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_ratio_is_how_many_times_as_long_the_other_takes() -> None:
    assert LINE.ratio(GLOO) == pytest.approx(15.0)


def test_ratio_is_absent_for_the_judged_side_and_for_failures() -> None:
    assert LINE.ratio(OURS) is None
    failed = replace(GLOO, failure="no")
    assert replace(LINE, sides=(OURS, failed)).ratio(failed) is None


def test_table_has_the_columns_of_nccl_tests_for_both_sides() -> None:
    titles = [column.title for column in columns([LINE])]
    assert titles[:6] == ["op", "size", "count", "type", "redop", "root"]
    assert titles[6:11] == ["axon µs", "p99", "algbw", "busbw GB/s", "#wrong"]
    assert titles[11:] == ["gloo µs", "p99", "algbw", "busbw GB/s", "#wrong", "× gloo", "fake µs", "over fake µs"]


def test_table_shows_figures_ratio_and_distance_to_the_floor() -> None:
    shown = cells(LINE)
    assert (shown["size"], shown["axon µs"], shown["gloo µs"], shown["× gloo"]) == ("1K", "10.00", "150", "15.00")
    assert (shown["fake µs"], shown["over fake µs"]) == ("4.00", "6.00")


def test_table_shows_the_floor_of_links_that_are_known() -> None:
    line = replace(LINE, size=1 << 30, machine=replace(MACHINE, gpu="NVIDIA H200"), device="cuda", graph=True)
    assert cells(line)["floor µs"] == "2755"
    assert cells(replace(line, op="all_gather", ranks=4))["floor µs"] == "2067"
    assert "floor µs" not in cells(replace(line, machine=replace(MACHINE, gpu="Model 8")))
    assert "2 ranks on GPUs NVIDIA H200, graphs, Model 9" in markdown([line])


def test_table_of_host_time_shows_distances_to_both_floors_and_no_bandwidth() -> None:
    launch = replace(FAKE, backend="launch", p50_us=2.5)
    line = replace(LINE, sides=(OURS, GLOO, FAKE, launch), device="cuda", host=True)
    shown = cells(line)
    assert (shown["fake µs"], shown["launch µs"], shown["over fake + launch µs"]) == ("4.00", "2.50", "3.50")
    assert not {"algbw", "busbw GB/s", "floor µs"} & shown.keys()
    assert cells(replace(line, sides=(OURS, FAKE, replace(launch, failure="no"))))["over fake + launch µs"] == "–"
    assert "over fake + launch µs" not in cells(replace(line, sides=(OURS, launch)))
    assert "GPUs Model 8, host time, Model 9" in markdown([replace(line, machine=replace(MACHINE, gpu="Model 8"))])


def test_table_shows_dashes_where_a_side_failed() -> None:
    shown = cells(replace(LINE, sides=(OURS, Side("gloo", failure="unsupported"))))
    assert (shown["gloo µs"], shown["× gloo"], shown["axon µs"]) == ("–", "–", "10.00")


def test_assert_ahead_lists_only_the_lines_where_the_judged_side_is_slower() -> None:
    assert ahead_failures([LINE, SLOWER], 1.0) == [
        "all_reduce 1M, 2 ranks: axon 10.00 µs, gloo 9.00 µs, 0.90 of the 1 wanted"
    ]


def test_assert_ahead_wants_the_factor_that_it_is_given() -> None:
    assert ahead_failures([LINE], 15.0) == []
    assert len(ahead_failures([LINE], 15.1)) == 1


def test_assert_ahead_does_not_ask_to_beat_a_backend_that_does_nothing() -> None:
    assert ahead_failures([replace(LINE, sides=(OURS, FAKE, replace(FAKE, backend="launch")))], 1.0) == []


def test_wrong_elements_are_reported_of_every_side() -> None:
    line = replace(LINE, sides=(replace(OURS, wrong=3), replace(GLOO, wrong=1), FAKE))
    assert wrong_results([line]) == [
        "all_reduce 1K: axon has 3 wrong elements",
        "all_reduce 1K: gloo has 1 wrong elements",
    ]


def test_a_failure_counts_only_of_the_judged_side() -> None:
    unable = Side("gloo", failure="unsupported")
    assert wrong_results([replace(LINE, sides=(OURS, unable))]) == []
    assert wrong_results([replace(LINE, sides=(replace(unable, backend="axon"), GLOO))]) == [
        "all_reduce 1K: axon failed: unsupported"
    ]


def test_result_files_are_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    append_lines(path, [LINE])
    append_lines(path, [SLOWER])
    assert read_lines(path) == [LINE, SLOWER]


def test_result_files_from_before_gpus_are_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_lines(path, [LINE])
    fields = json.loads(path.read_text())
    del fields["device"], fields["graph"], fields["host"], fields["machine"]["gpu"]
    path.write_text(json.dumps(fields) + "\n")
    assert read_lines(path) == [LINE]


def test_every_line_of_a_result_file_is_complete_in_itself(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_lines(path, [LINE])
    fields = json.loads(path.read_text())
    assert fields["machine"]["commit"] == "v0.1-3-gabc"
    assert [side["backend"] for side in fields["sides"]] == ["axon", "gloo", "fake"]


@pytest.mark.parametrize("text", ["{", "{}", '{"sides": [], "machine": {}}', "[]"])
def test_a_file_of_something_else_is_refused_by_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.jsonl"
    append_lines(path, [LINE])
    with path.open("a") as file:
        file.write(text + "\n")
    with pytest.raises(ValueError, match=r"results\.jsonl:2 is not a record of torch_axon\.bench"):
        read_lines(path)


def test_markdown_has_a_head_and_one_row_a_line() -> None:
    text = markdown([LINE, SLOWER]).splitlines()
    assert text[0].startswith("2 ranks on Model 9 (2 cores), torch 2.11.0, v0.1-3-gabc, 2026-01-02: `torchrun ")
    assert text[2].startswith("| op | size | axon µs | p99 | busbw GB/s | gloo µs |")
    assert text[4].startswith("| all_reduce | 1K | 10.00 | 20.00 | 1.50 | 150 |")
    assert len(text) == 6
    assert len({row.count("|") for row in text[2:]}) == 1


def test_report_prints_a_table_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    later = replace(LINE, machine=replace(MACHINE, date="2026-02-02T00:00:00+00:00"), sides=(OURS, GLOO))
    append_lines(path, [LINE, SLOWER, later])
    assert main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| op | size |") == 2
    assert printed.count("| all_reduce |") == 3


def test_report_names_a_missing_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_axon.bench.report", str(tmp_path / "absent.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "absent.jsonl" in done.stderr


def test_machine_is_described_without_the_host_name() -> None:
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.cpu
    assert machine.date.endswith("+00:00")


def test_plot_is_a_png_also_where_a_side_has_no_figures(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    barrier = replace(LINE, op="barrier", size=0)
    unable = replace(LINE, size=4096, sides=(OURS, Side("gloo", failure="unsupported"), FAKE))
    save_plot([LINE, unable, barrier], path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_is_a_png_also_with_a_floor(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    machine = replace(MACHINE, gpu="NVIDIA H200")
    save_plot([replace(line, machine=machine, graph=True) for line in (LINE, SLOWER)], path)
    assert path.read_bytes().startswith(b"\x89PNG")


SIZES = [8, 1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, *((1 << 20) << n for n in (0, 1, 2, 3, 4, 6, 8, 10))]


@pytest.mark.parametrize("sizes", [SIZES, [8, 64, 1 << 26], [8 << n for n in range(28)], [1024]])
def test_labels_of_sizes_do_not_overlap(sizes: list[int]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    draw_over_size(axes[0], [replace(LINE, size=size) for size in sizes], lambda side: side.p50_us, [])
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes[0].get_xticklabels() if label.get_text()]
    pyplot.close(figure)
    assert len(boxes) == len(size_ticks(sizes))
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_last_size_is_always_labelled() -> None:
    assert size_ticks(SIZES)[-1] == 1 << 30
    assert len(size_ticks(SIZES)) >= 5


def test_plot_carries_its_description(tmp_path: Path) -> None:
    save_plot([LINE, SLOWER], tmp_path / "curves.png", "of these results")
    assert b"Description\0of these results" in (tmp_path / "curves.png").read_bytes()
