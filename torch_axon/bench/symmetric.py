"""PyTorch's symmetric memory as sides: its one-shot and two-shot all_reduce kernels, over symmetric buffers."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from torch_axon.bench.exercise import Exercise, Launch, Setting
from torch_axon.bench.operations import Operation

NAME = "symm_mem"  # of both sides, in --vs


def _one_shot(buffers: list[Tensor], name: str) -> list[Launch]:
    kernel = torch.ops.symm_mem.one_shot_all_reduce_out

    def between(source: Tensor, target: Tensor) -> Launch:
        return _launcher(lambda: kernel(source, "sum", name, target))

    return [between(buffers[0], buffers[1]), between(buffers[1], buffers[0])]


def _two_shot(buffers: list[Tensor], name: str) -> list[Launch]:
    kernel = torch.ops.symm_mem.two_shot_all_reduce_
    return [_launcher(lambda: kernel(buffers[0], "sum", name))]


def _launcher(call: Callable[[], object]) -> Launch:
    def launch(_group: dist.ProcessGroup, _is_async: bool) -> None:
        call()

    return launch


# For each side: the number of buffers, and its chain of calls over them.
KERNELS: dict[str, tuple[int, Callable[[list[Tensor], str], list[Launch]]]] = {
    "symm_one_shot": (2, _one_shot),
    "symm_two_shot": (1, _two_shot),
}


def prepare(side: str, group: dist.ProcessGroup, operation: Operation, setting: Setting) -> Exercise:
    """Maps the buffers of all ranks; a collective call. Unsupported operations raise when they are launched."""
    if operation.name != "all_reduce" or setting.redop != "sum":
        return _refusal("symmetric memory has kernels only for all_reduce with sum")
    num_buffers, make_chain = KERNELS[side]
    try:
        buffers = [_allocate(group, setting) for _ in range(num_buffers)]
    except RuntimeError as error:
        return _refusal(str(error))
    chain = make_chain(buffers, group.group_name)
    return Exercise(
        chain[0],
        inputs=[(buffers[0], setting.contribution(setting.count))],
        outputs=[(buffers[-1], setting.reduced(setting.count))],
        make_chain=lambda: chain,
    )


def _allocate(group: dist.ProcessGroup, setting: Setting) -> Tensor:
    from torch.distributed import _symmetric_memory as symmetric_memory

    buffer = symmetric_memory.empty(setting.count, dtype=setting.dtype, device=torch.get_default_device())
    symmetric_memory.rendezvous(buffer, group.group_name)
    return buffer.zero_()


def _refusal(reason: str) -> Exercise:
    def launch(_group: dist.ProcessGroup, _is_async: bool) -> None:
        raise NotImplementedError(reason)

    return Exercise(launch)
