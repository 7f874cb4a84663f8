"""Prepared requests in Triton kernels: the functions of `axon/device.cuh` for a Triton program.

    from torch_axon import triton as axon

    @triton.jit
    def produce(request, tensor, SIZE: tl.constexpr):
        partition = tl.program_id(0)
        ...                                     # this program writes partition `partition` of the tensor
        axon.pready(request, partition)

    request.start()
    produce[(num_partitions,)](request.device_handle, tensor, SIZE=1024)
    request.wait()

A program is what `device.cuh` calls a block. The functions return 0 once a wait has failed: the peer is missing or
gone, the group was aborted, or the request was misused. The group's next call on the host then raises the reason.
`device.cuh` says which kernels can deadlock until the timeout.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

__all__ = ["begin", "parrived", "pready", "publish", "wait"]

# The members of axon::PreparedTransfer, in words of 8 bytes.
_IS_SENDER = tl.constexpr(0)
_NUM_PARTITIONS = tl.constexpr(1)
_PARTITION_BYTES = tl.constexpr(2)
_TENSOR = tl.constexpr(3)
_TARGET = tl.constexpr(4)
_ARRIVED = tl.constexpr(5)
_DONE = tl.constexpr(6)
_NUM_FINISHED = tl.constexpr(7)
_CREDIT = tl.constexpr(8)
_STARTED = tl.constexpr(9)
_WAITED = tl.constexpr(10)
_GROUP_FAULT = tl.constexpr(11)
_ABORT = tl.constexpr(12)
_GONE = tl.constexpr(13)
_REPORT = tl.constexpr(14)
_CALL = tl.constexpr(15)
_TIMEOUT_NS = tl.constexpr(16)
_PEER_AND_TAG = tl.constexpr(18)

# Codes of faults and misuses are those of axon::detail.
_TIMEOUT = tl.constexpr(1)
_ABORTED = tl.constexpr(2)
_PEER_GONE = tl.constexpr(4)
_MISUSE = tl.constexpr(5)
_NOT_STARTED = tl.constexpr(1)
_NO_PARTITION = tl.constexpr(3)
_READY_TWICE = tl.constexpr(4)
_NO_SENDER = tl.constexpr(5)


@triton.jit
def pready(request, partition, BLOCK: tl.constexpr = 2048):
    """Sender. Sends the partition once: copies it to the receiver, `BLOCK` words at a time, and says so."""
    tl.debug_barrier()
    partition = _scalar(partition)
    target = begin(request, partition)
    if target != 0:
        num_bytes = _word(request, _PARTITION_BYTES)
        source = _word(request, _TENSOR) + partition.to(tl.int64) * num_bytes
        if (source | target | num_bytes) % 16 == 0:
            _copy(source, target, num_bytes // 4, tl.int32, 4, BLOCK)
        else:
            _copy(source, target, num_bytes, tl.int8, 1, BLOCK)
        publish(request, partition)
    return target != 0


@triton.jit
def begin(request, partition):
    """Sender. Waits until the receiver has started, and returns the partition's address in its tensor; 0: failed.

    With publish() it replaces pready() in a kernel that writes its results directly into the receiver's tensor.
    """
    partition = _scalar(partition)
    is_sound = _check(request, partition)
    if is_sound:
        count = tl.load(_flag(request, _STARTED), volatile=True)
        if _word(request, _IS_SENDER) == 0:
            is_sound = _fail(request, _MISUSE, partition, _NO_SENDER)
        elif tl.load(_flag(request, _DONE) + partition, volatile=True) == count:
            is_sound = _fail(request, _MISUSE, partition, _READY_TWICE)
        else:
            is_sound = _await(request, _flag(request, _CREDIT), count, partition, MAY_BE_HOSTS=True)
    target = _word(request, _TARGET) + partition.to(tl.int64) * _word(request, _PARTITION_BYTES)
    return tl.where(is_sound, target, tl.zeros_like(target))


@triton.jit
def publish(request, partition, num_programs=1):
    """Sender. Says that this program has written all of the partition, whose address begin() has returned.

    If several programs write one partition, each calls both, with their number here; the last one sends it.
    """
    tl.debug_barrier()  # what is released below includes the writes of all threads
    finished = _flag(request, _NUM_FINISHED) + partition
    if tl.atomic_add(finished, 1, sem="acq_rel", scope="sys") + 1 == num_programs:
        tl.store(finished, 0)
        count = tl.load(_flag(request, _STARTED), volatile=True)
        tl.atomic_xchg(_flag(request, _ARRIVED) + partition, count, sem="release", scope="sys")
        tl.store(_flag(request, _DONE) + partition, count)


@triton.jit
def parrived(request, partition):
    """Receiver. Returns whether the partition has arrived since start(), without waiting."""
    partition = _scalar(partition)
    has_arrived = _check(request, partition)
    if has_arrived:
        count = tl.load(_flag(request, _STARTED), volatile=True)
        has_arrived = _load_acquire(_flag(request, _DONE) + partition) == count
    return has_arrived


@triton.jit
def wait(request, partition):
    """Receiver: waits until the partition has arrived. Sender: until it has been sent."""
    partition = _scalar(partition)
    is_sound = _check(request, partition)
    if is_sound:
        count = tl.load(_flag(request, _STARTED), volatile=True)
        is_sound = _await(request, _flag(request, _DONE) + partition, count, partition)
    return is_sound


@triton.jit
def _scalar(partition):
    """Makes a value of a literal, too."""
    return partition + tl.full((), 0, tl.int32)


@triton.jit
def _word(request, index: tl.constexpr):
    return tl.load(request.to(tl.pointer_type(tl.int64)) + index)


@triton.jit
def _flag(request, index: tl.constexpr):
    return _word(request, index).to(tl.pointer_type(tl.int32))


@triton.jit
def _load_acquire(flag):
    return tl.atomic_add(flag, 0, sem="acquire", scope="sys")


@triton.jit
def _read_acquire(flag):
    """Returns one value to all threads of the program, as _load_acquire() does, but writes nothing.

    On a GPU whose bus has no atomics, _load_acquire() of a word in host memory could undo what the host writes to it.
    """
    addresses = flag.to(tl.int64) + tl.zeros((128,), tl.int64)
    load: tl.constexpr = "ld.acquire.sys.global.u32 $0, [$1];"
    return tl.max(tl.inline_asm_elementwise(load, "=r,l", [addresses], dtype=tl.int32, is_pure=False, pack=1))


@triton.jit
def _load_flag(flag, MAY_BE_HOSTS: tl.constexpr):
    return _read_acquire(flag) if MAY_BE_HOSTS else _load_acquire(flag)


@triton.jit
def _copy(source, target, count, dtype: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr):
    """Copies `count` elements, which are whole vectors of VECTOR elements at addresses that a vector divides."""
    vector_bytes: tl.constexpr = VECTOR * dtype.primitive_bitwidth // 8
    from_ = tl.multiple_of(source.to(tl.pointer_type(dtype)), vector_bytes)  # hints of integers are lost in pointers
    to = tl.multiple_of(target.to(tl.pointer_type(dtype)), vector_bytes)
    for first in range(0, count, BLOCK):
        index = first + tl.arange(0, BLOCK)
        is_within = index // VECTOR < count // VECTOR  # which is the same for all elements of a vector
        tl.store(to + index, tl.load(from_ + index, mask=is_within), mask=is_within)


@triton.jit
def _check(request, partition):
    is_sound = partition >= 0
    if (partition < 0) | (partition >= _word(request, _NUM_PARTITIONS)):
        is_sound = _fail(request, _MISUSE, partition, _NO_PARTITION)
    elif tl.load(_flag(request, _STARTED), volatile=True) == tl.load(_flag(request, _WAITED), volatile=True):
        is_sound = _fail(request, _MISUSE, partition, _NOT_STARTED)
    return is_sound


@triton.jit
def _await(request, flag, count, partition, MAY_BE_HOSTS: tl.constexpr = False):
    """Waits until the flag has reached this count. Returns whether it has.

    All threads of the program leave the loop together. It depends on atomics, which give all of them one value, and on
    the maximum of what they have seen of the host's words and of the time. The flag may be one of these words, too.
    """
    polls = 0
    begin_ns = globaltimer()
    was_gone = polls != 0
    has_failed = polls != 0
    lacks = _load_flag(flag, MAY_BE_HOSTS) - count < 0
    while lacks & (not has_failed):
        polls += 1
        if polls % 64 == 0:
            has_failed = _load_acquire(_flag(request, _GROUP_FAULT)) != 0
        if polls % 4096 == 0:
            code = _look_at_host(request, begin_ns)
            if (code == _ABORTED) | (code == _TIMEOUT) | ((code == _PEER_GONE) & was_gone):
                has_failed = not _fail(request, code, partition, 0)
            was_gone = code == _PEER_GONE
        lacks = _load_flag(flag, MAY_BE_HOSTS) - count < 0
    return not lacks


@triton.jit
def _look_at_host(request, begin_ns):
    """Returns why waits should end, or 0: one value for all threads of the program."""
    many = tl.zeros((128,), tl.int32)
    peer = (_word(request, _PEER_AND_TAG) & 0xFFFFFFFF).to(tl.int32)
    has_aborted = tl.load(_flag(request, _ABORT) + many, volatile=True) != 0
    is_gone = (tl.load(_flag(request, _GONE) + many, volatile=True) >> peer & 1) != 0
    is_late = (globaltimer() - begin_ns > _word(request, _TIMEOUT_NS)) | (many != 0)
    codes = tl.where(is_late, _TIMEOUT, 0)
    codes = tl.where(is_gone, _PEER_GONE, codes)
    return tl.max(tl.where(has_aborted, _ABORTED, codes))


@triton.jit
def _fail(request, code, partition, misuse):
    """Reports the group's first fault to the host, which ends all waits of this rank. Returns false."""
    former = tl.atomic_cas(_flag(request, _GROUP_FAULT), 0, code, scope="sys")
    if former == 0:
        report = _flag(request, _REPORT)
        words = report.to(tl.pointer_type(tl.int64))
        peer_and_tag = _word(request, _PEER_AND_TAG)
        tl.store(report + 1, (peer_and_tag & 0xFFFFFFFF).to(tl.int32))
        tl.store(words + 1, partition.to(tl.int64))
        tl.store(words + 2, _word(request, _CALL))
        tl.store(report + 8, (peer_and_tag >> 32).to(tl.int32))
        tl.store(report + 9, misuse)
        tl.atomic_xchg(report, code, sem="release", scope="sys")
    return former < 0
