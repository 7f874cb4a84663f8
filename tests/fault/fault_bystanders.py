"""Two ranks exchange messages only with each other, while a third rank in their group fails.

Messages of the default group go both ways between the two, and their own group runs collectives. They do so before,
during and after the failure, and once more after every operation that waited for the victim has failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from fault_case import FORMING_TIMEOUT_S, Case, Moment, Place, Stretch, as_victim, once_at_rest, set_timeout, strike
from fault_operations import make_step

from support.reference import failure, same_bits

# Numbers of elements: one fits into ring entries, one is sent eagerly, one is fetched by the receiver.
_COUNTS = (7, 10_000, 1 << 20)
_NUM_ROUNDS = 12


@dataclass
class _Talk:
    pair: dist.ProcessGroup
    stretches: list[Stretch] = field(default_factory=list)  # of each round

    def go_on(self, num_rounds: int = _NUM_ROUNDS) -> None:
        for _ in range(num_rounds):
            started = Moment.now()
            self._exchange(len(self.stretches), _COUNTS[len(self.stretches) % len(_COUNTS)])
            self.stretches.append(Stretch.since(started))

    def go_on_until_told(self, case: Case, what: str) -> None:
        """Ends both ranks after the same round: the first that starts after both have been told."""
        num_told = torch.zeros(1)
        while num_told.item() < 2:
            self.go_on(1)
            num_told.fill_(case.is_told(what))
            dist.all_reduce(num_told, group=self.pair)

    def _exchange(self, number: int, count: int) -> None:
        rank = dist.get_rank()
        theirs = torch.empty(count)
        works = [dist.irecv(theirs, 1 - rank), dist.isend(torch.full((count,), float(number + rank)), 1 - rank)]
        for work in works:
            work.wait()
        same_bits(theirs, torch.full((count,), float(number + 1 - rank)))
        total = torch.full((count,), float(number + rank))
        dist.all_reduce(total, group=self.pair)
        same_bits(total, torch.full((count,), float(2 * number + 1)))


def _form(case: Case, place: Place) -> dist.ProcessGroup:
    place.join(f"{case.folder}/store")
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1))
    return pair


@contextmanager
def _awaiting_victim(case: Case) -> Iterator[None]:
    """Sets a timeout for the waits for the victim; the traffic in the same group must not time out."""
    set_timeout(case.timeout_s)
    yield
    set_timeout(FORMING_TIMEOUT_S)


def fail_beside(case: Case, place: Place) -> None:
    _form(case, place)
    step = make_step(case.operation, case.victim)
    with as_victim(case):
        case.hear("rank 0", "rank 1")  # traffic
        if case.moment == "inside":
            with once_at_rest(lambda: strike(case)):
                step()
        strike(case)


def talk_beside(case: Case, place: Place) -> tuple[list[str], list[Stretch]]:
    """Returns the errors of the operations that wait for the victim, and the rounds of traffic."""
    talk = _Talk(_form(case, place))
    talk.go_on()
    with _awaiting_victim(case):
        awaited = dist.irecv(torch.empty(1), case.victim, tag=1)
    case.tell(f"rank {dist.get_rank()}")
    talk.go_on_until_told(case, "over")
    talk.go_on()
    messages = [failure(awaited.wait)]
    talk.go_on()
    with _awaiting_victim(case):
        messages.append(failure(make_step(case.operation, case.victim)))
    talk.go_on()
    dist.destroy_process_group()
    return messages, talk.stretches
