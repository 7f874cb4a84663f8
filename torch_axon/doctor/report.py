"""Combines the results of all ranks into a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch_axon.doctor.crossings import Crossing, crossings_of
from torch_axon.doctor.facts import Facts
from torch_axon.doctor.findings import Finding, findings, notes_on
from torch_axon.doctor.paths import Pair, pairs_of
from torch_axon.doctor.probe import Choice, Probe
from torch_axon.doctor.transfers import Transfers, transfers_of


@dataclass(frozen=True)
class Report:
    """The results of all ranks, and what follows from them."""

    ranks: list[Facts]
    pairs: list[Pair]
    between_hosts: list[Crossing]
    one_sided: list[Transfers]
    choices: list[Choice]
    findings: list[Finding]

    @property
    def is_healthy(self) -> bool:
        """Whether jobs can run, perhaps slowly."""
        return not any(finding.is_problem for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain values, for JSON."""
        return {"healthy": self.is_healthy, **asdict(self)}


def judge(size: int, facts: Sequence[Facts], probes: Sequence[Probe]) -> Report:
    """Makes the report.

    Args:
        size: the number of ranks in the job
        facts: the facts of all ranks that reported them
        probes: the measurements of all ranks that reported them
    """
    pairs = pairs_of(facts, probes)
    choices = next((each.choices for each in probes if each.choices), [])
    crossings = crossings_of(facts, probes, pairs)
    found = findings(size, facts, probes, pairs)
    transfers = transfers_of(facts, probes, pairs)
    return Report(list(facts), pairs, crossings, transfers, choices, [*found, *notes_on(crossings)])
