"""The tables of `docs/performance.md`: each function takes lines of one benchmark and returns a Markdown table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import mean

from baselines import Record

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SYMMETRIC = ("symm_one_shot", "symm_two_shot")
Table = list[list[str]]


def section(title: str, lines: Sequence[Record], table: Table, note: str = "") -> str:
    """Returns a heading, the provenance of `lines`, an optional note, and the table; nothing without rows."""
    if len(table) < 2:
        return ""
    return "\n\n".join(part for part in (f"### {title}", provenance(lines), note, markdown(table)) if part) + "\n"


def markdown(table: Table) -> str:
    head, *rows = table
    ruler = ["-", *["-:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *rows))


def provenance(lines: Sequence[Record]) -> str:
    """Returns file, hardware, ranks, torch, commits and dates of `lines`."""
    machines = [line.get("machine", line) for line in lines]
    hardware = _unique(_hardware(machine) for machine in machines)
    ranks = sorted({line["ranks"] for line in lines if line.get("ranks")})
    dates = sorted({machine["date"][:10] for machine in machines})
    parts = [
        f"`{lines[0]['file']}`: {', '.join(hardware)}" if hardware != [""] else f"`{lines[0]['file']}`",
        f"{', '.join(map(str, ranks))} ranks" if ranks else "",
        ", ".join(
            _unique(f"torch {machine['torch'].partition('+')[0]}" for machine in machines if machine.get("torch"))
        ),
        f"commit {', '.join(_unique(str(machine['commit']) for machine in machines))}",
        dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
    ]
    return "; ".join(part for part in parts if part) + "."


def _hardware(machine: Record) -> str:
    if machine.get("gpu"):
        return str(machine["gpu"])
    return f"{machine['cpu']}, {machine['cores']} cores" if "cpu" in machine else ""


def spoken(machine: str) -> str:
    """`2xh200` → `Two H200`."""
    number, _, gpu = machine.partition("x")
    return f"{'Two' if number == '2' else 'Four'} {gpu.upper()}"


def title_between_hosts(name: str) -> str:
    """`between_hosts_reno_2hosts_1xh200_nccl_4x4` → `2 hosts with 1 H200 each, reno, × NCCL with 4 × 4 sockets`."""
    pattern = r"between_hosts_(\w+?)(?:_rails_(\w+))?_(\d+)hosts_(\d+)x([^_]+)(_graph)?(?:_nccl_(\d+)x(\d+))?"
    match = re.fullmatch(pattern, name)
    if match is None:
        raise ValueError(f"{name} is not the name of a result file of between_hosts_table.py")
    control, rails, num_hosts, num_local, gpu, graph, *sockets = match.groups()
    in_graphs = ", CUDA graphs" if graph else ""
    with_rails = f", AXON_RAILS={rails}" if rails else ""
    rival = f"NCCL with {sockets[0]} × {sockets[1]} sockets" if sockets[0] else "NCCL"
    return f"{num_hosts} hosts with {num_local} {gpu.upper()} each, {control}{with_rails}{in_graphs}, × {rival}"


def by_size(lines: Sequence[Record], sizes: Sequence[str], contender: str = "gloo") -> Table:
    """Makes a row per operation: the judged side's µs at each size, and how many times as long `contender` takes."""
    cells = {(op, size): cell for size in sizes for op, cell in _cells_at(lines, num_bytes(size), contender)}
    shown = [size for size in sizes if any(size == each for _, each in cells)]
    ops = [op for op in _unique(line["op"] for line in lines) if any(op == each for each, _ in cells)]
    rows = [[op, *(cells.get((op, size), "–") for size in shown)] for op in ops]
    return [["µs", *map(spelled, shown)], *rows]


def _cells_at(lines: Sequence[Record], size: int, contender: str) -> Iterator[tuple[str, str]]:
    """Returns the operations near `size`: the benchmark rounds sizes to whole elements of each rank."""
    for op in _unique(line["op"] for line in lines):
        near = [line for line in lines if line["op"] == op and abs(line["size"] - size) <= 4 * line["ranks"]]
        if near:
            yield op, _compared(min(near, key=lambda line: abs(int(line["size"]) - size)), contender)


def _compared(line: Record, contender: str) -> str:
    judged = line["sides"][0]
    if judged.get("failure"):
        return "–"
    other = next((side for side in line["sides"] if side["backend"] == contender and not side["failure"]), None)
    ratio = f" ({figure(other['p50_us'] / judged['p50_us'])} ×)" if other else ""
    return figure(judged["p50_us"]) + ratio


def against_symmetric_memory(lines: Sequence[Record]) -> Table:
    """Makes a row of how many times as long the faster of symmetric memory's all_reduce kernels takes, at each size."""
    ratios = {}
    for line in lines:
        measured = [side["p50_us"] for side in line["sides"] if side["backend"] in SYMMETRIC and not side["failure"]]
        if line["op"] == "all_reduce" and measured:
            ratios[spelled_bytes(line["size"])] = f"{min(measured) / line['sides'][0]['p50_us']:.2f}"
    return [["", *ratios], ["times as long", *ratios.values()]] if ratios else []


def faster_backends(lines: Sequence[Record]) -> Table:
    """Makes a row per file, operation, mode and faster side, where that side takes less than 0.995 of axon's time."""
    found: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        judged, *others = line["sides"]
        for side in others:
            moves_data = side["wrong"] is not None and not side["failure"] and not judged["failure"]
            if moves_data and (ratio := side["p50_us"] / judged["p50_us"]) < 0.995:
                mode = "CUDA graphs" if line["graph"] else "host time" if line["host"] else "in flight"
                mode = mode if line["graph"] or line["host"] or line["window"] > 1 else "one by one"
                key = (line["op"], mode, side["backend"], line["file"])
                found.setdefault(key, []).append(f"{spelled_bytes(line['size'])} ({ratio:.2f} ×)")
    rows = [[f"`{key[-1]}`", *key[:-1], ", ".join(cells)] for key, cells in found.items()]
    return [["results", "operation", "calls", "faster side", "sizes, and its time over axon's"], *rows]


def sides_of(lines: Sequence[Record]) -> Table:
    """Makes a row per operation and size, with a column per side, in µs."""
    names = _unique(side["backend"] for line in lines for side in line["sides"])
    rows = []
    for line in lines:
        times = {side["backend"]: figure(side["p50_us"]) for side in line["sides"] if not side["failure"]}
        rows.append([f"{line['op']}, {spelled_bytes(line['size'])}", *(times.get(name, "–") for name in names)])
    return [["µs", *names], *rows]


def groups(lines: Sequence[Record]) -> Table:
    head = ["ranks, backend", "form and first call, ms", "memory, MiB", "GPU memory, MiB", "each further group, ms"]
    head += ["further memory, KiB", "further GPU memory, MiB", "per further rank, KiB"]
    table = [head]
    for line in sorted((line for line in lines if "init_ms" in line["cost"]), key=lambda line: line["ranks"]):
        cost = line["cost"]
        numbers = [cost["init_ms"] + cost["first_call_ms"], cost["rss_kib"] / 1024, cost["gpu_kib"] / 1024]
        numbers += [cost["further_ms"], cost["further_kib"], cost["further_gpu_kib"] / 1024, cost["peer_kib"]]
        table.append([f"{line['ranks']}, {cost['backend']}", *(figure(number) for number in numbers)])
    return table


def idle(lines: Sequence[Record]) -> Table:
    table = [["backend", "% of a core", "busy receiver, µs", "sleeping receiver, µs", "a pipe to a sleeper, µs"]]
    for cost in (line["cost"] for line in lines if "asleep_us" in line["cost"]):
        numbers = [cost["core_percent"], cost["message_us"], cost["asleep_us"], cost["pipe_us"]]
        table.append([cost["backend"], *(figure(number) for number in numbers)])
    return table


def ddp(lines: Sequence[Record]) -> Table:
    names = [side["name"] for side in lines[0]["sides"]]
    rows = [
        [
            f"{line['model']}, {line['num_parameters']:,} parameters",
            *(figure(side["step_ms"]) for side in line["sides"]),
        ]
        for line in lines
    ]
    return [["model", *names], *rows]


def llama(lines: Sequence[Record]) -> Table:
    names = [side["name"] for side in lines[0]["sides"]]
    rows = []
    for line in lines:
        times = {side["name"]: figure(side["step_us"] / 1e3) for side in line["sides"] if not side["failure"]}
        rows.append(["compiled" if line["compiled"] else "eager", *(times.get(name, "–") for name in names)])
    return [["", *names], *rows]


def fsdp(lines: Sequence[Record]) -> Table:
    names = [side["name"] for side in lines[0]["sides"]]
    return [
        ["tokens of a rank", *names],
        *([f"{line['tokens']:,}", *(figure(side["step_us"] / 1e3) for side in line["sides"])] for line in lines),
    ]


def arithmetic(lines: Sequence[Record]) -> Table:
    table = [["dtype", "bytes of an operand", "copy", "SUM", "slowest", ""]]
    for line in lines:
        rates = {name: rate for name, rate in line["reductions"].items() if rate}
        slowest = min(rates, key=lambda name: rates[name])
        numbers = [line["copy"], rates.get("SUM"), rates[slowest]]
        shown = [figure(number) if number else "–" for number in numbers]
        table.append([line["dtype"], spelled_bytes(line["num_bytes"]), *shown, slowest])
    return table


def transport(lines: Sequence[Record]) -> Table:
    table = [["size", "one way, µs", "ucx_perftest, µs", "GB/s", "ucx_perftest, GB/s"]]
    for line in sorted(lines, key=lambda line: int(line["num_bytes"])):
        rates = [line[name] * line["num_bytes"] / 1e9 for name in ("messages_per_s", "ucx_messages_per_s")]
        numbers = [line["latency_us"], line["ucx_latency_us"], *rates]
        table.append([spelled_bytes(line["num_bytes"]), *(figure(number) for number in numbers)])
    return table


def beside(lines: Sequence[Record]) -> Table:
    table = [["call", "backend", "multiprocessors", "call alone, µs", "call beside, µs", "product longer per call, µs"]]
    for line in lines:
        for side in (side for side in line["sides"] if not side["failure"]):
            lost = side["call_beside_us"] * (1 - side["product_alone_us"] / side["product_beside_us"])
            numbers = [side["multiprocessors"], side["call_alone_us"], side["call_beside_us"], lost]
            name = f"{line['op']}, {spelled_bytes(line['size'])}"
            table.append([name, side["backend"], *(figure(number) for number in numbers)])
    return table


def products(lines: Sequence[Record]) -> Table:
    """Returns mean shares over the shapes at which axon, symmetric memory and NCCL were measured in one run."""
    names = ("axon", "symm_mem", "nccl")
    shares: dict[tuple[str, str], dict[tuple[int, int, int], list[float]]] = {}
    for line in lines:
        sides = {side["name"]: side["share"] for side in line["sides"] if not side["failure"]}
        if all(name in sides for name in names):
            shape = (line["m"], line["k"], line["n"])
            shares.setdefault((line["op"], line["dtype"]), {})[shape] = [sides[name] for name in names]
    table = [["product", "shapes", *names]]
    for (op, dtype), found in sorted(shares.items()):
        means = [f"{mean(row[index] for row in found.values()):.3f}" for index in range(len(names))]
        table.append([f"{op}, {dtype}", str(len(found)), *means])
    return table


def by_contenders(lines: Sequence[Record]) -> list[list[Record]]:
    found: dict[tuple[str, ...], list[Record]] = {}
    for line in lines:
        found.setdefault(tuple(side["name"] for side in line["sides"]), []).append(line)
    return list(found.values())


def echo(lines: Sequence[Record]) -> Table:
    names = [side["name"] for side in lines[0]["sides"]]
    table = [["bytes, calls in flight", *names]]
    for line in lines:
        single = line["in_flight"] == 1
        cells = [
            "–" if side["failure"] else figure(side["p50_us"] if single else side["calls_per_s"] / 1e3)
            for side in line["sides"]
        ]
        table.append([f"{spelled_bytes(line['num_bytes'])}, {line['in_flight']}", *cells])
    return table


def call_beside_ucx(lines: Sequence[Record]) -> Table:
    names = ("axon_cpp_us", "axon_cpp_told_us", "ucx_us")
    rows = [[spelled_bytes(line["num_bytes"]), *(figure(line[name]) for name in names)] for line in lines]
    return [["bytes", "answered", "one-way", "ucx_perftest"], *rows]


_FAULTS = {
    "kill": "is killed",
    "remote_kill": "is killed on another host",
    "exception": "raises, and leaves",
    "interrupt": "is interrupted (Ctrl-C)",
    "stop": "is stopped (SIGSTOP)",
    "pause": "pauses",
    "remote_stop": "is stopped on another host",
    "cut": "is cut off from the network",
    "silence": "is silent",
}


def faults(line: Record) -> Table:
    table = [["a rank", "median, ms", "longest, ms", "survivors seen"]]
    for name, noticed in line["notice_s"].items():
        numbers = [noticed["median"] * 1e3, noticed["most"] * 1e3]
        table.append([_FAULTS.get(name, name), *(f"{number:,.0f}" for number in numbers), str(noticed["of"])])
    leave = line["leave_s"]
    return [
        *table,
        ["leaving the broken group", f"{leave['median'] * 1e3:.1f}", f"{leave['most'] * 1e3:.0f}", str(leave["of"])],
    ]


def members(lines: Sequence[Record]) -> Table:
    names = list(dict.fromkeys(name for line in lines for name in line["ms"]))
    table = [["ms (longest)", *(f"{line['ranks']} ranks, {line['device']}" for line in lines)]]
    for name in names:
        times = [line["ms"].get(name) for line in lines]
        table.append([name, *(f"{each['median']:.1f} ({each['most']:.0f})" if each else "–" for each in times)])
    return table


def matrix(line: Record) -> str:
    cases, grown = line["matrix"], {name: number for name, number in line["growth"].items() if number}
    growth = ", ".join(f"{number} {name}" for name, number in grown.items()) or "nothing"
    return (
        f"Of the matrix's {cases['cases']} cases {cases['run']} were run here, and {cases['passed']} passed. "
        f"After {line['rounds']} rounds a survivor holds more: {growth}."
    )


def soak(lines: Sequence[Record]) -> Table:
    table = [["device", "of", "minutes", "operations", "wrong", "faults"]]
    for line in lines:
        faults = {name: number for name, number in line["rounds"].items() if name != "none"}
        faults |= line.get("faults_of_links", {})
        device = line["machine"]["gpu"] or line["machine"]["cpu"]
        of = line["what"].removeprefix("soak").removeprefix(" of").strip() or "collectives"
        figures = [figure(line["minutes"]), f"{line['operations']:,}", str(line["wrong"]), f"{sum(faults.values()):,}"]
        table.append([device, of, *figures])
    return table


def instructions(lines: Sequence[Record]) -> Table:
    latest = {(line.get("path", "ucx"), line.get("vectors", "")): line for line in lines}
    rows = [
        [f"{path}, {vectors or 'vectors not recorded'}", f"{line['instructions']['all']:,}", str(line["commit"])]
        for (path, vectors), line in latest.items()
    ]
    return [["path", "instructions", "commit"], *rows]


def fuzzing(lines: Sequence[Record]) -> Table:
    rows = [[line["target"], f"{line['executions']:,}", str(line["findings"]), line["commit"]] for line in lines]
    return [["target", "inputs", "findings", "commit"], *rows]


def num_bytes(size: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMG]?)", size).groups()  # type: ignore[union-attr]
    return int(number) * UNITS.get(unit, 1)


def spelled(size: str) -> str:
    return f"{size[:-1]} {size[-1]}iB" if size[-1] in UNITS else f"{size} B"


def spelled_bytes(number: int) -> str:
    unit = next((unit for unit in ("G", "M", "K") if number and number % UNITS[unit] == 0), None)
    return f"{number // UNITS[unit]} {unit}iB" if unit else f"{number} B"


def figure(number: float) -> str:
    """Returns three digits, or all of a larger number."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.0f}" if number == int(number) else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
