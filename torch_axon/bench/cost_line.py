"""A line of a result file about what groups cost, open or idle."""

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
