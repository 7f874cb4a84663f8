"""Tensors whose elements are not contiguous in memory of their own are refused before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from support.pool import RankPool
from support.reference import case, failure, same_bits
from torch_axon.fused import all_gather_matmul, matmul_reduce_scatter


def _all_reduce(tensor: torch.Tensor) -> None:
    """Calls the backend itself, since dispatch would filter many forms."""
    group = dist.group.WORLD
    assert group is not None
    group._get_backend(torch.device("cpu")).allreduce([tensor], dist.AllreduceOptions()).wait()


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


class _Wrapper(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} is called")


def _wrapper() -> torch.Tensor:
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(_Wrapper, [3], dtype=torch.float32)  # type: ignore[attr-defined]
    return made


def _dtensor() -> DTensor:
    mesh = DeviceMesh("cpu", [0, 1], _init_backend=False)
    return DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], run_check=False)


def _resized(tensor: torch.Tensor, num_bytes: int = 0) -> torch.Tensor:
    tensor.untyped_storage().resize_(num_bytes)
    return tensor


def _sparse_without_values() -> torch.Tensor:
    sparse = torch.eye(3).to_sparse()
    _resized(sparse._values())
    return sparse


def _freed(*sizes: int) -> torch.Tensor:
    return _resized(torch.ones(*sizes))


_OVERLAPPING = "share their memory; allowed: a contiguous"
_WRONG_CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "freed": (lambda: dist.all_reduce(_freed(3)), "TypeError.*all_reduce.*'tensors' has lost its memory"),
    "large and freed": (lambda: dist.all_reduce(_freed(100_000)), "TypeError.*all_reduce.*lost its memory"),
    "cut off": (lambda: dist.broadcast(_resized(torch.ones(3), 11), 0), "broadcast.*byte 12 of a storage.*11 bytes"),
    "strided and cut off": (lambda: dist.send(_resized(torch.ones(9)[::2], 32), 1), "send.*reaches to byte 36"),
    "freed output": (lambda: dist.recv(_freed(3), 1), "TypeError.*recv.*lost its memory"),
    "freed among the outputs": (
        lambda: dist.all_gather([torch.ones(3), _freed(3)], torch.ones(3)),
        "all_gather.*'tensor_list' has lost its memory",
    ),
    "meta": (lambda: _all_reduce(torch.ones(3, device="meta")), "TypeError.*'tensors' is on meta"),
    "fake": (lambda: _all_reduce(_fake()), "TypeError.*no memory of its own"),
    "wrapper": (lambda: _all_reduce(_wrapper()), "TypeError.*no memory of its own"),
    "nested": (lambda: _all_reduce(torch.nested.nested_tensor([torch.ones(2)])), "TypeError.*nested tensor"),
    "quantized": (
        lambda: _all_reduce(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)),
        "TypeError.*is quantized",
    ),
    "MKL-DNN": (lambda: _all_reduce(torch.ones(3).to_mkldnn()), "TypeError.*layout Mkldnn"),
    "compressed rows": (lambda: _all_reduce(torch.eye(3).to_sparse_csr()), "TypeError.*layout SparseCsr"),
    "sparse without values": (lambda: _all_reduce(_sparse_without_values()), "TypeError.*all_reduce.*lost its memory"),
    "expanded output": (lambda: dist.all_reduce(torch.ones(1).expand(3)), f"ValueError.*all_reduce.*{_OVERLAPPING}"),
    "expanded receive": (lambda: dist.recv(torch.ones(1).expand(3), 1), f"ValueError.*{_OVERLAPPING}"),
    "expanded among the outputs": (
        lambda: dist.all_gather([torch.ones(3), torch.ones(1).expand(3)], torch.ones(3)),
        f"ValueError.*all_gather.*{_OVERLAPPING}",
    ),
    "DTensor as a left factor": (
        lambda: all_gather_matmul(_dtensor(), torch.ones(3, 2)),
        "TypeError: all_gather_matmul: argument 'x_shard' is a DTensor.*to_local",
    ),
    "DTensor as a weight": (
        lambda: matmul_reduce_scatter(torch.ones(2, 2), _dtensor()),
        "TypeError: matmul_reduce_scatter: argument 'weight' is a DTensor.*to_local",
    ),
    "sparse weight": (
        lambda: all_gather_matmul(torch.ones(2, 3), [torch.ones(3, 2), torch.eye(3).to_sparse()]),
        r"TypeError: all_gather_matmul: argument 'weights\[1\]' .*torch.sparse_coo",
    ),
    "array as a left factor": (
        lambda: all_gather_matmul(torch.ones(2, 3).numpy(), torch.ones(3, 2)),  # type: ignore[call-overload]
        "TypeError: all_gather_matmul: argument 'x_shard' is a ndarray",
    ),
    "freed left factor": (
        lambda: all_gather_matmul(_freed(2, 3), torch.ones(3, 2)),
        "TypeError.*all_gather_matmul.*'x' has lost",
    ),
    "freed weight": (
        lambda: all_gather_matmul(torch.ones(2, 3), _freed(3, 2)),
        "TypeError.*all_gather_matmul.*'weight' has lost",
    ),
    "freed bias": (
        lambda: matmul_reduce_scatter(torch.ones(2, 3), torch.ones(3, 2), bias=_freed(2)),
        "TypeError.*matmul_reduce_scatter.*'bias' has lost",
    ),
}


def _call_wrongly() -> None:
    """Only rank 0 makes the wrong call; if it had sent anything, the next call would fail."""
    for name, (call, pattern) in _WRONG_CALLS.items():
        with case(call=name):
            if dist.get_rank() == 0:
                message = failure(call)
                assert re.search(pattern, message), f"{message!r} lacks {pattern!r}"
            data = torch.full((3,), float(dist.get_rank() + 1))
            dist.all_reduce(data)
            same_bits(data, torch.full((3,), 3.0))


def test_tensors_without_memory_are_refused_before_anything_is_sent(two_ranks: RankPool) -> None:
    two_ranks.run(_call_wrongly)


def _read_overlapping() -> None:
    root = dist.get_rank() == 0
    data = torch.full((1,), 4.0).expand(5) if root else torch.zeros(5)
    dist.broadcast(data, 0)
    same_bits(data.contiguous(), torch.full((5,), 4.0))
    gathered = torch.zeros(10)
    dist.all_gather_into_tensor(gathered, torch.full((1,), float(dist.get_rank())).expand(5))
    same_bits(gathered, torch.tensor([0.0] * 5 + [1.0] * 5))


def test_overlapping_tensors_are_read(two_ranks: RankPool) -> None:
    two_ranks.run(_read_overlapping)


def _give_other_memory() -> None:
    """Swaps tensors as Module.to() swaps parameters; the result goes to the memory that the call was given."""
    parameter = torch.nn.Parameter(torch.full((4 << 20,), 1.0), requires_grad=False)
    works = [dist.all_reduce(parameter, async_op=True)]
    parameter.data = torch.full((3,), 1.0)
    works.append(dist.all_reduce(parameter, async_op=True))
    for work in works:
        assert work is not None
        work.wait()
    same_bits(parameter.data, torch.full((3,), 2.0))


def test_a_tensor_may_be_given_other_memory_while_its_former_one_is_used(two_ranks: RankPool) -> None:
    two_ranks.run(_give_other_memory)


def _free_output_in_flight() -> None:
    other = 1 - dist.get_rank()
    if dist.get_rank() == 0:
        rows = torch.zeros(1000)
        work = dist.irecv(rows[::2], other)
        assert work is not None
        rows.untyped_storage().resize_(0)
        dist.barrier()
        message = failure(work.wait)
        assert re.search("its output has lost its memory.*until wait", message), message
    else:
        dist.barrier()
        dist.send(torch.ones(500), other)
    data = torch.ones(3)
    dist.all_reduce(data)
    same_bits(data, torch.full((3,), 2.0))


def test_an_output_that_is_freed_before_it_is_filled_is_an_error_of_its_call(two_ranks: RankPool) -> None:
    two_ranks.run(_free_output_in_flight)
