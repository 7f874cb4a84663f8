"""A line of ``--beside``: how calls and a matrix product slow each other down, for all sides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch_axon.bench.kernels import Kernel
from torch_axon.bench.record import Machine
from torch_axon.bench.sizes import format_size


@dataclass(frozen=True)
class BesideSide:
    """The figures of one contender: medians over the sample rounds of the slowest rank. Kernels are those of rank 0."""

    backend: str
    call_alone_us: float = 0.0
    call_beside_us: float = 0.0
    product_alone_us: float = 0.0
    product_beside_us: float = 0.0
    kernels: tuple[Kernel, ...] = ()
    copies: int = 0  # copies per call by copy engines
    multiprocessors: int = 0  # used by the largest kernel
    turns: int = 0
    wrong: int | None = None  # None: the backend moves no data
    failure: str | None = None  # why there are no figures

    @property
    def measured(self) -> bool:
        return self.failure is None

    @property
    def slowdown(self) -> float:
        """Returns the time of the product with concurrent calls divided by its time alone."""
        return self.product_beside_us / self.product_alone_us

    @property
    def lost_us(self) -> float:
        """Returns by how much one concurrent call prolongs the product."""
        return self.call_beside_us * (1 - 1 / self.slowdown)


@dataclass(frozen=True)
class BesideLine:
    """A record: one operation at one size, for all sides. The first side is the one under test."""

    op: str
    size: int
    count: int
    dtype: str
    redop: str
    root: int
    ranks: int
    product: int  # rows and columns of the matrices, of bfloat16
    sides: tuple[BesideSide, ...]
    machine: Machine = field(repr=False)

    @property
    def judged(self) -> BesideSide:
        return self.sides[0]


_ABSENT = "–"
_FIGURES: dict[str, Callable[[BesideSide], str]] = {
    "blocks × threads": lambda side: ", ".join(f"{each.blocks} × {each.threads}" for each in side.kernels) or "none",
    "SMs": lambda side: str(side.multiprocessors),
    "copies": lambda side: str(side.copies),
    "call µs": lambda side: f"{side.call_alone_us:.1f}",
    "beside product": lambda side: f"{side.call_beside_us:.1f}",
    "product µs": lambda side: f"{side.product_alone_us:.1f}",
    "beside calls": lambda side: f"{side.product_beside_us:.1f}",
    "× as long": lambda side: f"{side.slowdown:.3f}",
    "lost µs per call": lambda side: f"{side.lost_us:.1f}",
}
TITLES = ("op", "size", "backend", *_FIGURES)


def rows(lines: Sequence[BesideLine]) -> list[list[str]]:
    """Returns the cells below `TITLES`, one row per side."""
    return [
        [line.op, format_size(line.size), side.backend]
        + [figure(side) if side.measured else _ABSENT for figure in _FIGURES.values()]
        for line in lines
        for side in line.sides
    ]
