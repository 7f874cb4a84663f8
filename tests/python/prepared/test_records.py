"""Memory for the flags of requests is used again, but not before both ends of a request are closed."""

from __future__ import annotations

import subprocess
import sys

import torch

from support.processes import environment
from torch_axon.prepared._records import Records

CPU = torch.device("cpu")


def test_a_record_is_taken_over_once_both_ends_have_ended() -> None:
    records = Records()
    memories = [records.take(100, CPU) for _ in range(2)]
    numbers = [records.add(memory) for memory in memories]
    records.close(numbers[0])
    third = records.take(100, CPU)
    assert third.data_ptr() not in [memory.data_ptr() for memory in memories]  # the peer may not have closed the first
    records.num_ended_there = 1
    memories[0].fill_(1)
    fourth = records.take(100, CPU)
    assert fourth.data_ptr() == memories[0].data_ptr()
    assert not fourth.any()


def test_the_smallest_record_that_fits_is_taken_over() -> None:
    records = Records(num_ended_there=2)
    large, small = records.take(1000, CPU), records.take(100, CPU)
    for memory in (large, small):
        records.close(records.add(memory))
    assert records.take(100, CPU).data_ptr() == small.data_ptr()
    assert records.take(101, CPU).data_ptr() == large.data_ptr()


def test_a_closed_request_whose_kernels_are_queued_has_not_ended() -> None:
    records, has_run = Records(num_ended_there=1), False
    memory = records.take(100, CPU)
    records.close(records.add(memory), lambda: has_run)
    assert records.take(100, CPU).data_ptr() != memory.data_ptr()
    has_run = True
    assert records.take(100, CPU).data_ptr() == memory.data_ptr()


def test_ended_requests_count_up_to_the_first_that_has_not() -> None:
    records = Records()
    numbers = [records.add(None) for _ in range(4)]
    for number, expected in ((numbers[2], 0), (numbers[0], 1), (numbers[1], 3), (numbers[3], 4)):
        records.close(number)
        records.take(1, CPU)
        assert records.num_ended == expected


def test_a_larger_request_gets_memory_of_its_own() -> None:
    records = Records(num_ended_there=1)
    small = records.take(100, CPU)
    records.close(records.add(small))
    large = records.take(101, CPU)
    assert large.nbytes == 101
    assert large.data_ptr() != small.data_ptr()


def test_a_loop_of_requests_keeps_few_records() -> None:
    records, seen = Records(), set()
    for _ in range(50):
        memory = records.take(64, CPU)
        seen.add(memory.data_ptr())
        number = records.add(memory)
        records.num_ended_there = number  # the peer has closed all before this one
        records.close(number)
    assert len(seen) <= 2


def test_a_program_that_leaves_requests_open_exits_in_silence() -> None:
    program = """
import torch
from torch_axon.prepared import _records
_records._of_a_group = _records.Records()
_records._of_a_group.add(torch.zeros(1))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True, env=environment()
    )
    assert done.stderr == ""
