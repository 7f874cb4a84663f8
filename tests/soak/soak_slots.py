"""The processes of a soak: each has a slot, takes part in rounds, may be killed, and is then replaced.

    slots = Slots(lambda number: RankPool(1, meeting="none"))
    with slots.closing():
        slots[0].pool.run(...)
        slots[0].rounds.append(resources)
        slots.replace(0)                      # it was killed

What a process held after each round shows whether that has grown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from soak_resources import Limits, Resources, growth

from support.pool import RankPool

# Fewer rounds do not show growth.
FEWEST_ROUNDS_TO_JUDGE = 12


@dataclass
class Slot:
    pool: RankPool
    rounds: list[Resources] = field(default_factory=list)
    num_deaths_seen: int = 0


class Slots:
    def __init__(self, start: Callable[[int], RankPool], limits: Limits | None = None) -> None:
        self._start = start
        self._limits = limits or Limits()
        self._slots: dict[int, Slot] = {}
        self._ended: list[Slot] = []  # whose process has died

    def __getitem__(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = Slot(self._start(number))
        return slot

    def replace(self, number: int) -> None:
        """Ends a slot whose process was killed. Another process takes its number when it is next asked for."""
        slot = self._slots.pop(number)
        slot.pool.close()
        self._ended.append(slot)
        for other in self._slots.values():
            other.num_deaths_seen += 1

    @contextmanager
    def closing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            for slot in self._slots.values():  # the processes may be in the middle of a call
                slot.pool.broken = True
            raise
        finally:
            for slot in self._slots.values():
                slot.pool.close()

    def excess(self) -> list[str]:
        """Returns what long-lived processes hold beyond the limits."""
        return [
            f"in {len(slot.rounds)} rounds and {slot.num_deaths_seen} deaths {each}"
            for slot in self._long_lived()
            for each in self._limits.excess(growth(slot.rounds), len(slot.rounds), slot.num_deaths_seen)
        ]

    def report(self) -> list[dict[str, Any]]:
        return [
            {
                "rounds": len(slot.rounds),
                "deaths_seen": slot.num_deaths_seen,
                "growth": growth(slot.rounds),
                **{f"{kind}_mib": _some_mib(slot.rounds, f"{kind}_kib") for kind in ("own", "shared", "gpu")},
            }
            for slot in self._long_lived()
        ]

    def _long_lived(self) -> list[Slot]:
        return [slot for slot in (*self._ended, *self._slots.values()) if len(slot.rounds) >= FEWEST_ROUNDS_TO_JUDGE]


def _some_mib(rounds: list[Resources], name: str) -> list[int]:
    """Returns about a dozen items, evenly spaced from first to last."""
    return [getattr(each, name) >> 10 for each in rounds[:: max(1, len(rounds) // 12)]]
