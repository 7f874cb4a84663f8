"""torch_axon.Runtime: a registered function, invoked with a tensor and awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy
import torch

from torch_axon.runtime import Runtime

SECRET = b"of this benchmark's two processes"


def payload(content: numpy.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(content)


def device_payload(content: numpy.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(content).cuda()


def synchronize() -> None:
    torch.cuda.current_stream().synchronize()


@asynccontextmanager
async def serving(host: str, _memory: str) -> AsyncIterator[Any]:
    with Runtime("server", secret=SECRET) as runtime:

        @runtime.register("echo")
        def echo(tensor: torch.Tensor) -> torch.Tensor:
            return tensor

        yield (host, runtime.listen(host, 0))


@asynccontextmanager
async def connected(address: Any, _memory: str) -> AsyncIterator[Callable[[torch.Tensor], Any]]:
    with Runtime("client", secret=SECRET) as runtime:
        peer = runtime.connect(tuple(address))
        yield lambda tensor: peer.invoke("echo", tensor)
