"""The part of `docs/performance.md` on one-sided transfers and windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import performance_tables as tables
from baselines import Record
from performance_tables import Table, section

Read = Callable[[str], list[Record]]

FILES = {  # and the plot of each
    "one_sided_2ranks_xeon_2core": "performance_one_sided.png",
    "one_sided_mapped_2ranks_xeon_2core": "",
    "one_sided_between_hosts_2ranks_xeon_2core": "performance_one_sided_between_hosts.png",
    "one_sided_2xh200": "",
}
WINDOWS = "windows_2ranks_xeon_2core"
PLOTS = {plot: name for name, plot in FILES.items() if plot}

_OWN = ("axon", "axon_polling", "axon_invoke", "axon_nixl")
_SIZES = ("64", "64K", "1M", "16M", "64M", "256M")  # of the tables; the plots have all


def one_sided(read: Read) -> Iterator[str]:
    yield "## One-sided transfers"
    yield (
        "Reads and writes of another process's memory. `axon` is `torch_axon.runtime`; `axon_polling` asks for results "
        "again and again, and `axon_invoke` is a call that carries the same bytes. `axon_nixl` and `nixl` are one "
        "program with `torch_axon.nixl` and with NIXL's wheel, and `ucxx` is UCXX's send and recv. In brackets: that "
        "time divided by the first side's. A notification is timed there and back, and `write + notification` until "
        "the owner has answered. A list names its blocks each time, and a plan has described them before."
    )
    yield (
        "Mapped memory is that of `Runtime.empty`, at both ends. On the two cores of the Xeon, an initiator that polls "
        "competes with an owner that takes part."
    )
    for name, plot in FILES.items():
        for lines in _by_place(read(name)):
            yield from _place(lines)
        if plot:
            yield f"![Bandwidth of reads and writes over size]({plot})"
    lines = read(WINDOWS)
    note = "Half a round trip: a put and a signal, or a message. `dist.send` is that of axon."
    yield section("Windows, CPU tensors on one host", lines, tables.sides_of(lines), note)


def faster_sides(read: Read) -> list[list[str]]:
    """Makes a row per file, place, operation and faster side, as `performance_tables.faster_backends` does."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in FILES:
        for line in (line for line in read(name) if line["op"] != "idle"):
            judged, *others = line["sides"]
            for side in others:
                if side["name"] in _OWN or not side["value"] or not judged["value"]:
                    continue
                if (ratio := side["value"] / judged["value"]) < 0.995:
                    where = f"{line['place']}, {line['memory']} memory"
                    cells = found.setdefault((line["file"], line["op"] + _kind(line), where, side["name"]), [])
                    cells.append(f"{_blocks(line)} ({ratio:.2f} ×)".strip())
    return [[f"`{key[0]}`", *key[1:], ", ".join(cells)] for key, cells in found.items()]


def _by_place(lines: Sequence[Record]) -> list[list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for line in lines:
        found.setdefault((line["place"], line["memory"]), []).append(line)
    return list(found.values())


def _place(lines: Sequence[Record]) -> Iterator[str]:
    where = f"{lines[0]['place']}, {lines[0]['memory']} memory"
    sizes = {tables.num_bytes(size) for size in _SIZES}
    blocks = [line for line in lines if line["op"] in ("write", "read") and line["num_bytes"] in sizes]
    note = "A fresh buffer is local memory that no transfer has used, registered where a side needs that."
    if (lines[0]["memory"], lines[0]["place"]) == ("plain", "one host"):
        note += (
            " Its pages are new in some processes, and were mapped before in others, as the allocator decides. New "
            "pages make a read much slower, on every side."
        )
    yield section(f"One block, {where}", lines, _table(sorted(blocks, key=_order)), note)
    others = [line for line in lines if line["op"] not in ("write", "read")]
    others = [line for line in others if line["op"] != "write + notification" or line["num_bytes"] in sizes]
    note = "`idle`: % of a core. `prepare`, which describes all blocks, and `make`, which names them: ns per block."
    yield section(f"Notifications and many blocks, {where}", lines, _table(others), note)


def _order(line: Record) -> tuple[int, bool, bool]:
    """Orders operations by their number in flight, and fresh buffers after reused ones; keeps the order of sizes."""
    return line["in_flight"], line["buffers"] == "fresh", line["op"] == "read"


def _table(lines: Sequence[Record]) -> Table:
    names = [side["name"] for side in lines[0]["sides"] if _has_figure(lines, side["name"])] if lines else []
    rows = []
    for line in lines:
        sides = {side["name"]: side for side in line["sides"]}
        name = f"{line['op']} {_blocks(line)}".strip() + _kind(line)
        rows.append([name, *(_cell(line, sides[name]) for name in names)])
    return [["", *names], *rows]


def _has_figure(lines: Sequence[Record], name: str) -> bool:
    return any(side["name"] == name and side["value"] is not None for line in lines for side in line["sides"])


def _cell(line: Record, side: Record) -> str:
    value, judged = side["value"], line["sides"][0]
    if value is None:
        return "–"
    if side is judged or not judged["value"]:
        return tables.figure(value)
    return f"{tables.figure(value)} ({value / judged['value']:.2f} ×)"


def _kind(line: Record) -> str:
    """`, 16 in flight`, `, fresh`, or nothing."""
    in_flight = f", {line['in_flight']} in flight" if line["in_flight"] > 1 else ""
    return in_flight + (", fresh" if line["buffers"] == "fresh" else "")


def _blocks(line: Record) -> str:
    """`64 KiB`, `4096 × 64 KiB`, or nothing for what moves no data."""
    if not line["num_bytes"]:
        return ""
    size = tables.spelled_bytes(line["num_bytes"] // line["num_blocks"])
    return size if line["num_blocks"] == 1 else f"{line['num_blocks']:,} × {size}"
