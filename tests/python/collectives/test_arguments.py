"""Wrong arguments raise at the call, which names the argument and what is allowed, and send nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
import torch.distributed as dist

from support.pool import RankPool
from support.reference import case, failure, same_bits


def _ones(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*sizes, dtype=dtype)


# A pattern of None: torch refuses the call before the backend sees it.
_WRONG_CALLS: dict[str, tuple[Callable[[], object], str | None]] = {
    "broadcast of a sparse tensor": (lambda: dist.broadcast(_ones(3).to_sparse(), 0), None),
    "all_reduce of bits of floats": (
        lambda: dist.all_reduce(_ones(3), dist.ReduceOp.BAND),
        "(?i)all_reduce.*float.*band",
    ),
    "all_reduce of the smaller complex": (lambda: dist.all_reduce(torch.ones(3) * 1j, dist.ReduceOp.MIN), None),
    "all_reduce of float8": (
        lambda: dist.all_reduce(_ones(4).to(torch.float8_e5m2)),
        "(?i)all_reduce.*float8.*allowed",
    ),
    "premul_sum of integers": (
        lambda: dist.all_reduce(_ones(3, dtype=torch.int32), dist._make_nccl_premul_sum(2.0)),
        "(?i)all_reduce.*int.*allowed",
    ),
    "broadcast from rank 7": (
        lambda: dist.broadcast(_ones(3), group_src=7),
        "broadcast.*rank 7.*allowed: ranks 0 to 1",
    ),
    "reduce to rank 2": (lambda: dist.reduce(_ones(3), group_dst=2), "reduce.*rank 2.*allowed: ranks 0 to 1"),
    "all_gather of a short list": (
        lambda: dist.all_gather([_ones(3)], _ones(3)),
        "all_gather.*length 1.*allowed: length 2",
    ),
    "all_gather of own block's size": (
        lambda: dist.all_gather([_ones(4), _ones(3)], _ones(3)),
        "all_gather.*(3|4) elements.*allowed: (3|4) elements",
    ),
    "all_gather of mixed types": (lambda: dist.all_gather([_ones(3), _ones(3, dtype=torch.int32)], _ones(3)), None),
    "all_gather_into_tensor of a wrong size": (
        lambda: dist.all_gather_into_tensor(_ones(5), _ones(3)),
        "all_gather.*5 elements.*allowed: 6 elements",
    ),
    "all_gather_into_tensor of another type": (
        lambda: dist.all_gather_into_tensor(_ones(6, dtype=torch.float64), _ones(3)),
        "(?i)all_gather.*dtype (double|float).*allowed",
    ),
    "reduce_scatter_tensor of a wrong size": (
        lambda: dist.reduce_scatter_tensor(_ones(3), _ones(7)),
        "reduce_scatter.*(7|3) elements.*allowed",
    ),
    "reduce_scatter of a long list": (
        lambda: dist.reduce_scatter(_ones(3), [_ones(3)] * 3),
        "reduce_scatter.*length 3.*allowed: length 2",
    ),
    "gather of a short list": (lambda: dist.gather(_ones(3), [_ones(3)], 0), "gather.*length 1.*allowed: length 2"),
    "gather without a list": (lambda: dist.gather(_ones(3), None, 0), None),
    "gather of own block's size": (
        lambda: dist.gather(_ones(3), [_ones(4), _ones(3)], 0),
        "gather.*elements.*allowed: (3|4)",
    ),
    "scatter of a long list": (
        lambda: dist.scatter(_ones(3), [_ones(3)] * 3, 0),
        "scatter.*length 3.*allowed: length 2",
    ),
    "scatter of own block's size": (
        lambda: dist.scatter(_ones(3), [_ones(4), _ones(3)], 0),
        "scatter.*elements.*allowed: (3|4)",
    ),
    "all_to_all of short lists": (
        lambda: dist.all_to_all([_ones(3)], [_ones(3)]),
        "all_to_all.*length 1.*allowed: length 2",
    ),
    "all_to_all_single of an odd size": (
        lambda: dist.all_to_all_single(_ones(3), _ones(3)),
        "all_to_all.*3.*multiples of 2",
    ),
    "all_to_all_single of wrong splits": (
        lambda: dist.all_to_all_single(_ones(4), _ones(4), [2, 2], [1, 2]),
        "all_to_all.*adds up to 3.*4 rows",
    ),
    "all_to_all_single of another size for itself": (
        lambda: dist.all_to_all_single(_ones(4), _ones(4), [3, 1], [1, 3]),
        "all_to_all.*output_split_sizes.*takes .* bytes from this rank itself.*it sends to itself",
    ),
    "all_to_all_single of too many splits": (
        lambda: dist.all_to_all_single(_ones(4), _ones(4), [2, 1, 1], [2, 2]),
        "all_to_all.*length 3.*allowed: length 2",
    ),
    "send to rank 9": (lambda: dist.send(_ones(3), group_dst=9), "send.*rank 9.*allowed: ranks 0 to 1"),
    "send with a negative tag": (lambda: dist.send(_ones(3), 1, tag=-1), "send.*tag.*-1.*allowed: tags 0 to"),
    "recv with a negative tag": (lambda: dist.recv(_ones(3), 1, tag=-5), "recv.*tag.*-5.*allowed: tags 0 to"),
    "recv from rank 9": (lambda: dist.recv(_ones(3), group_src=9), "recv.*rank 9.*allowed: ranks 0 to 1"),
    "send with a tag too large": (lambda: dist.send(_ones(3), 1, tag=1 << 31), None),
}


def _call_wrongly() -> None:
    """Only rank 0 makes the wrong call; if it had sent anything, the next call would fail."""
    for name, (call, pattern) in _WRONG_CALLS.items():
        with case(call=name):
            if dist.get_rank() == 0:
                message = failure(call)
                assert pattern is None or re.search(pattern, message), f"{message!r} lacks {pattern!r}"
            data = torch.full((3,), float(dist.get_rank() + 1))
            dist.all_reduce(data)
            same_bits(data, torch.full((3,), 3.0))


def test_wrong_arguments_raise_at_the_call_and_leave_the_group_usable(two_ranks: RankPool) -> None:
    two_ranks.run(_call_wrongly)


def _error_classes() -> None:
    assert failure(lambda: dist.all_gather([_ones(3)], _ones(3))).startswith("ValueError")
    assert failure(lambda: dist.all_gather_into_tensor(_ones(6, dtype=torch.float64), _ones(3))).startswith("TypeError")


def test_wrong_arguments_are_value_and_type_errors(two_ranks: RankPool) -> None:
    two_ranks.run(_error_classes)
