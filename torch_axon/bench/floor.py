"""The least time in µs that a line can take, given the links between the GPUs."""

from dataclasses import dataclass

from torch_axon.bench.operations import OPERATIONS
from torch_axon.bench.record import Line


@dataclass(frozen=True)
class Link:
    """The links of a GPU to the others of its host, in both directions at once, each at `gbs` GB/s."""

    latency_us: float
    gbs: float


# By name of the GPU. Copy engines both ways at once, in a graph: 2 µs + bytes / 390 GB/s on two H200 with 18 links.
_LINKS = {"NVIDIA H200": Link(latency_us=2.0, gbs=390.0)}


def floor_us(line: Line) -> float | None:
    """Returns the least time in µs for the bytes that must leave or reach a GPU, as the bus factor counts them.

    Returns None for unknown links and for lines of host time.
    """
    link = _LINKS.get(line.machine.gpu or "")
    if link is None or line.host:
        return None
    return link.latency_us + line.size * OPERATIONS[line.op].bus_factor(line.ranks) / link.gbs / 1e3
