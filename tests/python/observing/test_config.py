"""The command line that prints what each operation runs: `python -m torch_axon.config --algorithms`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from torch_axon import _build
from torch_axon.config import algorithms, as_table, main, ranks_text, size_text

if TYPE_CHECKING:
    from torch_axon._C import AlgorithmRange


@pytest.fixture(autouse=True)
def _without_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AXON_ALGO", raising=False)


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[list[str]]]:
    """Returns the cells of the printed lines by operation, without the operation."""
    main(["--algorithms", *arguments])
    _, table = capsys.readouterr().out.split("\n\n")
    lines: dict[str, list[list[str]]] = {}
    for line in table.splitlines()[1:]:
        operation, *cells = re.split(r"  +", line)
        lines.setdefault(operation, []).append(cells)
    return lines


def _refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    return capsys.readouterr().err


def test_all_operations_are_printed_for_any_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _printed(capsys)
    assert list(lines) == [
        *("broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"),
        *("barrier", "send/recv"),
    ]
    for ranges in lines.values():
        assert ranges[0][0].startswith("2")
        ranks, size, *_ = ranges[-1]
        assert (ranks.endswith("or more"), size) == (True, "any")


def test_a_group_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    ranges = _printed(capsys, "--ranks", "64")["all_reduce"]
    assert [cells[:3] for cells in ranges] == [["64", "16 KiB", "recursive_doubling"], ["64", "any", "ring"]]


@pytest.mark.skipif(not _build.CUDA, reason="needs a build with CUDA")
def test_kernels_are_printed_beside_the_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, "--ranks", "2")["all_reduce"] == [
        ["2", "64 KiB", "one_shot", "ll_one_shot"],
        ["2", "512 KiB", "two_shot", "ll_one_shot"],
        ["2", "4 MiB", "two_shot", "ll128"],
        ["2", "any", "two_shot", "zero_copy"],
    ]
    assert _printed(capsys, "--ranks", "17")["send/recv"] == [["17", "any", "–", "through host memory"]]


def test_between_hosts_no_kernel_serves(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _printed(capsys, "--ranks", "8", "--hosts", "2")
    assert [cells[:3] for cells in lines["broadcast"]] == [["8", "64 KiB", "binomial"], ["8", "any", "hierarchical"]]
    if _build.CUDA:
        assert {cells[3] for ranges in lines.values() for cells in ranges} == {"through host memory"}


def test_overrides_show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AXON_ALGO", "all_reduce=ring;all_reduce=ll128")
    (cells,) = _printed(capsys, "--ranks", "4")["all_reduce"]
    assert cells[:3] == ["4", "any", "ring"]
    if _build.CUDA:
        assert cells[3] == "ll128"


@pytest.mark.skipif(not _build.CUDA, reason="needs a build with CUDA")
def test_the_table_serves_what_a_kernel_of_overrides_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AXON_ALGO", "all_reduce=ll_one_shot")
    rows = [row for row in algorithms(4) if row["operation"] == "all_reduce"]
    assert rows[0]["kernel"] == "ll_one_shot"
    assert rows[-1]["kernel"] == "zero_copy"
    largest = max(row["most_bytes"] or 0 for row in rows if row["kernel"] == "ll_one_shot")
    assert 128 << 10 < largest < 512 << 10  # more than the table's bound, up to what a large slice's packets hold


@pytest.mark.parametrize("value", ["all_reduce=abacus", "broadcast=ll_one_shot"])
def test_bad_overrides_are_named_with_what_is_allowed(
    value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AXON_ALGO", value)
    refusal = _refusal(capsys, "--algorithms")
    assert "AXON_ALGO: unknown algorithm" in refusal
    assert "for CUDA tensors" in refusal


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ranks", "4"),
        ("--algorithms", "--ranks", "1"),
        ("--algorithms", "--hosts", "0"),
        ("--algorithms", "--ranks", "2", "--hosts", "3"),
        ("--algorithms", "--markdown"),
    ],
)
def test_wrong_usage_says_what_is_allowed(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search("allowed|need", _refusal(capsys, *arguments))


def test_without_kernels_the_table_has_no_column_for_them() -> None:
    row: AlgorithmRange = {
        "operation": "all_reduce",
        "fewest_ranks": 2,
        "most_ranks": None,
        "fewest_bytes": 1,
        "most_bytes": 1 << 10,
        "algorithm": "ring",
        "kernel": "",
    }
    assert "CUDA" not in as_table([row], with_kernels=False)
    assert as_table([row], with_kernels=True).endswith("  through host memory")


def test_ranges_read_as_words() -> None:
    assert [ranks_text(2, 2), ranks_text(3, 4), ranks_text(33, None)] == ["2", "3 to 4", "33 or more"]
    sizes = [size_text(each) for each in (8, 1 << 10, 1536, 64 << 20, 3 << 30, None)]
    assert sizes == ["8 B", "1 KiB", "1536 B", "64 MiB", "3 GiB", "any"]
