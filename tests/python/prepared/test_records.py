"""Memory for the flags of requests is used again, but not before both ends of a request are closed."""

from __future__ import annotations

import torch

from torch_axon.prepared._records import Records

CPU = torch.device("cpu")


def test_a_record_is_taken_over_once_both_ends_are_closed() -> None:
    records = Records()
    first, memory = records.add(100, CPU)
    second, other = records.add(100, CPU)
    assert other.data_ptr() != memory.data_ptr()
    records.note_closed(first)
    _, third = records.add(100, CPU)
    assert third.data_ptr() not in (memory.data_ptr(), other.data_ptr())  # the peer may not have closed the first
    records.num_closed_there = 1
    records.note_closed(second)
    _, fourth = records.add(100, CPU)
    assert fourth.data_ptr() == memory.data_ptr()


def test_closed_requests_count_up_to_the_first_open_one() -> None:
    records = Records()
    numbers = [records.add(1, CPU)[0] for _ in range(4)]
    for number, expected in ((numbers[2], 0), (numbers[0], 1), (numbers[1], 3), (numbers[3], 4)):
        records.note_closed(number)
        assert records.num_closed == expected


def test_a_larger_request_gets_memory_of_its_own() -> None:
    records = Records()
    number, small = records.add(100, CPU)
    records.note_closed(number)
    records.num_closed_there = 1
    _, large = records.add(101, CPU)
    assert large.nbytes == 101
    assert large.data_ptr() != small.data_ptr()


def test_a_loop_of_requests_keeps_few_records() -> None:
    records, seen = Records(), set()
    for _ in range(50):
        number, memory = records.add(64, CPU)
        seen.add(memory.data_ptr())
        records.num_closed_there = number  # the peer has closed all before this one
        records.note_closed(number)
    assert len(seen) <= 2
