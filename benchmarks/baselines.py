"""The committed baselines in `benchmarks/results`: one line per measurement, and which figures of a line are compared.

A file's name says benchmark, machine and ranks: `collectives_2xh200.jsonl` (two ranks, a GPU each) or
`ddp_step_2ranks_epyc_2core.jsonl`. `kernels_*` and `tiles_*` are the sweeps of choices in the code, not baselines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Record = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Figure:
    """One number of a line. `contender` is that of another side in the same run, which shows how the machine has
    changed.
    """

    name: str
    value: float
    contender: float | None = None
    more_is_better: bool = False

    def times_slower(self, baseline: Figure) -> float:
        """Returns how many times as slow this figure is as `baseline`'s."""
        return baseline.value / self.value if self.more_is_better else self.value / baseline.value

    def contender_times_slower(self, baseline: Figure) -> float | None:
        if not self.contender or not baseline.contender:
            return None
        ratio = self.contender / baseline.contender
        return 1 / ratio if self.more_is_better else ratio


@dataclass(frozen=True)
class Format:
    """The format of a benchmark's lines, which is recognised by `marks`: no other benchmark has all of these fields."""

    marks: tuple[str, ...]
    identity: tuple[str, ...]
    figure: str = ""  # of each side; empty if `figures_of` computes it


_FORMATS = {
    "product_beside": Format(("op", "size", "product"), ("op", "size", "dtype", "ranks", "product"), "call_beside_us"),
    "collectives": Format(
        ("op", "size"),
        ("op", "size", "dtype", "redop", "root", "ranks", "window", "device", "graph", "host"),
        "p50_us",
    ),
    "overlap": Format(("op", "m", "k", "n"), ("op", "m", "k", "n", "dtype", "ranks"), "p50_us"),
    "one_sided": Format(
        ("num_blocks", "buffers"),
        ("op", "num_bytes", "num_blocks", "in_flight", "buffers", "place", "memory"),
        "value",
    ),
    "active_message": Format(("in_flight", "sides"), ("num_bytes", "in_flight", "path", "memory")),
    "ddp_step": Format(("model", "sides"), ("model", "ranks"), "step_ms"),
    "llama_step": Format(
        ("sequence", "sides"), ("layers", "features", "sequence", "batch", "ranks", "compiled"), "step_us"
    ),
    "fsdp_step": Format(("tokens", "sides"), ("layers", "features", "tokens", "ranks"), "step_us"),
    "groups": Format(("cost",), ("ranks", "device")),
    "transport": Format(("ucx_latency_us",), ("path", "num_bytes")),
    "active_message_beside_ucx": Format(("axon_cpp_us",), ("num_bytes",)),
    "arithmetic": Format(("reductions",), ("dtype", "num_bytes", "kernels")),
    "reconfigure": Format(("what", "ms"), ("device", "ranks")),
    "start_up": Format(("what", "loaded"), ("ranks", "loaded")),
    "conditions": Format(("condition_us",), ()),
}
_MOVES_NO_DATA = {"fake", "launch", "none", "solo", "cut"}
_COSTS = ("init_ms", "first_call_ms", "further_ms", "rss_kib", "further_kib", "gpu_kib", "further_gpu_kib", "peer_kib")
_IDLE_COSTS = ("core_percent", "message_us", "asleep_us")


def read(path: Path) -> list[Record]:
    """Raises ValueError, which names file and line, if a line is not a JSON object of a known benchmark."""
    records = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(record, dict) or benchmark_of(record) is None:
            raise ValueError(f"{path}:{number} is not a line of a benchmark that has baselines: {', '.join(_FORMATS)}")
        records.append(record)
    return records


def benchmark_of(record: Record) -> str | None:
    """Returns the name of the benchmark that wrote `record`, or None."""
    return next((name for name, each in _FORMATS.items() if all(mark in record for mark in each.marks)), None)


def key_of(record: Record) -> Key:
    """Returns the measurement and its number of ranks, which are equal for comparable lines of comparable machines."""
    name = benchmark_of(record)
    assert name is not None
    fields = [record.get(field) for field in _FORMATS[name].identity]
    if name == "groups":
        fields += [record["cost"]["backend"], "idle" if "asleep_us" in record["cost"] else "groups"]
    if name == "active_message":
        fields.append(" ".join(side["name"] for side in record["sides"]))
    return (name, *fields)


def machine_of(record: Record) -> tuple[str, int]:
    """Returns the GPU or processor, and the number of cores if there is no GPU."""
    machine = record["machine"]
    return (machine["gpu"], 0) if machine.get("gpu") else (machine["cpu"], machine["cores"])


def describe(key: Key) -> str:
    return " ".join(str(part) for part in key if part not in (None, False, "", -1))


def figures_of(record: Record) -> list[Figure]:
    """Returns the judged side's figures, or nothing if it failed. What took no time has no ratio to a baseline."""
    name = benchmark_of(record)
    if name == "groups":
        cost = record["cost"]
        judged = cost["backend"] == "axon"  # the other sides have lines of their own
        return [Figure(each, cost[each]) for each in (*_COSTS, *_IDLE_COSTS) if judged and cost.get(each)]
    if name == "transport":
        rates = Figure("messages_per_s", record["messages_per_s"], record["ucx_messages_per_s"], more_is_better=True)
        return [Figure("latency_us", record["latency_us"], record["ucx_latency_us"]), rates]
    if name == "active_message_beside_ucx":
        return [Figure(each, record[each], record["ucx_us"]) for each in ("axon_cpp_us", "axon_cpp_told_us")]
    if name == "arithmetic":
        rates_by_name = record["reductions"].items()
        return [Figure(each, rate, record["copy"], more_is_better=True) for each, rate in rates_by_name if rate]
    if name == "reconfigure":
        medians = {each: times["median"] for each, times in record["ms"].items()}
        contender = medians.pop("form nccl", None) or medians.pop("form gloo", None)
        return [Figure(each, value, contender) for each, value in medians.items()]
    if name == "conditions":
        return [Figure(each, value) for each, value in record["condition_us"].items()]
    if name == "start_up":
        axon, gloo = record["sides"]
        return [
            Figure(each, axon[each], gloo[each]) for each in axon if each.endswith(("_ms", "_kib")) and axon[each] > 0
        ]
    assert name is not None
    return _side_figures(record, _FORMATS[name].figure)


def _side_figures(record: Record, figure: str) -> list[Figure]:
    sides = record["sides"]
    judged = next((side for side in sides if _name(side) == "axon"), sides[0])
    others = [side for side in sides if side is not judged]
    if judged.get("failure"):
        return []
    contenders = [side for side in others if not side.get("failure") and _name(side) not in _MOVES_NO_DATA]
    more_is_better = not figure and record["in_flight"] > 1
    figure = figure or ("calls_per_s" if more_is_better else "p50_us")
    contender = contenders[-1].get(figure) if contenders else None
    return [Figure(figure, judged[figure], contender, more_is_better)] if judged[figure] else []


def _name(side: Record) -> str:
    return str(side.get("backend") or side.get("name"))


def latest(records: Iterable[Record]) -> dict[Key, Record]:
    """Returns the last record of each key, in the order in which those were written."""
    found: dict[Key, Record] = {}
    for record in records:
        found.pop(key := key_of(record), None)
        found[key] = record
    return found
