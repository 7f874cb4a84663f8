"""Memory that each rank exposes, so that the others find out by which path they would transfer it."""

from __future__ import annotations

from contextlib import ExitStack

import torch
import torch.distributed as dist

from torch_axon.runtime import Runtime

_NUM_BYTES = 64
_TIMEOUT_S = 10.0


class Exposure:
    """Exposes memory on the CPU and, with a GPU, on that. It closes with `stack`, when no rank opens it any more.

    Making it is a collective: all ranks of the group do.
    """

    def __init__(self, gpu: int | None, stack: ExitStack) -> None:
        self._runtime = stack.enter_context(Runtime(f"doctor {dist.get_rank()}", timeout=_TIMEOUT_S))
        devices = {"CPU": "cpu"} if gpu is None else {"CPU": "cpu", "GPU": f"cuda:{gpu}"}
        regions = {
            name: self._runtime.expose(torch.zeros(_NUM_BYTES, dtype=torch.uint8, device=device))
            for name, device in devices.items()
        }
        handles = {name: region.handle() for name, region in regions.items()}
        self._exposed: list[tuple[bytes, dict[str, bytes]]] = [(b"", {})] * dist.get_world_size()
        dist.all_gather_object(self._exposed, (self._runtime.address, handles))

    def paths_to(self, rank: int, is_on_same_host: bool) -> tuple[dict[str, str], dict[str, str]]:
        """Opens each kind of memory of a rank.

        Returns:
            `Remote.path` of each kind that could be opened, and for each other kind why it could not.
        """
        address, handles = self._exposed[rank]
        if not is_on_same_host:  # its address is for its own host
            return dict.fromkeys(handles, "messages"), {}
        paths, failures = {}, {}
        for name, handle in handles.items():
            try:
                paths[name] = self._runtime.connect(address).open(handle).path
            except (OSError, BufferError, RuntimeError) as error:  # the network, access, limits, and the GPU's driver
                failures[name] = f"{type(error).__name__}: {error}"
        return paths, failures
