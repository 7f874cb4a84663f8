"""docs/performance.md and its plots match what the command generates from the committed results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import performance  # noqa: E402
import performance_one_sided as one_sided  # noqa: E402
import performance_tables as tables  # noqa: E402


def test_page_is_generated_from_the_committed_results() -> None:
    assert performance.PAGE.read_text(encoding="utf-8") == performance.page(), "run: make docs"


def test_changed_result_changes_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = performance.page()
    for path in performance.RESULTS.glob("*.jsonl"):
        text = path.read_text(encoding="utf-8")
        planted = text.replace('"num_parameters": 151306', '"num_parameters": 151307')
        (tmp_path / path.name).write_text(planted, encoding="utf-8")
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert before.replace("151,306", "151,307") == performance.page() != before


def test_figures_of_gpus_between_hosts_appear_with_their_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in performance.RESULTS.glob("*.jsonl"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    some = (performance.RESULTS / "collectives_2xh200.jsonl").read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "between_hosts_bbr_rails_0_2hosts_1xh200_nccl_4x4.jsonl").write_text(some + "\n", encoding="utf-8")
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    title = "### 2 hosts with 1 H200 each, bbr, AXON_RAILS=0, × NCCL with 4 × 4 sockets\n"
    assert title in performance.page()


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("between_hosts_reno_2hosts_2xh200", "2 hosts with 2 H200 each, reno, × NCCL"),
        ("between_hosts_reno_2hosts_1xh200_graph", "2 hosts with 1 H200 each, reno, CUDA graphs, × NCCL"),
        ("between_hosts_bbr_2hosts_1xh100_nccl_4x4", "2 hosts with 1 H100 each, bbr, × NCCL with 4 × 4 sockets"),
    ],
)
def test_titles_between_hosts(name: str, title: str) -> None:
    assert tables.title_between_hosts(name) == title


@pytest.mark.parametrize("plot", performance.ALL_PLOTS)
def test_plot_shows_the_committed_results(plot: str) -> None:
    drawn = (performance.DOCS / plot).read_bytes()
    assert f"Description\0{performance.digest(plot)}".encode() in drawn, "run: python benchmarks/performance.py --plots"


def test_every_table_says_where_and_when_it_was_measured() -> None:
    sections = performance.page().split("\n### ")[1:]
    assert all(".jsonl`" in text and "commit" in text and "; 20" in text for text in sections)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.0734, "0.07"), (3.868, "3.87"), (46.06, "46.1"), (795.3, "795"), (22024, "22,024"), (12, "12")],
)
def test_figures_have_three_digits(number: float, shown: str) -> None:
    assert tables.figure(number) == shown


def test_slower_measurements_are_listed() -> None:
    sides = [{"backend": name, "p50_us": us, "failure": None, "wrong": 0} for name, us in (("axon", 10), ("gloo", 9))]
    line = {"op": "barrier", "size": 8, "graph": False, "host": False, "window": 1, "sides": sides, "file": "x.jsonl"}
    assert tables.faster_backends([line])[1] == ["`x.jsonl`", "barrier", "one by one", "gloo", "8 B (0.90 ×)"]


def test_faster_sides_of_transfers_are_listed_without_our_own() -> None:
    values = {"axon": 10.0, "axon_polling": 5.0, "nixl": 9.0, "ucxx": None, "mooncake": 11.0}
    sides = [{"name": name, "value": value} for name, value in values.items()]
    line = {"op": "read", "num_bytes": 4 << 20, "num_blocks": 1024, "in_flight": 16, "buffers": "reused"}
    line |= {"place": "one host", "memory": "plain", "sides": sides, "file": "x.jsonl"}
    [row, *_] = one_sided.faster_sides(lambda name: [line])
    assert row == [
        "`x.jsonl`",
        "read, 16 in flight",
        "one host, plain memory",
        "nixl",
        ", ".join(["1,024 × 4 KiB (0.90 ×)"] * len(one_sided.FILES)),
    ]
