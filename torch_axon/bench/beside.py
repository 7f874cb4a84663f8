"""Measures how an operation and a matrix product that runs at the same time slow each other down.

A sample round of a contender has four parts:

1. products for half a second, since a GPU's clock depends on earlier work
2. products alone
3. products on the current stream, with concurrent asynchronous calls on the group's stream. Only the time in which both
   run counts
4. calls alone

Contenders alternate. The results are medians over the rounds, of the slowest rank.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import torch

from torch_axon.bench.arguments import Arguments
from torch_axon.bench.beside_record import BesideLine, BesideSide
from torch_axon.bench.contenders import Contender, Control
from torch_axon.bench.exercise import Setting
from torch_axon.bench.kernels import footprint_of
from torch_axon.bench.loops import Calls, Product, Streams, mark, period, times_us
from torch_axon.bench.measure import Trial, prepare_trials, take_turns
from torch_axon.bench.operations import Operation
from torch_axon.bench.record import Machine

_HEAT_SECONDS = 0.5
_MARK_US = 100.0  # duration of the calls between two marks
_FEWEST = 4  # the least number of products and of marks in a loop
_MOST_PRODUCTS = 128  # they are enqueued at once, and all but the first calls after them
_BEYOND = 1.5  # how much longer the calls would take than the products, were both alone


class Pair:
    """The calls of one contender and the product."""

    def __init__(self, trial: Trial, product: Product, streams: Streams, control: Control):
        self.trial = trial
        self._product = product
        self._calls = Calls(trial, streams)
        self._control = control
        self._num_products = self._num_marks = _FEWEST
        self._turns: list[tuple[float, float, float, float]] = []

    def plan(self, seconds: float) -> None:
        """Chooses the lengths of the loops, equal on all ranks, for products that take `seconds`."""
        self._call_alone()  # a first call sets up more than later ones
        call_us, product_us = self._control.maximum([self._call_alone(), self._product_alone()])
        self._calls.calls_a_mark = max(1, round(_MARK_US / call_us))
        self._num_products = min(_MOST_PRODUCTS, max(_FEWEST, math.ceil(seconds * 1e6 / product_us)))
        products_us = self._num_products * product_us
        self._num_marks = max(_FEWEST, math.ceil(_BEYOND * products_us / (self._calls.calls_a_mark * call_us)))

    def turn(self) -> None:
        self._product.heat(_HEAT_SECONDS)
        product_alone = self._product_alone()
        call_beside, product_beside = self._both()
        self._turns.append((self._call_alone(), call_beside, product_alone, product_beside))

    def side(self) -> BesideSide:
        backend = self.trial.contender.backend
        if self.trial.failure is not None:
            return BesideSide(backend, failure=self.trial.failure)
        figures = self._control.maximum([median(turns) for turns in zip(*self._turns, strict=True)])
        if math.inf in figures:
            return BesideSide(backend, failure="its calls and the product did not run at the same time")
        call_alone_us, call_beside_us, product_alone_us, product_beside_us = figures
        footprint = footprint_of(self._call)
        return BesideSide(
            backend,
            call_alone_us=call_alone_us,
            call_beside_us=call_beside_us,
            product_alone_us=product_alone_us,
            product_beside_us=product_beside_us,
            kernels=footprint.kernels,
            copies=footprint.copies,
            multiprocessors=footprint.multiprocessors,
            turns=len(self._turns),
            wrong=self.trial.wrong if self.trial.contender.moves_data else None,
        )

    def _call(self) -> None:
        for work in self.trial.enqueue(1):
            work.wait()

    def _product_alone(self) -> float:
        self._control.barrier()
        origin = mark()
        times = times_us(origin, self._product.enqueue(self._num_products))
        return period(times, times[0], times[-1])

    def _call_alone(self) -> float:
        self._control.barrier()
        origin = mark()
        times = times_us(origin, self._calls.enqueue(1 + self._num_marks))
        return period(times, times[0], times[-1]) / self._calls.calls_a_mark

    def _both(self) -> tuple[float, float]:
        self._control.barrier()
        origin = mark()
        first = self._calls.enqueue(1)  # so that calls are running when the product starts
        products = self._product.enqueue(self._num_products)  # before calls fill the GPU's queue, and the host waits
        calls = times_us(origin, first + self._calls.enqueue(self._num_marks))
        times = times_us(origin, products)
        call_us = period(calls, times[0], times[-1]) / self._calls.calls_a_mark
        return call_us, period(times, calls[0], calls[-1])


@dataclass(frozen=True)
class BesideMeter:
    """Measures lines with the same contenders throughout; the first is the one under test."""

    contenders: Sequence[Contender]
    control: Control
    arguments: Arguments
    machine: Machine

    @cached_property
    def _product(self) -> Product:
        with torch.device(self.arguments.device):
            return Product(self.arguments.beside)

    @cached_property
    def _streams(self) -> Streams:
        return Streams.open()

    def line(self, operation: Operation, setting: Setting) -> BesideLine:
        trials = prepare_trials(self.contenders, operation, setting, self.arguments)
        return BesideLine(
            op=operation.name,
            size=operation.size(setting.count, setting.dtype, setting.num_ranks),
            count=setting.count,
            dtype=str(setting.dtype).removeprefix("torch."),
            redop=setting.redop if operation.reduces else "none",
            root=setting.root if operation.rooted else -1,
            ranks=setting.num_ranks,
            product=self.arguments.beside,
            sides=self._measure(trials),
            machine=self.machine,
        )

    def _measure(self, trials: Sequence[Trial]) -> tuple[BesideSide, ...]:
        for trial in trials:
            trial.probe(self.control)
        pairs = [Pair(trial, self._product, self._streams, self.control) for trial in trials]
        able = [pair for pair in pairs if pair.trial.failure is None]
        for pair in able:
            pair.plan(self.arguments.seconds / self.arguments.blocks)
        take_turns([pair.turn for pair in able], self.arguments.blocks, self.control)
        for pair in able:
            pair.trial.recheck(self.control)
        return tuple(pair.side() for pair in pairs)
