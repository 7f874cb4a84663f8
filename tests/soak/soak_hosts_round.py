"""One round of the soak over hosts, as its ranks see it: they use a group while links and rails fail.

    outcome = take_part(plan, host)        # on every rank of the plan

Any error and any wrong element raises: rails and links that fail for a short time must not show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from soak_resources import growth, measure

from support.pool import BACKEND, own_rank
from support.torture import Torture

STEPS_BETWEEN_MEASUREMENTS = 20
TIMEOUT_S = 60.0
# Enough calls whose messages exceed 256 KiB: only these take rails.
_LARGE_SHARE = 0.7


@dataclass(frozen=True)
class HostsPlan:
    number: int
    seed: int
    store: str
    ranks_per_host: int
    seconds: float
    devices: tuple[str, ...]  # of the rails
    num_rails: int
    compression: str

    @property
    def variables(self) -> dict[str, str]:
        return {
            "AXON_RAILS": str(self.num_rails),
            "AXON_RAIL_DEVICES": ",".join(self.devices),
            "AXON_COMPRESS": self.compression,
            "AXON_UCX_NET_DEVICES": "eth0",
            # Faults reset all connections over the devices of rails, but not those of short messages.
            "AXON_TRANSPORTS": "ucx,rings,cma,cuda",
        }


@dataclass(frozen=True)
class HostsOutcome:
    num_steps: int
    growth: dict[str, int]


def take_part(plan: HostsPlan, host: int) -> HostsOutcome:
    os.environ.update(plan.variables)
    dist.init_process_group(
        BACKEND,
        init_method=f"file://{plan.store}",
        rank=host * plan.ranks_per_host + own_rank(),
        world_size=2 * plan.ranks_per_host,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    torture = Torture(plan.seed, timeout=timedelta(seconds=TIMEOUT_S), large_share=_LARGE_SHARE)
    deadline = time.monotonic() + plan.seconds
    num_steps = 0
    history = []
    while not _first_rank_says(time.monotonic() > deadline):
        torture.run(STEPS_BETWEEN_MEASUREMENTS)
        num_steps += STEPS_BETWEEN_MEASUREMENTS
        history.append(measure())
    torture.close()
    dist.destroy_process_group()
    return HostsOutcome(num_steps, growth(history))


def _first_rank_says(answer: bool) -> bool:
    answers = torch.tensor([answer])
    dist.broadcast(answers, 0)
    return bool(answers.item())


def num_sent(devices: Sequence[str]) -> int:
    """Returns the bytes that this host has sent over the devices."""
    return sum(int(Path(f"/sys/class/net/{each}/statistics/tx_bytes").read_text()) for each in devices)
