"""Generates `docs/performance.md`, the page of all figures, from the committed results.

    python benchmarks/performance.py [--write] [--plots]

Prints the page; `make docs` writes it, and `make check` compares it. `--plots` draws its plots again. Each contains a
digest of the results that it shows, so that a test can see whether it is up to date.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import performance_one_sided as one_sided
import performance_tables as tables
from baselines import RESULTS, Record
from performance_tables import section

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"

CPU_OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"]
GPU_OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "broadcast_fixed_root", "ring"]

PREPARED_GOALS = {"one way": 2.5, "pready": 2.0, "host: start": 3.0}  # µs, at 8 B

HEAD = """\
# Performance

This page is generated from the committed results (`make docs`). Each table names its file in `benchmarks/results`,
hardware, number of ranks, commit and date. `benchmarks/README.md` says how the figures are taken, and how to compare a
run of yours with them.

Times are medians of the slowest rank, in µs, called from Python, unless a table says otherwise. The sides of a table
take turns in one run, and every element is checked. In `3.87 (46 ×)` the other side takes 46 times as long; below 1 the
other side is faster. Sizes are bytes of a rank's largest buffer: totals for all_gather, reduce_scatter and all_to_all.
They are rounded to whole elements for each rank. `sendrecv` is one way; `ring` sends to the next rank and receives from
the previous one at once. On GPUs the root of `broadcast` moves from call to call; that of `broadcast_fixed_root` does
not. Absolute times differ between machines; compare ratios of one run.
"""


def page() -> str:
    parts = [
        HEAD,
        *_faster_backends(),
        *_cpu(),
        *_between_hosts(),
        *_gpu(),
        *_gpu_between_hosts(),
        *_prepared(),
        *_products(),
        *_active_messages(),
        *one_sided.one_sided(read),
        *_failures(),
        *_members(),
        *_checking(),
        *_rest(),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _faster_backends() -> Iterator[str]:
    yield "## Where another backend is faster"
    names = [path.stem for path in sorted(RESULTS.glob("collectives_*.jsonl"))]
    names += [f"between_hosts_{setting}_2ranks_epyc_2core" for setting in ("1gbit", "bbr", "reno")]
    names += [*_gpus_between_hosts(), "prepared_2xh200", one_sided.WINDOWS]
    collectives = tables.faster_backends([line for name in names for line in read(name)])
    yield tables.markdown([*collectives, *one_sided.faster_sides(read)])
    yield "In `prepared_2xh200.jsonl` axon's time is that of a prepared request, and `axon` is its `dist.send`."
    yield f"In `{one_sided.WINDOWS}.jsonl` axon's time is that of a window, and `dist.send` is axon's."
    yield "In all other measurements of the tables below, no other backend takes less time."


def _cpu() -> Iterator[str]:
    yield "## CPU tensors on one host"
    two = read("collectives_2ranks_epyc_2core")
    synchronous = [line for line in two if line["window"] == 1]
    sizes = ["8", "8K", "128K", "512K", "2M", "32M", "128M"]
    yield section("Two ranks, × Gloo", two, tables.by_size(synchronous, sizes))
    yield "![Time and bus bandwidth over size, two CPU ranks](performance_cpu_2ranks.png)"
    asynchronous = [line for line in two if line["window"] > 1]
    note = "Time per call with up to 16 asynchronous calls in flight."
    yield section(
        "Two ranks, calls in flight, × Gloo", two, tables.by_size(asynchronous, ["8", "512", "32K", "2M"]), note
    )
    for ranks in (3, 4, 8):
        lines = read(f"collectives_{ranks}ranks_epyc_2core")
        shown = [line for line in lines if line["window"] == 1]
        largest = "256M" if ranks < 8 else "128M"
        table = tables.by_size(shown, ["8", "64K", "1M", "16M", largest])
        yield section(f"{ranks} ranks on two cores, × Gloo", lines, table)
    floor = read("c10d_floor_2ranks_epyc_2core")
    note = "`fake` is torch's backend that moves no data: what any backend called from Python takes."
    yield section(
        "What torch itself takes", floor, tables.sides_of([line for line in floor if line["size"] == 8]), note
    )
    costs = read("groups_2-8ranks_epyc_2core")
    yield section("What groups cost", costs, tables.groups(costs))
    note = (
        "The first column is the share of a core 5 s after the last operation. The next two are one-way times of a "
        "message: between busy ranks, and to a rank asleep in `recv` for 1 s. The last is the time of a byte through a "
        "pipe to a process asleep for as long."
    )
    yield section("What quiet processes cost", costs, tables.idle(costs), note)
    steps = read("ddp_step_2ranks_epyc_2core")
    yield section("A training step of DDP", steps, tables.ddp(steps), "`solo` computes without communication. ms.")
    rates = read("arithmetic_epyc_2core")
    note = "GB/s of bytes read and written on one core, SUM and the slowest reduction, beside STREAM's copy."
    yield section("Arithmetic of reductions", rates, tables.arithmetic(rates), note)
    for path, title in (("shm", "within a host"), ("tcp_bbr", "over TCP with bbr"), ("tcp_reno", "over TCP with reno")):
        lines = read(f"transport_{path}_2ranks_epyc_2core")
        yield section(f"The transport beside ucx_perftest, {title}", lines, tables.transport(lines))


def _between_hosts() -> Iterator[str]:
    yield "## CPU tensors between two hosts"
    yield "Two network namespaces of one machine with two cores, joined by a veth pair."
    sizes = ["8", "64K", "1M", "4M", "16M", "64M"]
    for control in ("reno", "bbr"):
        lines = read(f"between_hosts_{control}_2ranks_epyc_2core")
        yield section(f"TCP with {control}, × Gloo", lines, tables.by_size(lines, sizes))
    lines = read("between_hosts_1gbit_2ranks_epyc_2core")
    yield section("Limited to 1 Gbit/s, × Gloo", lines, tables.by_size(lines, ["64M"]))


def _gpu() -> Iterator[str]:
    yield "## CUDA tensors"
    yield "Operations on bfloat16 between GPUs of one host. NCCL and symmetric memory use NVLS where it is there."
    sizes = ["8", "1K", "128K", "1M", "16M", "256M", "1G"]
    for machine in ("2xh200", "4xh200", "2xh100", "4xh100"):
        lines = read(f"collectives_{machine}")
        for graph in (True, False):
            some = [line for line in lines if line["graph"] is graph and not line["host"]]
            if some:
                mode = "CUDA graphs" if graph else "eager"
                yield section(f"{tables.spoken(machine)}, {mode}, × NCCL", some, tables.by_size(some, sizes, "nccl"))
                symmetric = tables.against_symmetric_memory(some)
                yield section(f"{tables.spoken(machine)}, {mode}, all_reduce × symmetric memory", some, symmetric)
            if machine == "2xh200" and graph:
                yield "![Time and bus bandwidth over size, two H200 in graphs](performance_2xh200_graph.png)"
        host = [line for line in lines if line["host"]]
        if host:
            note = "The host's time to enqueue one call; `launch` is one launch of an empty kernel."
            yield section(
                f"{tables.spoken(machine)}, host time of an eager all_reduce", host, tables.sides_of(host), note
            )
    for machine in ("2xh100", "4xh200"):
        costs = read(f"groups_{machine}")
        yield section(f"What groups cost, {tables.spoken(machine)}", costs, tables.groups(costs))
    for machine in ("2xh200", "2xh100"):
        lines = read(f"product_beside_{machine}")
        note = "What one asynchronous call takes from a matrix product of 8192 × 8192 that runs beside it."
        yield section(f"Beside a matrix product, {tables.spoken(machine)}", lines, tables.beside(lines), note)


def _gpu_between_hosts() -> Iterator[str]:
    names = _gpus_between_hosts()
    if not names:
        return
    yield "## CUDA tensors between hosts"
    yield (
        "Operations on bfloat16, one by one or replayed by CUDA graphs. The hosts are network namespaces of one "
        "machine, joined by a veth pair. NCCL uses its sockets: by its own choice of their number, or with four "
        "threads of four sockets each (4 × 4). axon's rails are chosen by default, or their number is named."
    )
    for name in names:
        lines = read(name)
        table = tables.by_size(lines, ["8", "1K", "64K", "1M", "16M", "128M"], "nccl")
        yield section(tables.title_between_hosts(name), lines, table)


def _gpus_between_hosts() -> list[str]:
    """Returns the names of the result files of `between_hosts_table.py --device cuda`."""
    return sorted(path.stem for path in RESULTS.glob("between_hosts_*hosts_*.jsonl"))


def _prepared() -> Iterator[str]:
    yield "## Prepared requests"
    yield (
        "Transfers of bytes by [prepared requests](prepared.md), beside `dist.send` and `dist.recv` of axon and of "
        "NCCL 2.28.9. `ping` is half of a round trip, and `one way` a message to a rank that waits for it, back to "
        "back. Both are replayed by CUDA graphs; `eager` is `one way` called one by one."
    )
    lines = read("prepared_2xh200")
    whole = [line for line in lines if line["op"] in ("ping", "one way", "eager")]
    sizes = ["8", "1K", "64K", "1M", "16M", "256M"]
    for contender, rival in (("axon", "dist.send"), ("nccl", "NCCL")):
        table = tables.by_size(whole, sizes, contender)
        yield section(f"Two H200, whole tensors, × {rival}", lines, table)
    note = (
        "`one way` is that of the tables above. `pready` is the time from `pready` in a kernel to the return of `wait` "
        "in a kernel of the other GPU. `host` is the host's time for one call."
    )
    yield section("Two H200, steps of 8 B and their goals", lines, _goals(lines), note)
    note = (
        "A kernel makes 64 partitions of 256 KiB, 5 µs apart. The time ends when the last one has arrived and an "
        "answer is back. They are sent one by one as they are made, or together by `dist.send` after the kernel. "
        "`kernel` is the kernel alone."
    )
    partitions = [line for line in lines if line["op"] in ("partitions", "kernel")]
    yield section("Two H200, partitions sent by a kernel", lines, tables.sides_of(partitions), note)


def _goals(lines: list[Record]) -> tables.Table:
    """Makes a row per step of a prepared request of 8 bytes: its time, and whether it meets its goal."""
    table = [["µs", "measured", "goal", ""]]
    for line in lines:
        op, us = line["op"], line["sides"][0]["p50_us"]
        goal = PREPARED_GOALS.get(op)
        if line["size"] == 8 and (goal or line["host"]):
            verdict = [tables.figure(goal), "met" if us <= goal else "missed"] if goal else ["–", "–"]
            table.append([op, tables.figure(us), *verdict])
    return table


def _products() -> Iterator[str]:
    yield "## Products that hide their communication"
    yield "Shares of the speed of the matrix product alone: the mean over the latest line of each shape."
    for machine in ("2xh200", "4xh200", "2xh100"):
        lines = read(f"overlap_{machine}")
        yield section(f"Products, {tables.spoken(machine)}", lines, tables.products(lines))
    for machine in ("2xh200", "4xh200"):
        lines = read(f"llama_step_{machine}")
        note = "Forward and backward pass of four Llama blocks, ms; `none` does not communicate."
        yield section(f"A training step, {tables.spoken(machine)}", lines, tables.llama(lines), note)
    lines = read("fsdp_step_2xh200")
    note = (
        "Forward and backward pass under FSDP2 of six Llama blocks with 1.31 B parameters, ms. `none` has whole blocks "
        "in bfloat16, without FSDP2."
    )
    yield section("A training step under FSDP2, Two H200", lines, tables.fsdp(lines), note)


def _active_messages() -> Iterator[str]:
    yield "## Active messages"
    yield (
        "A call with an array of bytes, answered by the same bytes. With one call in flight: µs per call; with more: "
        "thousands of calls per second. `axon` is awaited, `axon_waits` is a plain thread that waits, `axon_cpp` a "
        "program without Python."
    )
    for name, title in (
        ("2ranks_epyc_2core", "one host"),
        ("between_hosts_2ranks_epyc_2core", "two hosts, TCP with bbr"),
        ("1xh200", "CUDA tensors, two processes on one H200"),
        ("2xh200", "CUDA tensors, two H200"),
    ):
        lines = read(f"active_message_{name}")
        for number, some in enumerate(tables.by_contenders(lines)):
            again = ", further runs" if number else ""
            yield section(f"Echo, {title}{again}", some, tables.echo(some))
    lines = read("active_message_beside_ucx_2ranks_epyc_2core")
    note = "Half a round trip from C++ with an answer, and without one, beside one way of `ucx_perftest`, µs."
    yield section("A call from C++ beside ucx_perftest", lines, tables.call_beside_ucx(lines), note)


def _failures() -> Iterator[str]:
    yield "## When something breaks"
    for machine, device in (("xeon_2core", "CPU tensors"), ("h100", "CUDA tensors")):
        lines = read(f"faults_3ranks_{machine}")[:1]
        note = (
            "The time until the survivors of three ranks know; the timeout of operations is 1 s. "
            f"{tables.matrix(lines[0])}"
        )
        yield section(f"Faults, {device}", lines, tables.faults(lines[0]), note)


def _members() -> Iterator[str]:
    yield "## Other members of a group"
    note = (
        "Times of the slowest rank, in ms. A killed rank counts from the signal to the end of the survivors' first "
        "all_reduce, a joining one from its call to the end of its own. *form* destroys a group and forms another one."
    )
    for name, title in (
        ("epyc_2core", "CPU tensors, two cores"),
        ("xeon_32core", "CPU tensors, 32 cores"),
        ("2xh200", "2 H200"),
    ):
        lines = read(f"reconfigure_{name}")
        yield section(f"Reconfiguring, {title}", lines, tables.members(lines), note)


def _checking() -> Iterator[str]:
    yield "## Checking results"
    note = (
        "The same call in a group with `AXON_CHECK_RESULTS=1`; in brackets, the time without it divided by the time "
        "with it. Each result is read once more."
    )
    lines = read("result_check_2ranks_epyc_2core")
    sizes = ["8", "1K", "64K", "1M", "16M", "256M"]
    yield section("CPU tensors, two cores", lines, tables.by_size(lines, sizes, "axon"), note)
    lines = read("result_check_2xh200")
    yield section("CUDA tensors, two H200, eager", lines, tables.by_size(lines, sizes, "axon"), note)


def _rest() -> Iterator[str]:
    yield "## Work that tests have done"
    soak = read("soak")
    note = "Random operations, groups, threads and faults; every element is compared."
    yield section("Soak", soak, tables.soak(soak), note)
    counts = read("instructions")
    note = "Instructions that a rank executes in an 8-byte all_reduce, from call to return, in C++ (callgrind)."
    yield section("Instructions", counts, tables.instructions(counts), note)
    yield section("Fuzzing", read("fuzz"), tables.fuzzing(read("fuzz")))


def read(name: str) -> list[Record]:
    path = RESULTS / f"{name}.jsonl"
    records = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return [{**record, "file": path.name} for record in records]


PLOTS: dict[str, tuple[str, Callable[[Record], bool]]] = {
    "performance_cpu_2ranks.png": (
        "collectives_2ranks_epyc_2core",
        lambda line: line["window"] == 1 and line["op"] in CPU_OPS,
    ),
    "performance_2xh200_graph.png": (
        "collectives_2xh200",
        lambda line: line["graph"] and line["op"] in GPU_OPS,
    ),
    "performance_all_reduce.png": (
        "collectives_2xh200",
        lambda line: line["graph"] and line["op"] == "all_reduce",
    ),
}


ALL_PLOTS = {**{plot: name for plot, (name, _) in PLOTS.items()}, **one_sided.PLOTS}  # and the files that they show


def digest(plot: str) -> str:
    """Returns the metadata of a plot: the result file that it shows, and a digest of it."""
    path = RESULTS / f"{ALL_PLOTS[plot]}.jsonl"
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def draw_plots() -> None:
    """Draws all plots of the page, and the README's chart."""
    from one_sided.plot import save_plot as save_one_sided

    from torch_axon.bench.plot import save_plot
    from torch_axon.bench.record import Line, Side, parse_line

    for plot, (name, wanted) in PLOTS.items():
        texts = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        lines = [parse_line(text, Line, Side) for text in texts if wanted(json.loads(text))]
        save_plot(
            sorted(lines, key=lambda line: ((CPU_OPS + GPU_OPS).index(line.op), line.size)), DOCS / plot, digest(plot)
        )
    for plot, name in one_sided.PLOTS.items():
        save_one_sided(read(name), DOCS / plot, digest(plot))


def main() -> int:
    parser = argparse.ArgumentParser(description="Prints docs/performance.md.")
    parser.add_argument("--write", action="store_true", help="write the page instead")
    parser.add_argument("--plots", action="store_true", help="draw its plots, too")
    arguments = parser.parse_args()
    if arguments.plots:
        draw_plots()
    if arguments.write:
        PAGE.write_text(page(), encoding="utf-8")
    elif not arguments.plots:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
