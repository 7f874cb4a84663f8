"""Triton kernels that send and await partitions of a prepared request."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from torch_axon import triton as axon


@triton.jit
def produce(request, tensor, step, size, direct: tl.constexpr, BLOCK: tl.constexpr):
    """Program i makes partition i in its own tensor, or directly in the receiver's."""
    partition = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    values = (tl.load(step) + partition * size + index).to(tl.float32)
    if direct:
        target = axon.begin(request, partition)
        if target != 0:
            tl.store(target.to(tl.pointer_type(tl.float32)) + index, values, mask=index < size)
            axon.publish(request, partition)
    else:
        tl.store(tensor + partition * size + index, values, mask=index < size)
        axon.pready(request, partition)


@triton.jit
def consume(request, tensor, step, wrong, num_partitions, size, BLOCK: tl.constexpr):
    """Each program awaits some partitions, and counts their wrong elements."""
    index = tl.arange(0, BLOCK)
    for partition in range(tl.program_id(0), num_partitions, tl.num_programs(0)):
        if axon.wait(request, partition):
            found = tl.load(tensor + partition * size + index, mask=index < size, other=0.0)
            expected = (tl.load(step) + partition * size + index).to(tl.float32)
            count = tl.sum(((found != expected) & (index < size)).to(tl.int32))
            if not axon.parrived(request, partition):
                count += 1
            tl.atomic_add(wrong, count)


@triton.jit
def name_partitions(request, found):
    """Names partitions by literals."""
    axon.pready(request, 0)
    if axon.begin(request, 1) != 0:
        axon.publish(request, 1, 1)
    if axon.wait(request, 2) & axon.parrived(request, 2):
        tl.store(found, 1)
    for partition in tl.static_range(3, 5):
        axon.wait(request, partition)
