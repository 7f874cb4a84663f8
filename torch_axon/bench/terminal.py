"""Terminal output: one table per operation, with fewer columns on a narrow terminal, and a progress bar."""

import shutil
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from tqdm import tqdm  # type: ignore[import-untyped]

from torch_axon.bench import beside_record
from torch_axon.bench.beside_record import BesideLine
from torch_axon.bench.cost import GroupCost
from torch_axon.bench.idle import IdleCost
from torch_axon.bench.record import Line, Machine
from torch_axon.bench.report import columns

_WIDEST_TABLE = 220
_LEAST_FOR_ALL_COLUMNS = 160
_SECONDS_BEFORE_PROGRESS = 2.0


class Terminal:
    """Prints on rank 0 only."""

    def __init__(self, rank: int):
        self._speaks = rank == 0
        self._console = Console(width=_WIDEST_TABLE, quiet=not self._speaks)
        self._is_narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < _LEAST_FOR_ALL_COLUMNS

    def machine(self, machine: Machine, legend: str) -> None:
        self._console.print(
            f"# {f'{machine.gpu}; ' if machine.gpu else ''}{machine.cpu}, {machine.cores} cores, "
            f"Linux {machine.kernel}; torch {machine.torch}, "
            f"Python {machine.python}; {machine.commit or 'unversioned'}; {machine.date}\n"
            f"# {legend}",
            highlight=False,
            soft_wrap=True,
        )

    def progress(self, num_lines: int) -> tqdm:
        hidden = not (self._speaks and sys.stderr.isatty())
        return tqdm(total=num_lines, unit="line", disable=hidden, delay=_SECONDS_BEFORE_PROGRESS, leave=False)

    def lines(self, lines: Sequence[Line]) -> None:
        shown = [column for column in columns(lines) if column.in_short or not self._is_narrow]
        self._table([column.title for column in shown], [[column.cell(line) for column in shown] for line in lines])
        self._failures(lines)

    def beside(self, lines: Sequence[BesideLine]) -> None:
        self._table(beside_record.TITLES, beside_record.rows(lines))
        self._failures(lines)

    def costs(self, costs: Sequence[GroupCost]) -> None:
        titles = [
            "backend",
            "init ms",
            "first all_reduce ms",
            "RSS KiB",
            "groups more",
            "ms per group",
            "RSS KiB per group",
            "KiB per peer",
            "GPU MiB",
            "GPU MiB per group",
        ]
        rows = [
            [
                cost.backend,
                f"{cost.init_ms:.2f}",
                f"{cost.first_call_ms:.2f}",
                f"{cost.rss_kib:.0f}",
                str(cost.num_further),
                f"{cost.further_ms:.2f}" if cost.num_further else "–",
                f"{cost.further_kib:.0f}" if cost.num_further else "–",
                f"{cost.peer_kib:.0f}" if cost.peer_kib else "–",
                f"{cost.gpu_kib / 1024:.1f}" if cost.gpu_kib else "–",
                f"{cost.further_gpu_kib / 1024:.2f}" if cost.gpu_kib and cost.num_further else "–",
            ]
            for cost in costs
        ]
        self._table(titles, rows)

    def idle_costs(self, costs: Sequence[IdleCost]) -> None:
        titles = [
            "backend",
            "% of a core",
            "message µs",
            "to one asleep µs",
            "of it the call µs",
            "pipe to one asleep µs",
        ]
        rows = [
            [
                cost.backend,
                f"{cost.core_percent:.2f}",
                f"{cost.message_us:.1f}",
                f"{cost.asleep_us:.1f}",
                f"{cost.call_us:.1f}",
                f"{cost.pipe_us:.1f}",
            ]
            for cost in costs
        ]
        self._table(titles, rows)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _failures(self, lines: Sequence[Line] | Sequence[BesideLine]) -> None:
        failures = {side.backend: side.failure for line in lines for side in line.sides if side.failure is not None}
        for backend, failure in failures.items():
            self.say(f"– {backend}: {failure}")

    def _table(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, title in enumerate(titles):
            table.add_column(title, justify="left" if number == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)
