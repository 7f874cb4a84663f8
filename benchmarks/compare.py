"""Compares a new run with the committed baseline of the same benchmark, machine and number of ranks.

    python benchmarks/compare.py NEW.jsonl [--baseline FILE] [--limit 1.1]
    python benchmarks/compare.py NEW.jsonl --record benchmarks/results/collectives_2xh200.jsonl

NEW.jsonl is the output of a benchmark's `--json`. Without `--baseline`, all files of `benchmarks/results` are searched
for lines of the same machine. If several contain a measurement, as between two hosts with different settings, name one.
A figure is slower if its ratio to the baseline is over `--limit`. It must also have become as much slower than the
other side of the same run, because a busy machine slows down both sides. The command fails if a figure is slower, or if
nothing was compared. `--record` replaces the lines that the new lines supersede.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baselines import RESULTS, Figure, Key, Record, describe, figures_of, key_of, latest, machine_of, read

LIMIT = 1.1  # medians of one machine differ by some per cent from run to run


@dataclass(frozen=True)
class Comparison:
    """A figure and its baseline; `contender_times` is how many times as slow the other side has become."""

    key: Key
    name: str
    before: float
    after: float
    times: float
    contender_times: float | None

    def is_slower(self, limit: float) -> bool:
        return self.times > limit and self.times / (self.contender_times or 1.0) > limit

    def row(self, limit: float) -> str:
        other = "–" if self.contender_times is None else f"{self.contender_times:.2f}"
        verdict = "  SLOWER" if self.is_slower(limit) else ""
        return (
            f"{describe(self.key):<64} {self.name:<16} {self.before:>12.4g} {self.after:>12.4g}"
            f" {self.times:>6.2f} {other:>6}{verdict}"
        )


def compare(new: Sequence[Record], old: Sequence[Record]) -> list[Comparison]:
    """Returns the figures of `new` whose measurement and machine are in `old`, too."""
    baseline = {(machine_of(record), key): record for key, record in latest(old).items()}
    found = []
    for key, record in latest(new).items():
        before = baseline.get((machine_of(record), key))
        if before is not None:
            old_figures = {figure.name: figure for figure in figures_of(before)}
            found += [
                _compared(key, figure, old_figures[figure.name])
                for figure in figures_of(record)
                if figure.name in old_figures
            ]
    return found


def _compared(key: Key, new: Figure, old: Figure) -> Comparison:
    return Comparison(key, new.name, old.value, new.value, new.times_slower(old), new.contender_times_slower(old))


def find_baselines(new: Sequence[Record], folder: Path = RESULTS) -> list[Path]:
    """Returns the result files that have a measurement of `new` on its machine."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            records = read(path)
        except ValueError:
            continue  # a sweep or a log
        if compare(new, records):
            found.append(path)
    return found


def superseded(new: Sequence[Record], old: Sequence[Record]) -> list[Record]:
    """Returns `old`, with each line of `new` in place of the line with its key, or at the end."""
    return list({**{key_of(record): record for record in old}, **latest(new)}.values())


def parse(command_line: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares a new run with the committed baseline.")
    parser.add_argument("new", type=Path, help="output of a benchmark's --json")
    parser.add_argument("--baseline", type=Path, help="result file to compare with; found by itself by default")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="times as slow from which a figure fails (%(default)s)"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="put the new lines into this result file instead")
    return parser.parse_args(command_line)


def main(command_line: Sequence[str]) -> int:
    arguments = parse(command_line)
    try:
        new = read(arguments.new)
        if arguments.record:
            old = read(arguments.record) if arguments.record.exists() else []
            lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in superseded(new, old)]
            arguments.record.write_text("".join(lines), encoding="utf-8")
            return 0
        paths = [arguments.baseline] if arguments.baseline else find_baselines(new)
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths) or "none"
            sys.exit(
                f"compare.py: {arguments.new} needs one baseline of its measurements and machine; there is {names}."
                " Name one with --baseline, or make one with --record"
            )
        found = compare(new, read(paths[0]))
    except (OSError, ValueError) as error:
        sys.exit(f"compare.py: {error}")
    return report(found, paths[0], arguments.limit)


def report(found: Sequence[Comparison], path: Path, limit: float) -> int:
    """Prints all figures. Returns 1 if one is slower or no figure was compared."""
    print(f"baseline: {path}")
    print(f"{'measurement':<64} {'figure':<16} {'baseline':>12} {'new':>12} {'times':>6} {'other':>6}")
    print("\n".join(comparison.row(limit) for comparison in found))
    num_slower = sum(comparison.is_slower(limit) for comparison in found)
    print(f"{len(found)} figures compared, {num_slower} slower than {limit:g} times their baseline")
    return 1 if num_slower or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
