"""Prepared collectives: c10d's calls with their arguments, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from torch_axon.prepared._request import Request

# For each collective, the names of the arguments of prepare() that it needs besides the tensor.
COLLECTIVES: dict[str, tuple[str, ...]] = {
    "all_reduce": (),
    "broadcast": ("root",),
    "reduce": ("root",),
    "all_gather": ("inputs",),
    "reduce_scatter": ("inputs",),
    "all_to_all": ("inputs",),
}


class CollectiveRequest(Request):
    """Starts one collective again and again. It runs beside other work of the stream until wait()."""

    def __init__(self, operation: str, call: Callable[[], Any]) -> None:
        self._operation = operation
        self._call: Callable[[], Any] | None = call
        self._work: Any = None

    def start(self) -> None:
        """See `Request`."""
        if self._call is None or self._work is not None:
            what = "the request is closed" if self._call is None else "start() was called before wait()"
            raise ValueError(
                f"prepared {self._operation}: {what}; allowed: one start() for each wait(), before close()"
            )
        self._work = self._call()

    def wait(self) -> None:
        """See `Request`."""
        if self._work is None:
            raise ValueError(f"prepared {self._operation}: it has not been started; allowed: start() first")
        work, self._work = self._work, None
        work.wait()

    def close(self) -> None:
        """See `Request`."""
        self._call = None


def prepare_collective(
    operation: str,
    tensor: Tensor,
    inputs: Tensor | None,
    root: int | None,
    op: dist.ReduceOp.RedOpType,
    group: dist.ProcessGroup,
) -> CollectiveRequest:
    """See `prepare`."""
    for name, value in (("root", root), ("inputs", inputs)):
        if (value is None) == (name in COLLECTIVES[operation]):
            allowed = "another value" if value is None else "None"
            raise ValueError(f"prepare: argument {name!r} is {value!r}; allowed with {operation!r}: {allowed}")
    calls: dict[str, Callable[..., Any]] = {
        "all_reduce": partial(dist.all_reduce, tensor, op),
        "broadcast": partial(dist.broadcast, tensor, root),
        "reduce": partial(dist.reduce, tensor, root, op),
        "all_gather": partial(dist.all_gather_into_tensor, tensor, inputs),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, tensor, inputs, op),
        "all_to_all": partial(dist.all_to_all_single, tensor, inputs),
    }
    return CollectiveRequest(operation, partial(calls[operation], group=group, async_op=True))
