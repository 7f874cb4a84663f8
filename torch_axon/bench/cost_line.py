"""A record of a result file for the cost of groups, open or idle."""

from dataclasses import dataclass

from torch_axon.bench.cost import GroupCost
from torch_axon.bench.idle import IdleCost
from torch_axon.bench.record import Machine


@dataclass(frozen=True)
class CostLine:
    ranks: int
    cost: GroupCost | IdleCost
    machine: Machine
    device: str
